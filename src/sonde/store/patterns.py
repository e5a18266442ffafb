"""Patterns: which names a glob or a regular expression stands for, in linear time.

A pattern may come from a page and a name from a stranger's run, so neither may make the other take
long. Regular expressions go through RE2, which does not backtrack; globs through a translation that
does not either.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import translate
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from sonde._errors import SondeError

EXPRESSION: Final = "re:"
"""How a pattern begins that is a regular expression."""

ANY_DEPTH: Final = "**"

_MAX_TEXT: Final = 100_000
_SHOWN: Final = 60
_COMPARED: Final = 20_000
"""Names among which the nearest are looked for."""

_LACKING: Final = ("invalid perl operator", "invalid escape sequence", "bad perl operator")
"""What RE2 says of lookarounds and backreferences, which need backtracking."""


def is_pattern(text: str) -> bool:
    """Whether the text can stand for more than itself."""
    return text.startswith(EXPRESSION) or any(c in text for c in "*?[")


def select(pattern: str, names: Sequence[str]) -> list[bool]:
    """For each name whether a glob (`*` also spans dots), `re:...` or plain text stands for it."""
    if pattern == "*":
        return [True] * len(names)
    if pattern.startswith(EXPRESSION):
        return search(f"^(?:{pattern.removeprefix(EXPRESSION)})$", names, shown=pattern)
    if not is_pattern(pattern):
        return [name == pattern for name in names]
    glob = glob_matcher(pattern)
    return [name == pattern or glob(name) for name in names]


def search(
    expression: str, names: Sequence[str], *, shown: str = "", ignore_case: bool = False
) -> list[bool]:
    """For each name whether the expression is found in it. Lookarounds and backreferences are
    refused: they cannot be bounded."""
    shown = shown or f"{EXPRESSION}{expression}"
    shown = shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"
    texts = pa.array([_plain(name)[:_MAX_TEXT] for name in names], pa.string())
    try:
        found = pc.match_substring_regex(texts, _plain(expression), ignore_case=ignore_case)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        if any(text in reason for text in _LACKING):
            raise SondeError(
                f"`{shown}` uses a part of regular expressions that is not supported ({reason}). "
                "Lookarounds and backreferences are not; use a glob, or several patterns."
            ) from None
        raise SondeError(f"`{shown}` is not a regular expression: {reason}.") from None
    listed: list[bool] = found.to_pylist()
    return listed


def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a glob stands for a name."""
    expression = re.compile(translate(pattern))
    return lambda name: expression.match(name[:_MAX_TEXT]) is not None


def components_match(
    parts: Sequence[str], names: Sequence[str], matches: Callable[[str, str], bool]
) -> bool:
    """Whether components of a pattern stand for those of a name; `**` for any number of them.

    One row of a table at a time, so that many `**` cost their number times that of the names.
    """
    reached = [True] + [False] * len(names)  # whether the parts so far stand for the first n names
    for part in parts:
        if part == ANY_DEPTH:
            first = next((n for n, found in enumerate(reached) if found), len(reached))
            reached = [n >= first for n in range(len(reached))]
        else:
            reached = [False] + [reached[n] and matches(part, name) for n, name in enumerate(names)]
        if not any(reached):
            return False
    return reached[-1]


def nearest(text: str, names: Iterable[str], n: int = 5, cutoff: float = 0.5) -> list[str]:
    """The names that look most like the text; `*` and `?` in it are left out of the comparison."""
    known = [name[:200] for name in list(dict.fromkeys(names))[:_COMPARED] if name]
    plain = text.removeprefix(EXPRESSION)[:200]
    found = difflib.get_close_matches(plain, known, n, cutoff)
    bare = re.sub(r"[*?\[\]^$()\\]", "", plain).strip(".")
    if not found and bare:
        found = difflib.get_close_matches(bare, known, n, cutoff)
        found = found or [name for name in known if bare in name][:n]
    return found


def _plain(text: str) -> str:
    """What UTF-8 can hold: a file system may hand out halves of surrogate pairs."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
