"""One word per idea: a class name means one thing in the whole package."""

import ast
import re
from collections import defaultdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "sonde"


def defined_classes() -> dict[str, list[str]]:
    """Modules that define a class, by the name of the class."""
    found = defaultdict(list)
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(path.relative_to(SOURCES).as_posix())
    return found


def test_a_class_name_is_defined_once():
    several = {name: paths for name, paths in defined_classes().items() if len(paths) > 1}
    assert several == {}


def test_a_folder_of_many_modules_has_rooms():
    folders = {path.parent for path in SOURCES.rglob("*.py")}
    sizes = {f.relative_to(SOURCES).as_posix(): len(list(f.glob("*.py"))) for f in folders}
    sizes.pop("cli")  # one file per verb
    assert {folder: n for folder, n in sizes.items() if n > 19} == {}


def test_every_class_is_in_the_table_of_words_with_a_meaning():
    spec = spec_from_file_location("make_words", ROOT / "docs" / "make_words.py")
    make_words = module_from_spec(spec)
    spec.loader.exec_module(make_words)
    assert (ROOT / "docs" / "words.md").read_text() == make_words.text(), "run `make words`"
    assert [one.name for one in make_words.classes() if not one.meaning] == []


def test_the_architecture_is_read_in_a_few_minutes():
    words = (ROOT / "ARCHITECTURE.md").read_text().split()
    assert len([word for word in words if re.search(r"\w", word)]) <= 1500
