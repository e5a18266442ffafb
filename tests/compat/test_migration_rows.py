"""docs/migration.md has a row for every behaviour of the originals, with its test or its reason."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "migration.md").read_text()
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`(test_\w+)`", DOCUMENT))
    assert len(named) > 40
    assert {name for name in named if f"def {name}(" not in TESTS} == set()


@pytest.mark.parametrize(("tool", "last"), [("TE", 32), ("TV", 25)])
def test_every_behaviour_has_a_row_with_a_test_or_a_reason(tool, last):
    rows = dict(re.findall(rf"^\| ({tool}-\d+) \| (.+) \|$", DOCUMENT, re.MULTILINE))
    assert list(rows) == [f"{tool}-{i}" for i in range(1, last + 1)]
    for name, row in rows.items():
        how, text = row.split(" | ", 1)
        assert how in {"same", "differs"}, name
        assert "`test_" in text or len(text) > 40, name
