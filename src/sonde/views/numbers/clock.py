"""Clocks: time axes besides the step, such as epochs, tokens or seconds."""

from __future__ import annotations

from typing import Final

import numpy as np

from sonde.views.questions import ClockQuestion
from sonde.views.runs.opened_run import MAX_LABEL, NotFoundError, OpenedRun, shown
from sonde.views.specs import TimeAxis

TIME: Final = "time"
"""Seconds since the first record."""

_POINTS: Final = 2048


def answer(subject: OpenedRun, question: ClockQuestion) -> TimeAxis:
    """The value of the clock at each step. It never falls, also where a run was resumed."""
    if question.name == TIME:
        rows = subject.ask(
            "select step, min(t_ns) / 1e9 as v from (select step, t_ns from records where not "
            "replaced union all select step, t_ns from numbers where not replaced) "
            "group by step order by step"
        )
    else:
        rows = subject.ask(
            "select step, max(value) as v from scalars where name = ? and isfinite(value) "
            "group by step order by step",
            [question.name],
        )
    if rows.num_rows == 0:
        asked = shown(question.name, 80)
        raise NotFoundError(
            "not_recorded", f"No scalar `{asked}` was logged: watch.log({asked}=...)"
        )
    steps = rows["step"].to_numpy().astype(np.float64)
    values = np.maximum.accumulate(rows["v"].to_numpy().astype(np.float64))
    if question.name == TIME:
        values = values - values[0]
    if len(steps) > _POINTS:
        kept = np.unique(np.linspace(0, len(steps) - 1, _POINTS).astype(int))
        steps, values = steps[kept], values[kept]
    return TimeAxis(shown(question.name, MAX_LABEL), steps, values)
