"""Extent: which axis suits the values of a window, from the quantiles of each of its columns.

A column is judged by itself, so that one step that diverged does not decide over all others: a
column whose magnitudes lie far above those of most is left to the marks at the end of the axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import Sketches
from sonde.sketch import merge_groups, row
from sonde.views.numbers import axes
from sonde.views.specs import Scale

_LOG_DECADES: Final = 4
"""A window whose magnitudes span more is drawn on a logarithmic axis, unless one is asked for."""

_LEAST_FENCE: Final = 3.0
"""Octaves above the upper quartile of all columns within which a column is never left out. An axis
of 64 cells still has 8 for the others."""

_FENCE: Final = 1.5
"""Tukey's fence, in quartile ranges of the logarithm: steady growth stays inside at any rate."""

_MOST: Final = 128
"""Columns that are judged; more are pooled first, so that a wide window costs no more."""

_FEWEST: Final = 4
"""With fewer columns none is left out."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Quantiles of the columns that hold finite values: of the values, and of their magnitudes."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    small: NDArray[np.float64]
    middle: NDArray[np.float64]
    large: NDArray[np.float64]
    largest: NDArray[np.float64]

    def scale(self) -> Scale:
        """`linear`, or `log` where magnitudes span more than four decades."""
        if not len(self.large):
            return "linear"
        span = float(np.max(self.large)) / max(float(np.min(self.middle)), math.ulp(0.0))
        return "log" if span > 10.0**_LOG_DECADES else "linear"

    def ends(self, scale: str) -> tuple[float, float]:
        """Where an axis of this scale begins and ends."""
        if scale in {"log", "exponent"}:
            if not len(self.large):
                return axes.magnitude_ends(0.0, 0.0)
            return axes.magnitude_ends(float(np.min(self.small)), float(np.max(self.largest)))
        if not len(self.low):
            return -1.0, 1.0
        return axes.signed_ends(float(np.min(self.low)), float(np.max(self.high)), scale)


def extent(columns: Sketches, mode: str) -> Extent:
    """The extent of all columns, or (`robust`) without extreme values and columns that diverged."""
    share = 0.0 if mode == "all" else axes.ROBUST
    columns = _pooled(columns)
    signed, magnitudes = [], []
    for i in range(len(columns)):
        one = row(columns, i)
        if one.finite == 0:
            continue
        signed.append(one.quantiles([share, 1 - share]))
        if one.finite > one.zeros:
            magnitudes.append(axes.magnitude_quantiles(one, [share, 0.5, 1 - share, 1.0]))
        else:
            magnitudes.append(np.full(4, np.nan))
    values = np.array(signed, np.float64).reshape(-1, 2)
    sizes = np.array(magnitudes, np.float64).reshape(-1, 4)
    if mode != "all":
        kept = _inside(sizes[:, 2])
        values, sizes = values[kept], sizes[kept]
    sizes = sizes[~np.isnan(sizes).any(axis=1)]
    return Extent(values[:, 0], values[:, 1], *sizes.T)


def _pooled(columns: Sketches) -> Sketches:
    """Neighbouring columns together, so that there are at most `_MOST`."""
    each = -(-len(columns) // _MOST)
    if each <= 1:
        return columns
    groups = np.arange(len(columns), dtype=np.int64) // each
    return merge_groups(columns, groups, int(groups[-1]) + 1)


def _inside(large: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which columns are like most others; those without magnitudes are."""
    kept = np.ones(len(large), np.bool_)
    known = large > 0
    if known.sum() < _FEWEST:
        return kept
    octaves = np.log2(large[known])
    lower, upper = np.quantile(octaves, [0.25, 0.75])
    reach = max(_FENCE * (upper - lower), _LEAST_FENCE)
    kept[known] = octaves <= upper + reach
    return kept
