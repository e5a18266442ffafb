"""docs/trackers.md: its code runs as it stands."""

from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "trackers.md"


def test_the_code_of_the_document_runs(run_document):
    folder = run_document(DOCUMENT, blocks=3)
    assert list((folder / "tensorboard" / "first").glob("*tfevents*"))
