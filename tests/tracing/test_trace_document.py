"""The document about tracing tells the truth: its code runs, and its paths are paths."""

import re
import subprocess
import sys
from pathlib import Path

from sonde.tracing import paths

DOCUMENT = Path(__file__).parents[2] / "docs" / "trace.md"


def test_code_in_the_document_runs_in_order(run_document):
    folder = run_document(DOCUMENT, blocks=5)
    assert (folder / "values.h5").exists()
    shown = subprocess.run(
        [sys.executable, "-m", "sonde", "trace", "show", "runs/traced", "layers.0.forward"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    # The same text, and the same source line with a value; numbers are of the day.
    (expected,) = re.findall(r"```\w*\n(layers\.0\.forward.*?)```", DOCUMENT.read_text(), re.DOTALL)

    def without_numbers(text):
        return re.sub(r"[-0-9.e+]+", "", text).split()

    assert without_numbers(shown) == without_numbers(expected)


def test_paths_in_the_document_can_be_parsed():
    rows = re.findall(r"^\| `([^`]+)` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) >= 8
    assert all(paths.parse(row).parts for row in rows)
