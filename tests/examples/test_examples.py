"""Every example and every tutorial runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
ON_RANKS = ("fsdp2.py", "tp.py")
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where examples run. It holds a run already, for those that only read."""
    where = tmp_path_factory.mktemp("examples")
    run(where, ROOT / "examples" / "minimal.py")
    return where


def run(where, *command):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *map(str, command)],
        cwd=where,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs_and_says_something(example, folder):
    launch = LAUNCH if example.name in ON_RANKS else ()
    assert len(run(folder, *launch, example).splitlines()) > 3


def test_examples_are_named_in_the_index_of_the_documents():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [path.name for path in EXAMPLES if f"examples/{path.name}" not in index] == []


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.name)
def test_a_tutorial_finds_what_it_says(tutorial, tmp_path):
    """Each asserts what its text claims."""
    assert len(run(tmp_path, tutorial).splitlines()) > 3
    assert list(tmp_path.glob("*.png"))
