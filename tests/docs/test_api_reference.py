"""The reference has an entry for every public name, each with an example that runs."""

import importlib.util
import re

import pytest

from document import ROOT, blocks

PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
INTERNAL = {
    "Run": {"catalogue", "examine"},
    "Watch": {"forked", "inert", "watches"},
}
"""Members for parts of Sonde, which users do not call."""


def surface():
    spec = importlib.util.spec_from_file_location("surface", ROOT / "tests" / "test_surface.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries():
    """Every entry by name, with the text up to the next one."""
    found = {}
    for path in PAGES:
        pieces = re.split(r"^::: (\S+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return found


ENTRIES = entries()


def test_every_public_name_and_member_has_an_entry():
    public = surface()
    wanted = {f"sonde.{name}" for name in public.NAMES}
    for owner, members in public.MEMBERS.items():
        wanted |= {f"sonde.{owner}.{m}" for m in members if m not in INTERNAL.get(owner, ())}
    assert sorted(wanted - set(ENTRIES)) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_has_an_example_that_uses_it(name):
    code = re.search(r"```python\n(.*?)```", ENTRIES[name], re.DOTALL)
    assert code, "an entry without an example"
    assert name.rpartition(".")[2] in code[1]


def test_examples_are_run_with_the_other_documents():
    assert all(any(block.language == "python" for block in blocks(path)) for path in PAGES)
