"""Loops in the style of nanoGPT, torchtitan and torchtune: Sonde adds at most five lines to each,
and nothing else changes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sonde

FOLDER = Path(__file__).parents[2] / "examples" / "trainers"
EXAMPLES = sorted(FOLDER.glob("*.py"))
MARK = "  # +\n"


def run(code, folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_loop_needs_at_most_five_lines_and_trains_the_same(path, tmp_path):
    lines = path.read_text().splitlines(keepends=True)
    assert 1 < len([line for line in lines if line.endswith(MARK)]) <= 5
    without = "".join(line for line in lines if not line.endswith(MARK))
    assert "sonde" not in re.sub(r'""".*?"""', "", without, count=1, flags=re.DOTALL)
    (tmp_path / "without").mkdir()
    assert run("".join(lines), tmp_path) == run(without, tmp_path / "without")
    with sonde.open(tmp_path / "runs" / "latest") as recorded:
        assert recorded.status == "finished"
        assert len(recorded.steps) >= 4
        assert len(recorded.scalars("loss")) == 20


@pytest.mark.parametrize(("name", "first"), [("nanogpt", 0), ("torchtitan", 1)])
def test_a_loop_that_is_resumed_continues_its_run(name, first, tmp_path):
    code = (FOLDER / f"{name}.py").read_text()
    run(code, tmp_path)
    with sonde.open(tmp_path / "runs" / "latest") as recorded:
        before = recorded.scalars("loss")
    if name == "torchtitan":  # its last checkpoint is that of the last step
        code = code.replace("steps: int = 20", "steps: int = 25")
    run(code, tmp_path, "--resume")
    with sonde.open(tmp_path / "runs" / "latest") as recorded:
        after = recorded.scalars("loss")
    assert before["step"].tolist() == list(range(first, first + 20))
    assert after["step"].tolist()[:20] == before["step"].tolist()
    assert after["value"].tolist()[:20] == before["value"].tolist()
