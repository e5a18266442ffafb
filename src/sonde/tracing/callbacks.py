"""Callbacks: what is done with values on their way, and three that are ready-made.

    before_save   (name, value, iteration) -> value               each captured value
    before_gather (name, values, iterations)                      a window of values, on each rank
    after_gather  (name, values, iterations, ranks)               a window of all ranks, on rank 0
    after_trace   (name, values, iterations, ranks)               all of it, at the end

All but the first change the lists that they are given. One that fails has done nothing: the values
stay as they were, and it is said once.
"""

# ruff: noqa: ARG001  # callbacks take what all callbacks take

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from sonde._errors import SondeError
from sonde.tracing.results import Result
from sonde.tracing.troubles import TraceTroubles

BeforeSave = Callable[[str, Any, int], object]
OnWindow = Callable[..., None]


def stack(
    name: str, values: list[object], iterations: list[int], ranks: list[int] | None = None
) -> None:
    """Put all values into one tensor, along a new first dimension. They must have one shape."""
    values[:] = [_operations().stack(values)]


def stack_padded(
    name: str, values: list[object], iterations: list[int], ranks: list[int] | None = None
) -> None:
    """Put all values into one tensor, along a new first dimension, whatever their shapes.

    A value with fewer dimensions gets leading ones of size 1; each dimension is filled up with
    zeros at its end. No values make an empty tensor.
    """
    values[:] = [_operations().stack_padded(values)]


def mean_over(*dims: int) -> OnWindow:
    """A callback that takes the mean of each value over these dimensions, or over all of them."""
    if not all(isinstance(dim, int) for dim in dims):
        raise SondeError(f"`mean_over` takes numbers of dimensions, got {dims!r}.")

    def mean(
        name: str, values: list[object], iterations: list[int], ranks: list[int] | None = None
    ) -> None:
        values[:] = [_operations().mean(value, dims) for value in values]

    return mean


def checked(callbacks: object, argument: str) -> list[Callable[..., Any]]:
    """The callbacks as a list, or an error about what is none."""
    found = [callbacks] if callable(callbacks) else callbacks
    if not isinstance(found, Iterable):
        raise SondeError(f"`{argument}` must be a list of functions, got {callbacks!r}.")
    several = list(found)
    for callback in several:
        if not callable(callback):
            raise SondeError(f"`{argument}` must hold functions, got {callback!r}.")
    return several


def run(
    callbacks: Sequence[OnWindow],
    name: str,
    result: Result,
    troubles: TraceTroubles,
    *,
    with_ranks: bool,
) -> None:
    """Let each callback change the lists of a result. What fails has changed nothing."""
    for callback in callbacks:
        values, iterations, ranks = [*result.values], [*result.iterations], [*result.ranks]
        try:
            if with_ranks:
                callback(name, values, iterations, ranks)
            else:
                callback(name, values, iterations)
        except Exception as error:
            what = getattr(callback, "__name__", type(callback).__name__)
            troubles.failed(f"{name}` in `{what}", error, raises=False)
            continue
        result.values, result.iterations, result.ranks = values, iterations, ranks


def _operations() -> ModuleType:
    from sonde.tracing.torch import operations

    return operations
