"""The document about what a run records tells the truth: its code runs as it stands."""

from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "recording.md"


def test_code_in_the_document_runs_in_order(run_document):
    folder = run_document(DOCUMENT, blocks=8)
    assert (folder / "runs" / "first").is_dir()
