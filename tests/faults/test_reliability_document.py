"""`docs/reliability.md` promises nothing without a test: each one that it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids="::".join)
def test_each_test_that_is_named_exists(file, test):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert not test or test in {node.name for node in tree.body if hasattr(node, "name")}


def test_each_promise_names_a_test():
    rows = [line for line in TEXT.splitlines() if re.match(r"\| (?!what )[^-]", line)]
    assert len(rows) > 50
    for row in rows:
        assert re.search(r"`(tests/[\w/]+\.py::\w+|make soak)`", row), row


def test_each_file_and_command_that_is_named_exists():
    for path in re.findall(r"`((?:docs|benchmarks|src)/[\w/.]+)`|\]\((\w+\.md)\)", TEXT):
        assert (ROOT / path[0]).exists() if path[0] else (ROOT / "docs" / path[1]).exists(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)", TEXT):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
