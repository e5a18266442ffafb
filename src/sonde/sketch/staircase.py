"""The staircase of values under each of many sketches, and quantiles of them, without a loop.

The same numbers, to the bit, as `sonde.sketch.bins.quantiles` reads off one sketch: that is the
definition, and what this is tested against.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde.record import Sketches
from sonde.sketch.bins import EDGES, HALF, INF_BIN
from sonde.sketch.columns import cut

_ROWS_AT_ONCE: Final = 2_000
"""So many that their bins, some hundred thousand, stay in the processor's cache."""

_ENDS: Final = np.append(EDGES, np.inf)
"""Lower edge of each bin of positive numbers, that beyond float32 included; then no end at all."""


class _Stairs(NamedTuple):
    """The finite values of each sketch, from the lowest up: those below zero with a bin of their
    own, the tiny ones below zero, zeros, tiny ones above, those above zero.

    Bins lie in a row as the positive ones and then the negative ones, both from zero outward.
    `upto` counts the values in all bins of all rows up to and with each, and 0 before the first.
    """

    upto: NDArray[np.int64]
    ids: NDArray[np.int16]
    positive: NDArray[np.int64]
    """Where the bins of each row begin that are positive and not tiny; then, where they end."""
    positive_end: NDArray[np.int64]
    negative: NDArray[np.int64]
    negative_end: NDArray[np.int64]
    tiny_below: NDArray[np.float64]
    zeros: NDArray[np.float64]
    tiny_above: NDArray[np.float64]


def quantiles(s: Sketches, q: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles of each sketch, one row per sketch. Off by less than a bin: at most 25 %."""
    wanted = np.asarray(q, dtype=np.float64)
    if wanted.size and not ((wanted >= 0) & (wanted <= 1)).all():
        raise ValueError(f"Quantiles must lie between 0 and 1, got {list(q)}.")
    found = np.empty((len(s), len(wanted)))
    for first in range(0, len(s), _ROWS_AT_ONCE):
        last = min(first + _ROWS_AT_ONCE, len(s))
        found[first:last] = _quantiles(cut(s, first, last), wanted)
    return found


def _quantiles(s: Sketches, wanted: NDArray[np.float64]) -> NDArray[np.float64]:
    stairs = _stairs(s)
    low, high = s.extrema[:, 0], s.extrema[:, 1]
    below = _between(stairs.upto, stairs.negative, stairs.negative_end)
    above = _between(stairs.upto, stairs.positive, stairs.positive_end)
    middle = stairs.tiny_below + stairs.zeros + stairs.tiny_above
    total = below + middle + above
    found = np.empty((len(s), len(wanted)))
    for i, one in enumerate(wanted):
        value = _at(stairs, one * total, below, above, low, high)
        found[:, i] = low if one <= 0 else high if one >= 1 else value
    found[total == 0] = np.nan
    return found


def _at(
    stairs: _Stairs,
    rank: NDArray[np.float64],
    below: NDArray[np.float64],
    above: NDArray[np.float64],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The value of each row that so many lie at or below, linear inside its bin."""
    n = len(rank)
    left, right, before, held = (np.zeros(n) for _ in range(4))
    up_to_tiny = below + stairs.tiny_below
    up_to_zero = up_to_tiny + stairs.zeros
    up_to_above = up_to_zero + stairs.tiny_above
    tiny = EDGES[1]
    # A piece that holds nothing never has a rank: the last one with any takes what rounding left.
    for start, count, a, b in (
        (below, stairs.tiny_below, -tiny, 0.0),
        (up_to_tiny, stairs.zeros, 0.0, 0.0),
        (up_to_zero, stairs.tiny_above, 0.0, tiny),
    ):
        here = (rank > start) & (count > 0)
        left[here], right[here], before[here], held[here] = a, b, start[here], count[here]
    here = (rank <= below) & (below > 0)
    if here.any():
        # From the end of the row: the bins up to this one hold what the lower ones do not.
        rest = stairs.upto[stairs.negative_end[here]] - np.ceil(rank[here]).astype(np.int64)
        at = np.searchsorted(stairs.upto, rest, side="right") - 1
        at = np.clip(at, stairs.negative[here], stairs.negative_end[here] - 1)
        magnitude = stairs.ids[at].astype(np.int64) - HALF
        left[here], right[here] = -_ENDS[magnitude + 1], -_ENDS[magnitude]
        before[here] = stairs.upto[stairs.negative_end[here]] - stairs.upto[at + 1]
        held[here] = stairs.upto[at + 1] - stairs.upto[at]
    here = (rank > up_to_above) & (above > 0)
    if here.any():
        first = stairs.upto[stairs.positive[here]]
        target = first + np.ceil(rank[here] - up_to_above[here]).astype(np.int64)
        at = np.searchsorted(stairs.upto, target, side="left") - 1
        at = np.clip(at, stairs.positive[here], stairs.positive_end[here] - 1)
        magnitude = stairs.ids[at].astype(np.int64)
        left[here], right[here] = _ENDS[magnitude], _ENDS[magnitude + 1]
        before[here] = up_to_above[here] + (stairs.upto[at] - first)
        held[here] = stairs.upto[at + 1] - stairs.upto[at]
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.clip((rank - before) / held, 0.0, 1.0)
        left, right = np.clip(left, low, high), np.clip(right, low, high)
        return np.where(inside < 1, left + inside * (right - left), right)  # right may be lost


def _stairs(s: Sketches) -> _Stairs:
    n, ids = len(s), s.bin_ids
    counts = s.bin_counts
    starts, ends = s.offsets[:-1], s.offsets[1:]
    zeros, pos_infs, neg_infs = s.counts[:, 1], s.counts[:, 3], s.counts[:, 4]
    negative = np.zeros(len(ids) + 1, np.int64)
    np.cumsum(ids >= HALF, out=negative[1:])  # `add.reduceat` would convert each value
    middle = ends - (negative[ends] - negative[starts])
    for bin_id, infs in ((INF_BIN, pos_infs), (INF_BIN + HALF, neg_infs)):
        if infs.any():
            at = np.flatnonzero(ids == bin_id)
            counts = counts.astype(np.int64)
            counts[at] -= infs[np.searchsorted(ends, at, side="right")]
    upto = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(np.maximum(counts, 0), out=upto[1:])
    tiny = -zeros.astype(np.float64)
    places = []
    for first, last, bin_id in ((starts, middle, 0), (middle, ends, HALF)):
        has_any = first < last
        is_tiny = np.zeros(n, bool)
        is_tiny[has_any] = ids[first[has_any]] == bin_id
        tiny[is_tiny] += counts[first[is_tiny]]
        places.append(first + is_tiny)
    low, high = s.extrema[:, 0], s.extrema[:, 1]
    tiny_below = np.where(low < 0, np.where(high > 0, tiny / 2, tiny), 0.0)
    return _Stairs(
        upto,
        ids,
        places[0],
        middle,
        places[1],
        ends,
        np.maximum(tiny_below, 0.0),
        np.maximum(zeros, 0).astype(np.float64),
        np.maximum(tiny - tiny_below, 0.0),
    )


def _between(
    upto: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.float64]:
    """How much lies from `first` up to `last` of each row."""
    return (upto[last] - upto[first]).astype(np.float64)
