"""Limits and notes: what a drawing leaves out has to be said beside it."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.views.numbers.columns import Grid
from sonde.views.specs import Bounds

NO_BOUNDS: Final = Bounds(None, None, None, None, None, 0.0, 0.0)

AGGREGATES: Final = {
    "max_abs": "max |x|",
    "max": "maximum",
    "min": "minimum",
    "mean": "mean",
    "last": "last value",
}

FROZEN: Final = "blank = unchanged: frozen parameters are recorded when they change"


def bounds(values: NDArray[np.floating]) -> Bounds:
    """Robust limits (1 % to 99 % of the finite values) with the true extremes beside them."""
    finite = values[np.isfinite(values)].astype(np.float64)
    if finite.size == 0:
        return NO_BOUNDS
    if finite.size > 200_000:  # the percentiles of every k-th value are as good to draw with
        sample = finite[:: finite.size // 100_000]
    else:
        sample = finite
    low, high = (float(x) for x in np.percentile(sample, [1, 99]))
    least, most = float(finite.min()), float(finite.max())
    if not low < high:  # nearly all are one value: then nothing is an outlier
        low, high = least, most
    positive = finite[finite > 0]
    return Bounds(
        low=low,
        high=high,
        min=least,
        max=most,
        least_positive=float(positive.min()) if positive.size else None,
        low_share=float((finite < low).mean()),
        high_share=float((finite > high).mean()),
    )


def step_notes(
    grid: Grid, aggregate: str | None, rank: int | None, phase: str = "", kind: str = ""
) -> list[str]:
    """How many steps are behind a drawing, and what became of those that share a column.

    With `phase` and `kind` the note says which steps it counts: a run may have more of them.
    """
    notes = []
    if len(grid.steps) and grid.from_step is None:
        first, last = int(grid.steps[0]), int(grid.steps[-1])
        counted = f"{grid.recorded:,} {phase} {'step' if grid.recorded == 1 else 'steps'}"
        counted = " ".join(f"{counted} {f'with {kind}' if kind else ''}".split())
        is_sparse = grid.recorded <= last - first
        notes.append(f"{counted}, from {first:,} to {last:,}" if is_sparse else counted)
    if grid.stride > 1:
        how = f", {AGGREGATES.get(aggregate, aggregate)}" if aggregate else ""
        notes.append(f"each column = {grid.stride:,} steps{how}")
    if rank is not None:
        notes.append(f"rank {rank}")
    return notes
