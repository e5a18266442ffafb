"""Write `docs/words.md`: every class of the package with what it is, room by room.

    python docs/make_words.py

A test fails when the file is not what this writes.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "sonde"
HEAD = """# Words

Every class of the package, room by room, with the first sentence of its docstring.
A name stands for one thing: no two classes share one.
[ARCHITECTURE.md](../ARCHITECTURE.md) has the words that run through all of them.
`make words` writes this file.
"""


class Named(NamedTuple):
    """A class and what it is."""

    room: str
    name: str
    module: str
    meaning: str


def classes() -> Iterator[Named]:
    """The public classes of public modules, in order."""
    for path in sorted(SOURCES.rglob("*.py")):
        module = path.relative_to(SOURCES)
        room = module.parent.as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield Named(room, node.name, module.name, _first_sentence(node))


def text() -> str:
    """The whole file."""
    lines = [HEAD]
    room = None
    for one in sorted(classes(), key=lambda c: (c.room, c.name)):
        if one.room != room:
            room = one.room
            title = "sonde" if room == "." else room
            lines += [f"\n## `{title}`\n", "| class | is | in |", "|---|---|---|"]
        lines.append(f"| `{one.name}` | {one.meaning} | `{one.module}` |")
    return "\n".join(lines) + "\n"


def _first_sentence(node: ast.ClassDef) -> str:
    whole = " ".join((ast.get_docstring(node) or "").split())
    found = re.match(r"(.*?\.)(\s|$)", whole)
    sentence = found[1] if found else whole
    return sentence.replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "words.md").write_text(text())
