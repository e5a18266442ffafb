"""Looking inside a value: along keys, indices and attributes, with wildcards.

What a tensor or a module holds is the business of a framework, see `Nature`. Properties of objects
are asked for only by name, never by a wildcard: they are code of the user's.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from sonde.tracing.paths import ANY_DEPTH, is_wild, matches

MAX_DEPTH: Final = 8
MAX_ITEMS: Final = 10_000

Inside = tuple[tuple[str, ...], object]
"""The way to a value, and the value."""

T = TypeVar("T")

_MISSING: Final = object()
_PLAIN: Final = (str, bytes, bytearray, int, float, complex, type(None))


class ValueAccess(Protocol):
    """What a framework knows about the contents of its own values."""

    def is_tensor(self, value: object) -> bool: ...

    def is_module(self, value: object) -> bool:
        """Whether it is a part of the model, and so no value by itself."""

    def items(self, value: object) -> list[tuple[str, object]] | None:
        """What a wildcard stands for in such a value; None if it is none of the framework's."""

    def member(self, value: object, name: str) -> tuple[object] | None:
        """The part of that name, in a tuple; None if it is none of the framework's."""


def look(value: object, parts: Sequence[str], insight: ValueAccess) -> Iterator[Inside]:
    """All that `parts` stand for inside the value."""
    yield from _look(value, tuple(parts), (), insight, MAX_DEPTH)


def keys_of(value: object, insight: ValueAccess) -> list[str]:
    """What can be asked for inside a value, as far as it can be listed."""
    return [key for key, _ in _items(value, insight)]


def _look(
    value: object, parts: tuple[str, ...], way: tuple[str, ...], insight: ValueAccess, depth: int
) -> Iterator[Inside]:
    if not parts:
        yield way, value
        return
    first, rest = parts[0], parts[1:]
    if first == ANY_DEPTH:
        yield from _any_depth(value, rest, way, insight, depth)
    elif is_wild(first):
        for key, item in _items(value, insight):
            if matches(first, key) and (rest or not insight.is_module(item)):
                yield from _look(item, rest, (*way, key), insight, depth)
    else:
        item = _member(value, first, insight)
        if item is not _MISSING:
            yield from _look(item, rest, (*way, first), insight, depth)


def _any_depth(
    value: object, rest: tuple[str, ...], way: tuple[str, ...], insight: ValueAccess, depth: int
) -> Iterator[Inside]:
    """At the end of a path `**` stands for everything that has nothing inside."""
    items = _items(value, insight) if depth and not insight.is_tensor(value) else []
    if rest:
        yield from _look(value, rest, way, insight, depth)
    elif not items and not insight.is_module(value):
        yield way, value
    for key, item in items:
        yield from _any_depth(item, rest, (*way, key), insight, depth - 1)


def _member(value: object, name: str, insight: ValueAccess) -> object:
    known = insight.member(value, name)
    if known is not None:
        return known[0]
    if isinstance(value, Mapping):
        if name in value:
            return value[name]
        return next((v for k, v in _few(value.items()) if str(k) == name), _MISSING)
    if isinstance(value, list | tuple):
        if name.lstrip("-").isdecimal():
            index = int(name)
            return value[index] if -len(value) <= index < len(value) else _MISSING
        if name not in getattr(value, "_fields", ()):
            return _MISSING
    if isinstance(value, _PLAIN):
        return _MISSING
    found = getattr(value, name, _MISSING)
    return _MISSING if inspect.isroutine(found) else found


def _items(value: object, insight: ValueAccess) -> list[tuple[str, object]]:
    found = insight.items(value)
    if found is not None:
        return found
    if isinstance(value, Mapping):
        return [(str(k), v) for k, v in _few(value.items())]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=False))
    if isinstance(value, list | tuple):
        return [(str(i), v) for i, v in _few(enumerate(value))]
    return [(n, v) for n, v in fields_of(value).items() if not n.startswith("_")]


def fields_of(value: object) -> dict[str, object]:
    """The attributes that an object holds itself."""
    if isinstance(value, type) or inspect.isroutine(value) or inspect.ismodule(value):
        return {}
    if dataclasses.is_dataclass(value):
        names: Sequence[str] = [f.name for f in dataclasses.fields(value)]
        return {n: getattr(value, n) for n in names if hasattr(value, n)}
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.setdefault(name, getattr(value, name))
    return found


def _few(items: Iterable[T]) -> Iterator[T]:
    for n, item in enumerate(items):
        if n >= MAX_ITEMS:
            return
        yield item
