"""A soak of seconds: the script behind `make soak` runs, kills, resumes and finds nothing wrong."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.mark.slow
def test_a_short_soak_loses_nothing(tmp_path):
    out = tmp_path / "soak.csv"
    command = [sys.executable, str(SCRIPT), "--minutes", "0.1", "--seed", "1", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    with out.open(newline="") as file:
        rows = {(row["who"], row["what"]): row for row in csv.DictReader(file)}
    assert int(rows["killed", "lives"]["late"]) > 1
    for who in ("steady", "killed"):
        for what in ("lost", "missing", "wrong", "twice", "damaged", "hung"):
            assert rows[who, what]["late"] == "0", (who, what)
    assert {("training", "memory_mb"), ("server", "threads"), ("steady", "segments")} <= set(rows)
