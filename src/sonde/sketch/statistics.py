"""Named statistics of many sketches at once: columns in, one number per sketch out.

Every name works on `Sketches` of any length without a Python loop over rows. NaN means that there
is nothing to say (no finite value; one value for a variance). Values that are NaN or infinite are
counted (`nans`, `infs`) and otherwise left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import COUNTS, EXTREMA, N_BINS, SUMS, Sketches
from sonde.sketch import bins as _bins
from sonde.sketch.staircase import quantiles

Statistic = Callable[[Sketches], NDArray[np.float64]]


def statistic(name: str) -> Statistic:
    """The statistic of that name: one of `NAMES`, or a quantile such as `p50` or `p99.9`."""
    found = _STATISTICS.get(name)
    if found is not None:
        return found
    quantile = _quantile_of(name)
    if quantile is None:
        known = ", ".join(NAMES)
        raise ValueError(
            f"Unknown statistic `{name}`. Known are: {known}; and quantiles such as `p99.9`."
        )
    return lambda s: quantiles(s, [quantile])[:, 0]


def needs_bins(name: str) -> bool:
    """Whether the statistic reads the bins (true) or the counts, sums and extrema alone."""
    statistic(name)
    return name not in _STATISTICS or name == "rm8"


def known(s: Sketches, i: int) -> _bins.Known:
    """What row `i` knows of its values besides their bins."""
    _, zeros, _, pos_infs, neg_infs, _ = s.counts[i].tolist()
    low, high, _ = s.extrema[i].tolist()
    return _bins.Known(zeros, pos_infs, neg_infs, low, high)


def dense(s: Sketches) -> NDArray[np.int64]:
    """All bins, one row of 2048 per sketch."""
    table = np.zeros((len(s), N_BINS), dtype=np.int64)
    rows = np.repeat(np.arange(len(s)), np.diff(s.offsets))
    table[rows, s.bin_ids] = s.bin_counts
    return table


def _quantile_of(name: str) -> float | None:
    if name == "median":
        return 0.5
    try:
        percent = float(name.removeprefix("p")) if name.startswith("p") else -1.0
    except ValueError:
        return None
    return percent / 100 if 0 <= percent <= 100 else None


def _count(name: str) -> Statistic:
    column = COUNTS.index(name)
    return lambda s: s.counts[:, column].astype(np.float64)


def _sum(name: str) -> Statistic:
    column = SUMS.index(name)
    return lambda s: np.where(_finite(s) > 0, s.sums[:, column], np.nan)


def _extremum(name: str) -> Statistic:
    column = EXTREMA.index(name)

    def read(s: Sketches) -> NDArray[np.float64]:
        value: NDArray[np.float64] = s.extrema[:, column]
        return np.where(np.isfinite(value), value, np.nan)

    return read


def _finite(s: Sketches) -> NDArray[np.float64]:
    bad: NDArray[np.int64] = s.counts[:, 2:5].sum(axis=1)
    return np.subtract(s.counts[:, 0], bad, dtype=np.float64)


def _mean_of(column: str) -> Statistic:
    at = SUMS.index(column)

    def read(s: Sketches) -> NDArray[np.float64]:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.divide(s.sums[:, at], np.where(_finite(s) > 0, _finite(s), np.nan))

    return read


def _var(s: Sketches) -> NDArray[np.float64]:
    n = _finite(s)
    n_or_nan = np.where(n > 1, n, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        centred = s.sums[:, 2] - s.sums[:, 0] * (s.sums[:, 0] / n_or_nan)
    var: NDArray[np.float64] = np.maximum(centred, 0.0) / (n_or_nan - 1)
    return var


def _max_abs(s: Sketches) -> NDArray[np.float64]:
    found = np.maximum(np.abs(s.extrema[:, 0]), np.abs(s.extrema[:, 1]))
    return np.where(_finite(s) > 0, found, np.nan)


def _share(*columns: str) -> Statistic:
    at = [COUNTS.index(c) for c in columns]

    def read(s: Sketches) -> NDArray[np.float64]:
        count = s.counts[:, 0].astype(np.float64)
        hits: NDArray[np.int64] = s.counts[:, at].sum(axis=1)
        share: NDArray[np.float64] = hits / np.where(count > 0, count, np.nan)
        return share

    return read


def _rm8(s: Sketches) -> NDArray[np.float64]:
    """Eighth root of the mean eighth power, from the bins.

    Each bin gives the mean of x**8 over its width. Normal numbers are known to a quarter of an
    octave, so the root is between 9 % too low and 15 % too high, and far closer where values are
    spread evenly inside of bins. It is kept between `rm4` and `max_abs`, which bound it.
    """
    largest = _max_abs(s)
    scale = np.where(largest > 0, largest, 1.0)
    rows = np.repeat(np.arange(len(s)), np.diff(s.offsets))
    ids = s.bin_ids.astype(np.int64)
    held = s.bin_counts.astype(np.float64)
    held -= np.where(ids == _bins.INF_BIN, s.counts[rows, 3], 0)
    held -= np.where(ids == _bins.INF_BIN + _bins.HALF, s.counts[rows, 4], 0)
    ids &= _bins.HALF - 1
    edges = np.append(_bins.EDGES, np.inf)
    a, b = (np.minimum(edges[ids + i] / scale[rows], 1.0) for i in (0, 1))
    # Mean of x**8 on [a, b], written as a sum of products so that nothing cancels.
    power = sum(a**i * b ** (8 - i) for i in range(9)) / 9
    total = np.bincount(rows, weights=power * held, minlength=len(s))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = scale * (total / np.where(_finite(s) > 0, _finite(s), np.nan)) ** 0.125
    return np.clip(found, np.minimum(_STATISTICS["rm4"](s), largest), largest)


_STATISTICS: Final[dict[str, Statistic]] = {
    "mean": _mean_of("sum"),
    "std": lambda s: np.sqrt(_var(s)),
    "var": _var,
    "norm": lambda s: np.sqrt(_sum("sum_sq")(s)),
    "rms": lambda s: np.sqrt(_mean_of("sum_sq")(s)),
    "rm2": lambda s: np.sqrt(_mean_of("sum_sq")(s)),
    "rm4": lambda s: _mean_of("sum_4")(s) ** 0.25,
    "rm8": _rm8,
    "min": _extremum("min"),
    "max": _extremum("max"),
    "abs_mean": _mean_of("sum_abs"),
    "min_abs": _extremum("min_abs"),
    "max_abs": _max_abs,
    "sparsity": _share("zeros"),
    "nonfinite": _share("nans", "pos_infs", "neg_infs"),
    "infs": lambda s: s.counts[:, 3:5].sum(axis=1).astype(np.float64),
    **{name: _count(name) for name in COUNTS},
    **{name: _sum(name) for name in SUMS},
}

NAMES: Final[tuple[str, ...]] = tuple(_STATISTICS)
"""Every statistic with a name of its own; quantiles (`p50`, `median`) come on top."""
