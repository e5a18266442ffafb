"""The time axis of figures: steps, or another clock such as epochs, tokens or seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from sonde.plot.source import ask
from sonde.views.numbers.clock import TIME
from sonde.views.questions import ClockQuestion
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.specs import F64, Columns, TimeAxis

_UNITS: Final = ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (0.0, 1.0, "s"))
"""Seconds from which wall time has another unit, the seconds of that unit, and its name."""


@dataclass(frozen=True, slots=True)
class FigureClock:
    """What stands for a step on the x axis of a figure."""

    label: str = "step"
    steps: F64 | None = None
    values: F64 | None = None

    @staticmethod
    def of(run: OpenedRun, axis: str | None) -> FigureClock:
        """Steps for None; else "time" or a logged scalar, as on the page."""
        if axis is None:
            return FigureClock()
        found: TimeAxis = ask(run, "clock", ClockQuestion(run="run", name=axis))
        if axis != TIME:
            return FigureClock(found.name, found.steps, found.values)
        longest = float(found.values[-1])
        seconds, unit = next((s, u) for least, s, u in _UNITS if longest >= least)
        return FigureClock(f"wall time ({unit})", found.steps, found.values / seconds)

    def at(self, steps: F64) -> F64:
        """Where steps stand: between two known ones in proportion."""
        if self.steps is None or self.values is None:
            return steps
        return np.interp(steps, self.steps, self.values)

    def middles(self, columns: Columns) -> F64:
        """Where the columns of a spec stand."""
        return self.at((columns.first + columns.last) / 2)

    def edges(self, columns: Columns) -> F64:
        """Where columns begin and end: half way between the steps of neighbours."""
        if len(columns.first) == 0:
            return np.array([0.0, 1.0])
        first, last = self.at(columns.first), self.at(columns.last)
        if len(first) == 1:
            return np.array([first[0] - 0.5, last[0] + 0.5])
        inner = self.at((columns.last[:-1] + columns.first[1:]) / 2)
        start, end = first[0] - (inner[0] - last[0]), last[-1] + (first[-1] - inner[-1])
        return np.concatenate([[start], inner, [end]])


STEPS: Final = FigureClock()
