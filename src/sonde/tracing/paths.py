"""Paths: how a person names a variable inside a model.

    forward                   what the model's forward returns
    forward.x                 an argument or local variable of it
    encoder.1                 what that module returns
    layers.*.attn.forward.q   `*` stands for any one component
    **.forward                `**` for any number of them
    forward.d.key.0.name      into dicts, lists and objects
    forward.return.0          into what a method returns
    forward.q@grad            the gradient of it

A dot that belongs to a name is written `\\.`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sonde._errors import SondeError

GRAD: Final = "@grad"
RETURN: Final = "return"
"""In the place of a variable: what the method returns. No variable can have that name."""

ANY_DEPTH: Final = "**"
_SPLIT: Final = re.compile(r"(?<!\\)\.")
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Path:
    """A path as it was asked for."""

    text: str
    parts: tuple[str, ...]
    is_grad: bool = False
    is_any: bool = False
    """Whether it ends in a wildcard, which stands for values and not for modules."""


def parse(text: object) -> Path:
    """The path, or an error that says what is wrong with it."""
    if not isinstance(text, str):
        raise SondeError(f"A path must be a string such as `forward.x`, got {text!r}.")
    plain = text.removesuffix(GRAD)
    if "@" in plain:
        raise SondeError(
            f"`{text}` has a `@` inside. Only `{GRAD}` at the end means something: the gradient."
        )
    parts = split(plain)
    if not all(parts):
        raise SondeError(
            f"`{text}` has an empty component. Paths look like `forward.x` or `encoder.1`."
        )
    return Path(text, parts, is_grad=plain != text, is_any=is_wild(parts[-1]))


def under(name: str, *parts: str) -> str:
    """The name of a place below another, `""` being the root."""
    more = [part.replace(".", "\\.") for part in parts]
    return ".".join([name, *more] if name else more)


def split(name: str) -> tuple[str, ...]:
    """The components of a name."""
    return tuple(part.replace("\\.", ".") for part in _SPLIT.split(name))


def is_wild(part: str) -> bool:
    return "*" in part


def matches(part: str, name: str) -> bool:
    """Whether a component stands for that name. A `*` inside it stands for any characters."""
    if "*" not in part:
        return part == name
    return part == "*" or _pattern(part).fullmatch(name) is not None


def name_matches(parts: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a whole pattern stands for a whole name, both in components."""
    if not parts:
        return not names
    if parts[0] == ANY_DEPTH:
        return any(name_matches(parts[1:], names[n:]) for n in range(len(names) + 1))
    return bool(names) and matches(parts[0], names[0]) and name_matches(parts[1:], names[1:])


def nearest(text: str, known: Iterable[str]) -> list[str]:
    """The names that look most like the one given."""
    candidates = list(dict.fromkeys(known))
    found = difflib.get_close_matches(text, candidates, _SHOWN, cutoff=0.5)
    if not found:
        found = [name for name in candidates if split(name)[-1] == split(text)[-1]][:_SHOWN]
    return found


def suggestion(text: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest, or nothing."""
    found = nearest(text, known)
    if not found:
        return ""
    return f" The nearest {'name is' if len(found) == 1 else 'names are'} {quoted(found)}."


def quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@lru_cache(maxsize=512)
def _pattern(part: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece) for piece in part.split("*")), re.DOTALL)
