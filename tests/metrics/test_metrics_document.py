"""The document about metrics tells the truth: its code runs, and its tables name what there is."""

from pathlib import Path

from sonde.capture.torch.metrics.register import INSTRUMENTS
from sonde.metrics.torch.attention import TERMS
from sonde.metrics.torch.functions import BUILT_IN

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
ATTENTION = DOCUMENT.with_name("attention.md").read_text()


def test_code_in_the_document_runs_in_order(run_document):
    folder = run_document(DOCUMENT, blocks=5)
    assert (folder / "flat.h5").exists()


def test_all_that_comes_with_sonde_is_named():
    text = DOCUMENT.read_text()
    assert [n for n in (*BUILT_IN, *INSTRUMENTS) if f"`{n}`" not in text] == []
    assert [t for t in TERMS if f"`attention/head_3/{t}`" not in ATTENTION] == []
