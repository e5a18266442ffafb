"""The sketch: a small summary of a tensor that merges exactly, and all that is read off it.

    whole = sketch_of_first_half.merge(sketch_of_second_half)
    whole.mean, whole.rms, whole.quantile(0.99)
    whole.histogram(edges)          # on any edges, chosen afterwards
    whole.loss("float8_e4m3fn")     # what would fp8 lose here?

Counts, extrema and bins merge to the bit; sums to float64 rounding. A sketch is a value: nothing
changes it. Making one from a tensor is the business of `sonde.kernels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonde.record import COUNTS, EXTREMA, N_BINS, SUMS, Sketches
from sonde.sketch import bins as _bins
from sonde.sketch import formats as _formats
from sonde.sketch import markup as _markup
from sonde.sketch import statistics as _statistics
from sonde.sketch.columns import from_dense

_LARGEST: Final = float(np.finfo(np.float64).max)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts between edges: `counts[i]` values lie in [edges[i], edges[i + 1]).

    `zeros` are also inside `counts`; `nans` and `infs` are not. `outside` finite values lie beyond
    the edges.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.float64]
    zeros: int
    nans: int
    infs: int
    outside: float

    def _repr_html_(self) -> str:
        return _markup.of_histogram(self)


@dataclass(frozen=True, slots=True)
class Exponents:
    """Values by power of two: `counts[i]` values have 2**exponents[i] <= |x| < 2**(exponents[i] +
    1).

    Zeros, NaN and infinities stand apart. Exponent -129 pools all magnitudes below 2**-128 and 128
    all finite ones from 2**128 up, which only float64 has. Exponents of float64 are those of the
    float32 that a value rounds to.
    """

    exponents: NDArray[np.int64]
    counts: NDArray[np.int64]
    zeros: int
    nans: int
    pos_infs: int
    neg_infs: int

    def _repr_html_(self) -> str:
        return _markup.of_exponents(self)


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """Summary of all values seen at a site: counts, sums, extrema and 2048 bins."""

    count: int
    zeros: int
    nans: int
    pos_infs: int
    neg_infs: int
    subnormals: int
    sum: float
    sum_abs: float
    sum_sq: float
    sum_4: float
    min: float
    max: float
    min_abs: float
    bins: NDArray[np.int64]

    def __post_init__(self) -> None:
        self.bins.setflags(write=False)

    @staticmethod
    def empty() -> Sketch:
        """The sketch of no values: the identity of `merge`."""
        return _EMPTY

    @staticmethod
    def merged(sketches: Iterable[Sketch]) -> Sketch:
        """All of them together; the empty sketch if there are none."""
        return reduce(Sketch.merge, sketches, _EMPTY)

    def merge(self, other: Sketch) -> Sketch:
        """Sketch of both samples, as if they had been seen together."""
        return _build(
            {n: getattr(self, n) + getattr(other, n) for n in COUNTS},
            {
                **{n: getattr(self, n) + getattr(other, n) for n in SUMS},
                "min": min(self.min, other.min),
                "max": max(self.max, other.max),
                "min_abs": min(self.min_abs, other.min_abs),
            },
            self.bins + other.bins,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        scalars = all(getattr(self, n) == getattr(other, n) for n in (*COUNTS, *SUMS, *EXTREMA))
        return scalars and np.array_equal(self.bins, other.bins)

    __hash__ = None  # type: ignore[assignment]  # holds an array; compare, do not hash

    def _repr_html_(self) -> str:
        return _markup.of_sketch(self)

    def __repr__(self) -> str:
        if self.finite == 0:
            return f"Sketch(count={self.count}, nans={self.nans}, infs={self.infs})"
        text = f"Sketch(count={self.count}, mean={self.mean:.4g}, std={self.std:.4g}"
        text += f", min={self.min:.4g}, max={self.max:.4g}"
        bad = self.nans + self.infs
        return f"{text}, nonfinite={bad})" if bad else f"{text})"

    # -- read off ------------------------------------------------------------------------------

    @property
    def finite(self) -> int:
        """How many values are neither NaN nor infinite."""
        return self.count - self.nans - self.infs

    @property
    def infs(self) -> int:
        return self.pos_infs + self.neg_infs

    @property
    def mean(self) -> float:
        return self.stat("mean")

    @property
    def std(self) -> float:
        """Unbiased standard deviation; NaN below two values.

        From float64 sums, so digits are lost when |mean| is far above std: about
        1e-16 * (mean / std)**2 relative.
        """
        return self.stat("std")

    @property
    def var(self) -> float:
        return self.stat("var")

    @property
    def norm(self) -> float:
        """L2 norm of the finite values."""
        return self.stat("norm")

    @property
    def rms(self) -> float:
        return self.stat("rms")

    @property
    def rm4(self) -> float:
        return self.stat("rm4")

    @property
    def rm8(self) -> float:
        """Eighth root of the mean eighth power, from the bins: within 15 %."""
        return self.stat("rm8")

    @property
    def abs_mean(self) -> float:
        return self.stat("abs_mean")

    @property
    def max_abs(self) -> float:
        return self.stat("max_abs")

    @property
    def sparsity(self) -> float:
        """Share of exact zeros."""
        return self.stat("sparsity")

    def stat(self, name: str) -> float:
        """Any statistic by name, as in `run.stats(stat=...)`."""
        return float(_statistics.statistic(name)(self.columns())[0])

    def quantile(self, q: float) -> float:
        """Value below which a share `q` of the finite values lies; off by less than a bin."""
        return float(self.quantiles([q])[0])

    def quantiles(self, q: Sequence[float]) -> NDArray[np.float64]:
        return _bins.quantiles(self.bins, self._known, q)

    def histogram(self, edges: ArrayLike | int = 50) -> Histogram:
        """Counts on any edges; a number asks for that many equal bins between min and max."""
        is_number = isinstance(edges, int | np.integer)
        asked = self._equal_edges(int(edges)) if is_number else _checked_edges(edges)  # type: ignore[arg-type]
        counts = _bins.histogram(self.bins, self._known, asked)
        outside = max(self.finite - float(counts.sum()), 0.0)
        return Histogram(asked, counts, self.zeros, self.nans, self.infs, outside)

    def exponents(self) -> Exponents:
        """Exact counts per power of two, cut to the range that holds any."""
        exponents, counts = _bins.exponent_counts(self.bins, self._known)
        held = np.flatnonzero(counts)
        cut = slice(held[0], held[-1] + 1) if len(held) else slice(0, 0)
        return Exponents(
            exponents[cut], counts[cut], self.zeros, self.nans, self.pos_infs, self.neg_infs
        )

    def loss(self, format: object, scale: float = 1.0) -> _formats.Loss:
        """Share of non-zero values that would underflow, turn subnormal or overflow in a format.

        `format` is a name in any usual spelling (`float8_e5m2`, `fp8_e5m2`, `e5m2`, `bf16`) or a
        dtype. Values are multiplied by `scale`, a power of two, first.
        """
        return _formats.loss(
            self.bins, self._known, format, scale, max_abs=self.max_abs, min_abs=self.min_abs
        )

    def columns(self) -> Sketches:
        """One row of columns."""
        return columns_of([self])

    @property
    def _known(self) -> _bins.Known:
        return _bins.Known(self.zeros, self.pos_infs, self.neg_infs, self.min, self.max)

    def _equal_edges(self, n: int) -> NDArray[np.float64]:
        edges: NDArray[np.float64] = equal_edges(np.array([self.min]), np.array([self.max]), n)[0]
        return edges


def columns_of(sketches: Sequence[Sketch]) -> Sketches:
    """Sketches as columns, one row each."""
    bins = np.array([s.bins for s in sketches], dtype=np.int64).reshape(-1, N_BINS)
    return from_dense(
        np.array([[getattr(s, n) for n in COUNTS] for s in sketches], dtype=np.int64),
        np.array([[getattr(s, n) for n in SUMS] for s in sketches], dtype=np.float64),
        np.array([[getattr(s, n) for n in EXTREMA] for s in sketches], dtype=np.float64),
        bins,
    )


def equal_edges(low: NDArray[np.float64], high: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """The edges of `n` equal bins from each low to each high; 0 to 1 where there are no values."""
    if n < 1:
        raise ValueError(f"A histogram needs at least one bin, got {n}.")
    is_any = low <= high
    low, high = np.where(is_any, low, 0.0), np.where(is_any, high, 1.0)
    # Room for n edges that can be told apart, also where float64 is coarse.
    size = np.minimum(np.maximum(np.abs(low), np.abs(high)), _LARGEST / 2)
    least = 4.0 * n * np.spacing(size)
    with np.errstate(over="ignore"):
        room = np.where(high - low < least, np.maximum(least, 0.5), 0.0)
        low, high = np.maximum(low - room, -_LARGEST), np.minimum(high + room, _LARGEST)
    edges: NDArray[np.float64] = np.linspace(low / 2, high / 2, n + 1, axis=-1)
    return edges * 2  # halves: high - low may overflow


def row(s: Sketches, i: int) -> Sketch:
    """Row `i` of columns as a sketch of its own."""
    bins = np.zeros(N_BINS, dtype=np.int64)
    held = slice(s.offsets[i], s.offsets[i + 1])
    bins[s.bin_ids[held]] = s.bin_counts[held]
    counts = dict(zip(COUNTS, s.counts[i].tolist(), strict=True))
    reals = zip((*SUMS, *EXTREMA), [*s.sums[i].tolist(), *s.extrema[i].tolist()], strict=True)
    return _build(counts, dict(reals), bins)


def _build(counts: dict[str, int], reals: dict[str, float], bins: NDArray[np.int64]) -> Sketch:
    fields: dict[str, Any] = {**counts, **reals, "bins": bins}  # numbers of two types, an array
    return Sketch(**fields)


def _checked_edges(edges: ArrayLike) -> NDArray[np.float64]:
    checked = np.asarray(edges, dtype=np.float64)
    if checked.ndim != 1 or len(checked) < 2 or not (np.diff(checked) > 0).all():
        raise ValueError("`edges` must be at least two rising numbers, or how many bins to make.")
    return checked


_EMPTY = _build(
    dict.fromkeys(COUNTS, 0),
    {**dict.fromkeys(SUMS, 0.0), "min": np.inf, "max": -np.inf, "min_abs": np.inf},
    np.zeros(N_BINS, dtype=np.int64),
)
