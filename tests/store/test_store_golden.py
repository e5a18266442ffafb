"""Runs that earlier versions have written open today and say what they said then."""

import json
import math
from pathlib import Path

import make_golden
import pytest

from sonde.store.schemas import FORMAT_VERSION

VERSIONS = sorted(p.name for p in make_golden.GOLDEN.iterdir())


def same(a, b):
    """Whether `a` says what `b` said; it may have columns that there were not."""
    if isinstance(a, dict):
        return a.keys() >= b.keys() and all(same(a[k], b[k]) for k in b)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return a == b


@pytest.mark.parametrize("version", VERSIONS)
def test_a_golden_run_says_what_it_always_said(version):
    folder = make_golden.GOLDEN / version
    expected = json.loads((folder / "answers.json").read_text())
    found = make_golden.answers(folder / "run")
    for name, rows in expected.items():
        assert same(found[name], rows), name


def test_the_present_format_has_a_golden_run():
    assert f"v{FORMAT_VERSION}" in VERSIONS


def test_golden_runs_are_small_and_say_nothing_of_a_machine():
    files = [f for f in make_golden.GOLDEN.rglob("*") if f.is_file()]
    assert sum(f.stat().st_size for f in files) < 300_000
    home = str(Path.home()).encode()
    assert not any(home in f.read_bytes() or b"/tmp" in f.read_bytes() for f in files)


def test_the_format_document_speaks_of_the_present_version():
    import sonde.store

    text = (Path(sonde.store.__file__).parent / "FORMAT.md").read_text()
    assert f"format {FORMAT_VERSION}" in text
    from sonde.store.schemas import TABLES

    for table in TABLES:
        for folder in table.folders:
            assert f"{folder}/" in text
        for column in table.schema.names:
            assert f"`{column}`" in text, column
