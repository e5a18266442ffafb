"""The 2048 bins: where each begins, and what can be told from how many values fell into each.

A bin is the top 11 bits of a float32: sign, 8 exponent bits, 2 mantissa bits. Four bins per octave,
the same for every tensor, step, run and machine. Everything here is exact where a question's edges
are bin edges, and says how far off it can be where they are not.

Values of float64 are binned as the float32 they round to. A finite one beyond float32 shares the
bin of infinity; how many those are is known (the infinities themselves are counted apart), and they
are taken to lie between 2**128 and the largest value seen. A non-zero one that rounds to zero is in
the lowest bin and is not counted as a zero.

Arrays of bins are dense (2048 counts) in this module; `Sketches` keeps them sparse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonde.record import N_BINS

HALF: Final = N_BINS // 2
"""Bins below are for non-negative values in rising order, from here on for negative ones, mirrored.
"""

INF_BIN: Final = 1020
"""Bin of +Inf (and of float64 values beyond float32); -Inf is `INF_BIN + HALF`. NaN has no bin."""

RELATIVE_WIDTH: Final = 0.25
"""No bin of normal numbers is wider than this share of its smallest magnitude."""

MIN_EXPONENT: Final = -129
"""Exponent column that pools all magnitudes below 2**-128 (float32 subnormals of two bits' depth).
"""

MAX_EXPONENT: Final = 128
"""Exponent column that pools all finite magnitudes beyond float32."""


class Known(NamedTuple):
    """What a sketch knows of its values besides their bins: how many are zero or infinite, and the
    smallest and largest finite one."""

    zeros: int
    pos_infs: int
    neg_infs: int
    low: float
    high: float


def _magnitudes() -> NDArray[np.float64]:
    bits = (np.arange(INF_BIN + 1, dtype=np.uint32) << 21).view(np.float32)
    edges = bits.astype(np.float64)
    edges[INF_BIN] = 2.0**128
    return edges


EDGES: Final[NDArray[np.float64]] = _magnitudes()
"""Lower magnitude edge of bins 0..1019, then the upper edge of the last: 1021 rising numbers."""

EDGES.setflags(write=False)

EXPONENTS: Final[NDArray[np.int64]] = np.concatenate(
    [[MIN_EXPONENT, -128, -127, -127], np.repeat(np.arange(-126, 128), 4)]
)
"""floor(log2|x|) of bins 0..1019."""

EXPONENTS.setflags(write=False)


def bin_of(values: ArrayLike) -> NDArray[np.int64]:
    """Bin id of each value after rounding to float32; -1 for NaN."""
    with np.errstate(over="ignore"):
        x = np.asarray(values, dtype=np.float64).astype(np.float32)
    ids = (x.view(np.uint32) >> 21).astype(np.int64)
    return np.where(np.isnan(x), -1, ids)


def magnitudes(bins: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts of both signs together, 1020 finite bins from the smallest magnitude up."""
    return bins[..., :INF_BIN] + bins[..., HALF : HALF + INF_BIN]


def beyond(bins: NDArray[np.int64], known: Known) -> tuple[int, int]:
    """How many finite values lie beyond float32, above and below. Only float64 has any."""
    above = int(bins[INF_BIN]) - known.pos_infs
    return above, int(bins[INF_BIN + HALF]) - known.neg_infs


def exponent_counts(
    bins: NDArray[np.int64], known: Known
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Column n counts 2**n <= |x| < 2**(n+1); zeros and infinities are left out. Exact.

    Returns the exponents and the counts. The outermost columns are pools: -129 stands for
    everything below 2**-128, 128 for everything finite from 2**128 up.
    """
    both = magnitudes(bins)
    both[0] -= known.zeros
    exponents = np.arange(MIN_EXPONENT, MAX_EXPONENT + 1)
    counts = np.zeros(len(exponents), dtype=np.int64)
    np.add.at(counts, EXPONENTS - MIN_EXPONENT, both)
    counts[-1] = sum(beyond(bins, known))
    return exponents, counts


def below(bins: NDArray[np.int64], zeros: int, threshold: float) -> int:
    """How many non-zero values are smaller in magnitude than `threshold`, a bin edge.

    A threshold inside a bin counts the whole bin.
    """
    whole = int(np.searchsorted(EDGES, threshold, side="left"))
    return int(magnitudes(bins)[:whole].sum()) - zeros if whole else 0


def at_least(bins: NDArray[np.int64], threshold: float) -> int:
    """How many finite values have a magnitude in bins that begin at `threshold` or above, and not
    beyond float32."""
    first = int(np.searchsorted(EDGES, threshold, side="left"))
    return int(magnitudes(bins)[first:].sum())


def pieces(
    bins: NDArray[np.int64], known: Known
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The finite values as a rising staircase: lower edge, upper edge and count of each piece.

    Zero is a piece of no width. The outermost pieces are cut to the smallest and largest finite
    value, so nothing is claimed outside what was seen.
    """
    low, high = known.low, known.high
    negative = bins[HALF : HALF + INF_BIN].astype(np.float64)
    positive = bins[:INF_BIN].astype(np.float64)
    tiny = negative[0] + positive[0] - known.zeros
    negative[0] = tiny / 2 if low < 0 < high else (tiny if low < 0 else 0.0)
    positive[0] = tiny - negative[0]
    above, under = beyond(bins, known)
    end = EDGES[-1]
    left = np.concatenate([[-np.inf], -EDGES[1:][::-1], [0.0], EDGES[:-1], [end]])
    right = np.concatenate([[-end], -EDGES[:-1][::-1], [0.0], EDGES[1:], [np.inf]])
    counts = np.concatenate([[under], negative[::-1], [known.zeros], positive, [above]])
    kept = counts > 0
    left, right, counts = left[kept], right[kept], counts[kept]
    if len(left):
        np.clip(left, low, high, out=left)
        np.clip(right, low, high, out=right)
    return left, right, counts


def _unit(x: NDArray[np.float64]) -> float:
    """A power of two that takes values far below 1 near it. Multiplying with it is exact."""
    largest = float(np.abs(x).max())
    return 2.0 ** min(-int(np.frexp(largest)[1]), 1000) if 0 < largest < 1e-200 else 1.0


def quantiles(bins: NDArray[np.int64], known: Known, q: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles of the finite values, linear inside a bin; NaN when there are none.

    The order statistic of rank ceil(q * n) lies in the bin that is read off, so the answer is off
    by less than that bin's width: at most 25 % of its magnitude (below 2**-126: 2**-127 at most).
    q = 0 and q = 1 are exact.
    """
    left, right, counts = pieces(bins, known)
    wanted = np.asarray(q, dtype=np.float64)
    if wanted.size and not ((wanted >= 0) & (wanted <= 1)).all():
        raise ValueError(f"Quantiles must lie between 0 and 1, got {list(q)}.")
    total = counts.sum()
    if total == 0:
        return np.full(wanted.shape, np.nan)
    upto = np.cumsum(counts)
    rank = wanted * total
    at = np.minimum(np.searchsorted(upto, rank, side="left"), len(counts) - 1)
    inside = np.clip((rank - (upto[at] - counts[at])) / counts[at], 0.0, 1.0)
    # At the end of a piece of many magnitudes, adding the difference would lose `right`.
    found = np.where(inside < 1, left[at] + inside * (right[at] - left[at]), right[at])
    return np.where(wanted <= 0, known.low, np.where(wanted >= 1, known.high, found))


def histogram(
    bins: NDArray[np.int64], known: Known, edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Finite values in each of the intervals [edges[i], edges[i + 1]), the last one closed.

    Values are spread evenly over the bin they fell in, so counts can be fractional; where an edge
    is a bin edge the split is exact. What lies outside the edges is not counted.
    """
    left, right, counts = pieces(bins, known)
    points = left == right
    result = np.zeros(len(edges) - 1)
    if points.any():
        at = np.searchsorted(edges, left[points], side="right") - 1
        at = np.where(left[points] == edges[-1], len(result) - 1, at)
        inside = (at >= 0) & (at < len(result))
        np.add.at(result, at[inside], counts[points][inside])
    spread = ~points
    if spread.any():
        a, b, c = left[spread], right[spread], counts[spread]
        # Pieces rise without overlapping, so the share below each edge is one interpolation
        # of the running count; gaps between pieces hold nothing and interpolate flat.
        x = np.column_stack([a, b]).ravel()
        running = np.concatenate([[0.0], np.cumsum(c)])
        y = np.column_stack([running[:-1], running[1:]]).ravel()
        unit = _unit(x)  # slopes of pieces narrower than that are beyond float64
        result += np.diff(np.interp(edges * unit, x * unit, y))
    return result
