"""Numbers of a step on their way from devices to the drain."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from jax import Array
from numpy.typing import NDArray

from sonde.capture.drain import Drain, Numbers
from sonde.capture.jax.measures import Measure
from sonde.capture.numbers.recent import Recent
from sonde.capture.numbers.repeats import Value
from sonde.capture.plan import Selector
from sonde.metrics.names import Label

_STEPS: Final = 8
"""Steps whose numbers `watch.metrics` can still return."""


class _HeldNumbers(NamedTuple):
    """Numbers that wait for their step to end."""

    measures: Sequence[Measure]
    numbers: Array
    phase: str


class StepNumbers:
    """Holds the numbers of metrics until their step ends, and remembers those of a few steps."""

    def __init__(self, drain: Drain, taken: Callable[[str], bool]) -> None:
        self._drain = drain
        self._taken = taken
        self._held: list[_HeldNumbers] = []
        self._recent: Recent[str, tuple[str | None, Value]] = Recent(steps=_STEPS)

    def put(self, measures: Sequence[Measure], numbers: Array, phase: str) -> None:
        """Take the numbers of a function, without waiting for them."""
        if measures:
            numbers.copy_to_host_async()
            self._held.append(_HeldNumbers(measures, numbers, phase))

    def hand_over(self, steps: dict[str, int]) -> None:
        """Give what is held of these phases to the drain, each as of its step."""
        for phase, step in steps.items():
            held = [h for h in self._held if h.phase == phase]
            labels = list(dict.fromkeys(m.label for h in held for m in h.measures))
            labels = [label for label in labels if label.module or not self._taken(label.name)]
            if not labels:
                continue
            values = cache(_Values(held, labels))
            names, where = [x.name for x in labels], [x.module for x in labels]
            self._drain.put(Numbers(step, phase, names, where, values))
            if phase == "train":
                for i, label in enumerate(labels):
                    self._recent.put(step, label.key, (label.module, _Number(values, i)))
        self._held = [h for h in self._held if h.phase not in steps]

    # -- for `watch.metrics` -------------------------------------------------------------------

    @property
    def last_step(self) -> int:
        return self._recent.last_step

    def remember(self, step: int, name: str, value: Value) -> None:
        self._recent.put(step, name, (None, value))

    def numbers_of(self, step: int, where: Selector | None = None) -> dict[str, float]:
        return {
            name: value() if callable(value) else value
            for name, (module, value) in self._recent.of(step).items()
            if where is None or module is None or where(module, None)
        }


class _Values:
    """One number per label, once they have arrived. Calling it waits."""

    def __init__(self, held: Sequence[_HeldNumbers], labels: Sequence[Label]) -> None:
        self._held = held
        self._labels = labels

    def __call__(self) -> NDArray[np.float64]:
        parts: dict[Label, list[tuple[Measure, float]]] = {label: [] for label in self._labels}
        for held in self._held:
            found: NDArray[np.float64] = np.asarray(held.numbers, np.float64)
            for measure, (value, counts) in zip(held.measures, found.tolist(), strict=True):
                if counts and measure.label in parts:
                    parts[measure.label].append((measure, value))
        self._held = ()
        return np.array([_joined(some) for some in parts.values()])


class _Number:
    """One of the numbers, once they have arrived."""

    def __init__(self, values: Callable[[], NDArray[np.float64]], place: int) -> None:
        self._values = values
        self._place = place

    def __call__(self) -> float:
        return float(self._values()[self._place])


def _joined(parts: Sequence[tuple[Measure, float]]) -> float:
    """All that a metric returned at one place as one number; NaN if no call counts."""
    if not parts:
        return math.nan
    values = [value for _, value in parts]
    reduce = parts[0][0].reduce
    if reduce in ("min", "max"):
        if any(map(math.isnan, values)):
            return math.nan
        return min(values) if reduce == "min" else max(values)
    if reduce == "sum":
        return sum(values)
    return sum(m.size * v for m, v in parts) / sum(m.size for m, _ in parts)
