"""The prose linter of `make check`: spelling (codespell), and phrases we do not write.

Reads documents outside their code blocks, and comments, docstrings and messages of the sources. A
finding names the file, the line and what to write instead.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

PHRASES: Final = {
    r"\binside of\b(?! (?:it|them)selves)": "inside",
    r"\boutside of\b": "outside",
    r"\b(?:nobody|somebody|anybody|everybody)\b": "name who: a user, a page, a rank",
    r"\b[Bb]eside what else there is\b": "compared with the alternatives",
    r"\bgoes on without it\b": "Stopped …: … Training continues.",
    r"\b(?:come|came|comes) to pass\b": "happen; a CUDA event completes",
    r"\bnone any more\b": "`None` removes it",
    r"\bby our own hand\b": "we …",
    r"\bof which there (?:is|are) some\b": "some",
    r"^\W*Have (?:a|an|the|all|its) \w+ .*\b(?:asked|done|made|tell|told|come)\b": "no causative",
    r"\b[Ww]hat is told of\b": "name what it is",
    r"\bThe way of a gradient\b": "gradient stages",
    r"\blarger magnitude of all\b": "max |x|",
    r"\bSonde looks at\b": "Serving … at",
    r"\b(?:Ctrl-C|It) ends it\b": "Press Ctrl-C to stop.",
    r"\bin turns;": "interleaved",
    r"\bstay as they are\b": "are unchanged",
    r"\bTo send (?:somebody|someone)\b": "To share …",
    r"\bwithout saying that\b": "name what is missing",
    r"\bobviously\b|\bsimply\b|\bof course\b": "leave it out",
    r"\butili[sz]e\b": "use",
    r"\bin order to\b": "to",
}
"""What we do not write, with what to write instead. Patterns are searched line by line."""

DOCUMENTS: Final = ("*.md", "docs/**/*.md", "src/**/*.md", "examples/**/*.md")
SOURCES: Final = ("src/**/*.py", "examples/**/*.py", "docs/*.py", "tools/*.py")
UNCHECKED: Final = {"tools/prose.py", "CHANGELOG.md"}
"""This file, and what was written about versions that are out."""
WORDS: Final = "datas,graphin"
"""Names that codespell takes for mistakes."""


def main() -> int:
    found = [*phrases(), *spelling()]
    print("\n".join(found) or "The prose is well.")
    return 1 if found else 0


def phrases() -> Iterator[str]:
    """Every line with a phrase of the list."""
    compiled = {re.compile(pattern): advice for pattern, advice in PHRASES.items()}
    for path, number, line in lines():
        for pattern, advice in compiled.items():
            if match := pattern.search(line):
                yield f"{path}:{number}: `{match[0].strip()}`: {advice}"


def lines() -> Iterator[tuple[str, int, str]]:
    """Every line of prose: file, number, text."""
    for pattern in (*DOCUMENTS, *SOURCES):
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            if name in UNCHECKED or "node_modules" in name:
                continue
            text = path.read_text(encoding="utf-8")
            read = of_python(text) if path.suffix == ".py" else of_markdown(text)
            yield from ((name, number, line) for number, line in read)


def of_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside fenced blocks."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield number, re.sub(r"`[^`]*`", "``", line)


def of_python(text: str) -> Iterator[tuple[int, str]]:
    """Comments and strings: docstrings and messages."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line.strip()


def spelling() -> list[str]:
    """What codespell finds in documents, sources and the page."""
    command = [sys.executable, "-m", "codespell_lib", "--ignore-words-list", WORDS]
    skipped = "*/static/*,*/golden/*,*.csv,*.json,*/node_modules/*,*.svg,*.webp,*.png"
    where = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "docs",
        "src",
        "web/src",
        "examples",
    ]
    done = subprocess.run(
        [*command, "--skip", skipped, *where], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
