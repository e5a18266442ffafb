"""Tensors inside nested values, each with its path: `0`, `1.key`, `logits`.

Tuples, lists, named tuples, dicts (and so `ModelOutput`), dataclasses. Anything else that is not a
tensor is passed over: numbers, None, strings, objects of the model's own. Written without
generators and identities, so that a compiler can trace it.
"""

from __future__ import annotations

import dataclasses
from typing import Final, TypeVar

T = TypeVar("T")

MAX_DEPTH: Final = 8
"""Nesting that is followed; a container that holds itself ends here."""

_PLAIN: Final = (bool, int, float, complex, str, bytes)


def leaves(value: object, leaf: type[T], limit: int) -> list[tuple[str, T]]:
    """Each tensor in `value` with its path, at most `limit`. A tensor alone has the path `0`."""
    if isinstance(value, leaf):
        return [("0", value)]
    found: list[tuple[str, T]] = []
    _collect(value, leaf, "", found, limit, MAX_DEPTH)
    return found


def _collect(
    value: object, leaf: type[T], path: str, found: list[tuple[str, T]], limit: int, depth: int
) -> None:
    for key, item in _items(value):
        if len(found) >= limit:
            return
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(item, leaf):
            found.append((inner, item))
        elif depth > 1:
            _collect(item, leaf, inner, found, limit, depth - 1)


def _items(value: object) -> list[tuple[object, object]]:
    # First, and by type: `dataclasses.is_dataclass(None)` breaks graphs of torch 2.11 and earlier.
    if value is None or isinstance(value, _PLAIN):
        return []
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return list(zip(names, value, strict=True)) if names else list(enumerate(value))
    if isinstance(value, list):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    return []
