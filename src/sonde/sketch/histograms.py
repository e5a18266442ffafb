"""Histograms of many sketches at once, each with equal bins between its extrema.

The same counts, to rounding, as `sonde.sketch.bins.histogram` reads off one sketch: that is the
definition, and what this is tested against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import COUNTS, Sketches
from sonde.sketch.bins import EDGES, HALF, INF_BIN
from sonde.sketch.columns import cut
from sonde.sketch.model import Histogram, Sketch, equal_edges

_ROWS_AT_ONCE: Final = 256
"""So many that their dense bins take 4 MiB."""

_ZERO: Final = INF_BIN + 1
"""The place of zero among the pieces, which rise: below float32, negative bins, zero, positive
bins, beyond float32."""

_LEFT: Final = np.concatenate([[-np.inf], -EDGES[1:][::-1], [0.0], EDGES])
_RIGHT: Final = np.concatenate([-EDGES[::-1], [0.0], EDGES[1:], [np.inf]])

_ZEROS, _NANS, _POS_INFS, _NEG_INFS = (
    COUNTS.index(name) for name in ("zeros", "nans", "pos_infs", "neg_infs")
)


def equal_histograms(s: Sketches, n: int) -> list[Histogram]:
    """The histogram of each sketch with `n` equal bins between its smallest and largest value."""
    edges = equal_edges(s.extrema[:, 0], s.extrema[:, 1], n)
    counts = np.empty((len(s), n))
    for first in range(0, len(s), _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, len(s))
        counts[first:last] = _counts(cut(s, first, last), edges[first:last])
    zeros, nans = s.counts[:, _ZEROS].tolist(), s.counts[:, _NANS].tolist()
    infs = (s.counts[:, _POS_INFS] + s.counts[:, _NEG_INFS]).tolist()
    return [Histogram(edges[i], counts[i], zeros[i], nans[i], infs[i], 0.0) for i in range(len(s))]


@dataclass(frozen=True, slots=True)
class HistogramHistory:
    """Histograms of one tensor over steps, on the same edges. `counts` is steps × bins; `nans` and
    `infs` are counted beside the bins."""

    edges: NDArray[np.float64]
    steps: list[int]
    counts: NDArray[np.float64]
    nans: list[int]
    infs: list[int]


def history(sketches: Mapping[int, Sketch], n: int) -> HistogramHistory:
    """Histograms of each step with `n` equal bins between the extrema of all steps."""
    steps = sorted(sketches)
    finite = [s for s in sketches.values() if s.finite]
    low = min((s.min for s in finite), default=0.0)
    high = max((s.max for s in finite), default=0.0)
    edges = np.linspace(low, high if high > low else low + 1.0, n + 1)
    found = [sketches[step].histogram(edges) for step in steps]
    counts = np.stack([h.counts for h in found]) if found else np.zeros((0, n))
    # The largest value of all lies on the last edge, which belongs to no bin.
    for i, h in enumerate(found):
        counts[i, -1] += h.outside
    return HistogramHistory(edges, steps, counts, [h.nans for h in found], [h.infs for h in found])


def _counts(s: Sketches, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values between the edges of each row: what lies below each edge, less what is below the one
    before."""
    held = _pieces(s)
    upto = np.zeros((len(held), held.shape[1] + 1))
    np.cumsum(held, axis=1, out=upto[:, 1:])
    at = _piece_of(edges)
    rows = np.arange(len(held))[:, None]
    low, high = s.extrema[:, :1], s.extrema[:, 1:2]
    left, right = np.clip(_LEFT[at], low, high), np.clip(_RIGHT[at], low, high)
    with np.errstate(all="ignore"):  # rows without a finite value, differences beyond float64
        inside = np.clip((edges / 2 - left / 2) / (right / 2 - left / 2), 0.0, 1.0)
    inside = np.where(right > left, inside, edges > left)
    below = upto[rows, at] + inside * held[rows, at]
    below[:, 0], below[:, -1] = 0.0, upto[:, -1]  # edges lie at the extrema, or beyond
    return np.diff(below)


def _pieces(s: Sketches) -> NDArray[np.float64]:
    """How many finite values of each sketch lie in each piece."""
    held = np.zeros((len(s), len(_LEFT)))
    ids = s.bin_ids.astype(np.int64)
    places = np.where(ids < HALF, _ZERO + 1 + ids, _ZERO - 1 - (ids - HALF))
    held[np.repeat(np.arange(len(s)), np.diff(s.offsets)), places] = s.bin_counts
    held[:, 0] -= s.counts[:, _NEG_INFS]
    held[:, -1] -= s.counts[:, _POS_INFS]
    zeros = s.counts[:, _ZEROS]
    tiny = held[:, _ZERO - 1] + held[:, _ZERO + 1] - zeros
    low, high = s.extrema[:, 0], s.extrema[:, 1]
    tiny_below = np.where(low < 0, np.where(high > 0, tiny / 2, tiny), 0.0)
    held[:, _ZERO - 1], held[:, _ZERO], held[:, _ZERO + 1] = tiny_below, zeros, tiny - tiny_below
    return np.maximum(held, 0.0)


def _piece_of(edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """The piece that each edge lies in."""
    magnitude = np.searchsorted(EDGES, np.abs(edges), side="right") - 1
    beside = np.where(edges > 0, _ZERO + 1 + magnitude, _ZERO - 1 - magnitude)
    return np.where(edges == 0, _ZERO, beside)
