"""`docs/migration.md`: each behaviour of the tools has a row, each test that it names exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "migration.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))
ROWS = dict(re.findall(r"^\| ((?:TW|MM|TE|TV|TT)-\d+′?) \| (.*) \|$", TEXT, re.MULTILINE))
BEHAVIOURS = {"TW": 16, "MM": 28, "TE": 32, "TV": 25, "TT": 14}
"""How many behaviours of each tool are numbered."""


@pytest.mark.parametrize(("file", "test"), NAMED, ids="::".join)
def test_each_test_that_is_named_exists(file, test):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in tree.body if hasattr(node, "name")}


@pytest.mark.parametrize("tool", BEHAVIOURS)
def test_each_behaviour_has_a_test_or_a_reason(tool):
    numbered = [name for name in ROWS if name.startswith(f"{tool}-") and not name.endswith("′")]
    assert numbered == [f"{tool}-{n}" for n in range(1, BEHAVIOURS[tool] + 1)]
    for name in numbered:
        ours, _, tests = ROWS[name].partition(" | ")
        assert ours, name
        assert "::test_" in tests or ours.startswith("Not "), name


def test_each_code_block_of_the_documents_has_a_test_of_its_own():
    for tool, sections in {
        "torchwatcher": 8,
        "torch_module_monitor": 8,
        "torchexplorer": 9,
        "tandv": 8,
        "tensortrace": 3,
    }.items():
        source = (ROOT / "tests" / "compat" / f"test_{tool}_document.py").read_text()
        document = "tensortracer" if tool == "tensortrace" else tool
        assert len(re.findall(rf"^def test_{document}_", source, re.MULTILINE)) == sections


def test_files_that_are_named_exist():
    for path in re.findall(r"\]\((\w+\.md)\)", TEXT):
        assert (ROOT / "docs" / path).exists(), path
