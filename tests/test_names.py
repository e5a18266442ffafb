"""One word per idea: a class name means one thing in the whole package."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src" / "sonde"


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
    assert {folder: n for folder, n in sizes.items() if n > 19} == {}
