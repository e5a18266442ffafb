"""Scalars that are logged more than once in a step: what is recorded of them.

Each time that a name is logged again, the number of all values so far is recorded, and of numbers
of one step and name the last counts. So nothing is held back, and nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import Final

from sonde._errors import SondeError

Value = float | Callable[[], float]
"""A number, or one that may not have arrived from its device yet; calling it waits."""

_REDUCTIONS: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "last": lambda values: values[-1],
    "mean": fmean,
    "sum": sum,
    "min": min,
    "max": max,
}


class Repeats:
    """Holds the values of each name in the step that it was last logged in."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[object, tuple[Value, ...]]] = {}

    def put(self, name: str, value: Value, *, when: object, reduce: str) -> Value:
        """The number of all values of that name and time, this one included."""
        if reduce == "last":
            self._held.pop(name, None)
            return value
        before = self._held.get(name)
        values = (*before[1], value) if before is not None and before[0] == when else (value,)
        self._held[name] = (when, values)
        return partial(_reduced, values, reduce)


def check_reduce(reduce: object) -> str:
    """The name of a reduction. Raises if there is none."""
    if not isinstance(reduce, str) or reduce not in _REDUCTIONS:
        known = ", ".join(f"`{name}`" for name in _REDUCTIONS)
        raise SondeError(f"`reduce` must be one of {known}, got `{reduce}`.")
    return reduce


def _reduced(values: Sequence[Value], reduce: str) -> float:
    return float(_REDUCTIONS[reduce]([v() if callable(v) else v for v in values]))
