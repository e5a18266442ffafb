"""Distances between sketches: how far values of one must move to be those of the other.

The distance is W1, the earth mover's distance, on log2|value|, for each sign by itself: values that
all double are 1 octave away. Zeros and values that are not finite stand apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import COUNTS, Sketches
from sonde.sketch import bins
from sonde.sketch.columns import cut
from sonde.sketch.statistics import dense

_BATCH: Final = 2048
F64 = NDArray[np.float64]


def _octaves() -> tuple[F64, F64]:
    """Middle and width of each finite bin on the axis of log2|value|."""
    edges = np.log2(np.maximum(bins.EDGES, 2.0**-149))
    return (edges[1:] + edges[:-1]) / 2, np.diff(edges)


_MIDDLES, _WIDTHS = _octaves()


@dataclass(frozen=True, slots=True)
class Distances:
    """Of rows of sketches, pairwise. NaN where a side has no finite value that is not zero.

    `w1` is in octaves. `shift` is the mean of log2|value| in the second less that in the first.
    `zeros` and `nonfinite` are how much more of the second's values are zero or not finite.
    """

    w1: F64
    shift: F64
    zeros: F64
    nonfinite: F64


def between(a: Sketches, b: Sketches) -> Distances:
    """The distances of row `i` of one to row `i` of the other."""
    parts = [
        _part(cut(a, start, stop), cut(b, start, stop))
        for start in range(0, len(a), _BATCH)
        for stop in (min(start + _BATCH, len(a)),)
    ]
    empty = np.empty(0)
    columns = list(zip(*parts, strict=True)) if parts else [[empty]] * 2
    w1, shift = (np.concatenate(column) for column in columns)
    return Distances(
        w1,
        shift,
        _share(b, "zeros") - _share(a, "zeros"),
        _share(b, "nans", "pos_infs", "neg_infs") - _share(a, "nans", "pos_infs", "neg_infs"),
    )


def same(a: Sketches, b: Sketches) -> NDArray[np.bool_]:
    """Whether the rows are equal in counts and extrema, and in sums but for the order of adding.

    Bins are not compared: tensors that differ in one bin differ in a sum.
    """
    sums = np.abs(a.sums - b.sums) <= 1e-12 * np.maximum(np.abs(a.sums), np.abs(b.sums))
    size = np.maximum(a.sums[:, 1], b.sums[:, 1])  # of the mean, which may cancel
    sums[:, 0] = np.abs(a.sums[:, 0] - b.sums[:, 0]) <= 1e-12 * size
    found: NDArray[np.bool_] = (
        (a.counts == b.counts).all(axis=1) & (a.extrema == b.extrema).all(axis=1) & sums.all(axis=1)
    )
    return found


def sampling_noise(a: Sketches, b: Sketches) -> F64:
    """About how far two samples of one distribution are apart, by how many values there are."""
    n = np.minimum(a.counts[:, 0], b.counts[:, 0])
    return 2.0 / np.sqrt(np.maximum(n, 1))


def _part(a: Sketches, b: Sketches) -> tuple[F64, F64]:
    one, two = dense(a), dense(b)
    for rows, of in ((one, a), (two, b)):
        rows[:, 0] -= of.counts[:, COUNTS.index("zeros")]
        rows[rows < 0] = 0
    positive = _sign(one[:, : bins.INF_BIN], two[:, : bins.INF_BIN])
    negative = _sign(*(x[:, bins.HALF : bins.HALF + bins.INF_BIN] for x in (one, two)))
    weight = positive[1] + negative[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        w1 = (positive[0] * positive[1] + negative[0] * negative[1]) / weight
        return w1, _mean(two) - _mean(one)


def _sign(one: NDArray[np.int64], two: NDArray[np.int64]) -> tuple[F64, F64]:
    """W1 of the values of one sign, and how many there are on both sides."""
    totals = one.sum(axis=1), two.sum(axis=1)
    known = (totals[0] > 0) & (totals[1] > 0)
    shares = [
        np.cumsum(x, axis=1) / np.maximum(n, 1)[:, None]
        for x, n in zip((one, two), totals, strict=True)
    ]
    moved = (np.abs(shares[0] - shares[1]) * _WIDTHS).sum(axis=1)
    return np.where(known, moved, 0.0), np.where(known, totals[0] + totals[1], 0).astype(float)


def _mean(rows: NDArray[np.int64]) -> F64:
    both = rows[:, : bins.INF_BIN] + rows[:, bins.HALF : bins.HALF + bins.INF_BIN]
    total = both.sum(axis=1)
    found: F64 = np.where(total > 0, both @ _MIDDLES, np.nan) / np.maximum(total, 1)
    return found


def _share(s: Sketches, *columns: str) -> F64:
    counts = sum(s.counts[:, COUNTS.index(c)] for c in columns)
    return np.asarray(counts / np.maximum(s.counts[:, 0], 1), np.float64)
