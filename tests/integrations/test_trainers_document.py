"""The document about trainers: its code runs as it stands."""

import re
from pathlib import Path

import sonde

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "trainers.md"


def test_the_code_of_the_document_runs(run_document):
    runs = run_document(DOCUMENT, blocks=2) / "runs"
    with sonde.open(runs / "hf") as run:
        assert run.stats("linear", kind="output")["step"].tolist() == [0, 2, 4, 6]
    with sonde.open(runs / "accelerated") as run:
        assert run.steps == [0, 1, 2, 3]


def test_the_table_of_loops_counts_their_lines():
    for name, lines in re.findall(r"\[(\w+\.py)\]\(\S+\) \| (\d)", DOCUMENT.read_text()):
        text = (ROOT / "examples" / "trainers" / name).read_text()
        assert text.count("  # +\n") == int(lines), name
