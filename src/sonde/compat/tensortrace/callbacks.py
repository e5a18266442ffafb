"""Callbacks of both interfaces: `(name, values, iterations, ranks)`, which change lists, and
`(name, result)`, which change the fields of a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sonde.tracing.callbacks import OnWindow, stack, stack_padded


@dataclass(slots=True)
class GlobalVariableResult:
    """The values of a variable, with the iteration and the rank of each. `Any`: what it held."""

    iterations: list[int] = field(default_factory=list)
    ranks: list[int] | None = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def __iter__(self) -> Iterator[list[Any] | None]:
        return iter((self.iterations, self.ranks, self.values))


def stack_tensors(
    name: str,
    values: list[Any] | GlobalVariableResult,
    iterations: list[int] | None = None,
    ranks: list[int] | None = None,
) -> None:
    """Make one tensor of all, along a new first dimension. They must have one shape."""
    stack(name, _values(values), iterations or [], ranks)


def stack_padded_tensors(
    name: str,
    values: list[Any] | GlobalVariableResult,
    iterations: list[int] | None = None,
    ranks: list[int] | None = None,
) -> None:
    """Make one tensor of all, filled up with zeros at the end of each dimension."""
    stack_padded(name, _values(values), iterations or [], ranks)


def on_lists(callback: Callable[..., object]) -> OnWindow:
    """The callback as one that changes lists, whichever of the two it is."""
    try:
        inspect.signature(callback).bind("", [], [])
    except TypeError:
        pass
    else:
        return callback  # type: ignore[return-value]  # what it returns is not used
    try:
        inspect.signature(callback).bind("", [], [], [])
    except TypeError:
        return _of_result(callback)
    return callback  # type: ignore[return-value]  # likewise


def _of_result(callback: Callable[..., object]) -> OnWindow:
    def change(
        name: str, values: list[Any], iterations: list[int], ranks: list[int] | None = None
    ) -> None:
        result = GlobalVariableResult([*iterations], None if ranks is None else [*ranks], [*values])
        callback(name, result)
        values[:], iterations[:] = result.values or [], result.iterations or []
        if ranks is not None:
            ranks[:] = result.ranks or []

    return change


def _values(given: list[Any] | GlobalVariableResult) -> list[Any]:
    return given.values if isinstance(given, GlobalVariableResult) else given
