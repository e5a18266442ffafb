"""The examples of docs/extending.md: short, without private names, and each shows its result."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sonde

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "extending"
EXAMPLES = sorted(path for path in FOLDER.rglob("*") if path.suffix in (".py", ".tsx"))
DOCUMENT = (ROOT / "docs" / "extending.md").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where all examples ran."""
    where = tmp_path_factory.mktemp("extending")
    for path in sorted(FOLDER.glob("*.py")):
        done = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", str(path)],
            cwd=where,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        (where / f"{path.stem}.out").write_text(done.stdout)
    return where


def test_there_is_one_for_each_door():
    names = {path.relative_to(FOLDER).as_posix() for path in EXAMPLES}
    assert names == {
        *("backend.py", "metric.py", "sink.py", "statistic.py"),
        *("destination/largest.py", "destination/LargestPage.tsx"),
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_at_most_30_lines_and_is_in_the_document(path):
    assert len(path.read_text().splitlines()) <= 30
    assert f"examples/extending/{path.relative_to(FOLDER).as_posix()}" in DOCUMENT


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.suffix == ".py"], ids=lambda p: p.name)
def test_an_example_touches_no_private_name(path):
    tree = ast.parse(path.read_text())
    named = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            named |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    assert [name for name in named if name.startswith("_")] == []


def test_the_statistic_is_in_frames_and_in_sql(folder):
    text = (folder / "statistic.out").read_text()
    assert "crest" in text
    assert "avg(crest)" in text


def test_the_metric_is_in_a_frame(folder):
    found = sonde.open(folder / "runs" / "metric").metrics("dead_units")
    assert found["step"].tolist() == [0, 5, 10, 15]
    assert set(found["module"]) == {"relu"}
    assert found["value"].between(0, 1).all()


def test_the_sink_has_written_the_numbers_of_the_run_to_a_file(folder):
    lines = [json.loads(line) for line in (folder / "runs" / "sink.jsonl").open()]
    run = sonde.open(folder / "runs" / "sink")
    expected = run.stats("0.weight", kind="param_grad", stat="rms")["rms"].tolist()
    assert len(expected) == 20
    assert [x["gradient/0.weight/rms"] for x in lines if "gradient/0.weight/rms" in x] == expected


def test_the_backend_has_recorded_a_model_of_no_known_framework(folder):
    run = sonde.open(folder / "runs" / "backend")
    found = run.stats("weight", kind="param", stat=["min", "max"])
    assert found["step"].tolist() == [0, 5, 10, 15]
    assert found[["min", "max"]].iloc[-1].tolist() == pytest.approx([1, 2], abs=0.3)
    assert run.info["config"]["watch"]["model"] == "Line"
    assert len(run.scalars("loss")) == 20


def test_code_in_the_document_is_that_of_the_examples():
    """Each block in Python stands in an example, line by line."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    sources = "\n".join(path.read_text() for path in EXAMPLES)
    assert len(blocks) >= 4
    for block in blocks:
        assert block in sources, block
