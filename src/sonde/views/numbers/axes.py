"""Axes of values: where the cells of a histogram begin, for each scale.

Edges follow from scale, ends and number of cells alone, so that two drawings with the same three
have the same cells. Ends that are found from data are rounded outwards to powers of two (or their
quarters), so that they seldom move while a run grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.sketch import Sketch
from sonde.sketch import bins as _bins
from sonde.sketch.bins import Known

ASINH_LINEAR: Final = 1 / 256
"""Share of the larger end within which an asinh axis is about linear."""

ROBUST: Final = 0.005
"""Share of values left out at each end of a robust axis."""

_LEAST_OCTAVES: Final = 4
_MIN_EXPONENT: Final = -149
_MAX_EXPONENT: Final = 1023
_MOST_DENSE: Final = 1e38
"""Densities are sent as float32."""


def edges(scale: str, low: float, high: float, cells: int) -> NDArray[np.float64]:
    """`cells + 1` rising edges from `low` to `high`; with scale `exponent` one per power of two."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SondeError(f"`low` must be below `high`, got {low} and {high}.")
    if scale in {"log", "exponent"} and low <= 0:
        raise SondeError(f"`low` must be above 0 on a logarithmic axis, got {low}.")
    match scale:
        case "linear":
            found = np.linspace(low / 2, high / 2, cells + 1) * 2
        case "asinh":
            unit = max(max(abs(low), abs(high)) * ASINH_LINEAR, math.ulp(0.0))
            found = unit * np.sinh(
                np.linspace(math.asinh(low / unit), math.asinh(high / unit), cells + 1)
            )
        case "log":
            found = np.exp2(np.linspace(math.log2(low), math.log2(high), cells + 1))
        case _:
            first = math.floor(math.log2(low))
            last = min(math.ceil(math.log2(high)), _MAX_EXPONENT)
            found = np.exp2(np.arange(first, max(last, first + 1) + 1, dtype=np.float64))
    if scale != "exponent":
        found[0], found[-1] = low, high
    if not (np.diff(found) > 0).all():
        raise SondeError(f"{cells} cells do not fit between {low} and {high}.")
    return found


def ends(sketch: Sketch, scale: str, range: str) -> tuple[float, float]:
    """Where an axis for these values begins and ends: all of them, or all but a few at each end."""
    if scale in {"log", "exponent"}:
        return _magnitude_ends(sketch, range)
    if sketch.finite == 0:
        return -1.0, 1.0
    if range == "all":
        low, high = sketch.min, sketch.max
    else:
        low, high = (float(q) for q in sketch.quantiles([ROBUST, 1 - ROBUST]))
    return signed_ends(low, high, scale)


def signed_ends(low: float, high: float, scale: str) -> tuple[float, float]:
    """The ends of an axis of signed values between these two, rounded outwards."""
    low, high = _outwards(low, -1), _outwards(high, 1)
    if low > 0 and low < high / 4:
        low = 0.0  # zero is worth showing when it is near
    if high < 0 and high > low / 4:
        high = 0.0
    if scale == "asinh" and low < 0 < high:
        high = max(-low, high)
        low = -high
    if not low < high:
        width = max(abs(low) / 4, 2.0**-126)
        low, high = low - width, high + width
    return low, high


def counts(sketch: Sketch, scale: str, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Finite values in each cell: what `Sketch.histogram` says, both signs together on an axis of
    magnitudes, without zeros there."""
    known = _known(sketch)
    if scale not in {"log", "exponent"}:
        return _bins.histogram(sketch.bins, known, at)
    bins = sketch.bins.copy()
    bins[0] -= sketch.zeros
    if bins[0] < 0:  # zeros of both signs share the count
        bins[_bins.HALF] += bins[0]
        bins[0] = 0
    positive = Known(0, known.pos_infs, known.neg_infs, known.low, known.high)
    mirrored = np.concatenate([bins[_bins.HALF :], bins[: _bins.HALF]])
    negative = Known(0, known.neg_infs, known.pos_infs, -known.high, -known.low)
    return _bins.histogram(bins, positive, at) + _bins.histogram(mirrored, negative, at)


def magnitude_quantiles(sketch: Sketch, q: Sequence[float]) -> NDArray[np.float64]:
    """Quantiles of the magnitudes of the non-zero finite values; off by less than a bin."""
    both = _bins.magnitudes(sketch.bins)
    both[0] -= sketch.zeros
    folded = np.zeros_like(sketch.bins)
    folded[: _bins.INF_BIN] = both
    folded[_bins.INF_BIN] = sum(_bins.beyond(sketch.bins, _known(sketch)))
    far = max(abs(sketch.min), abs(sketch.max))
    return _bins.quantiles(folded, Known(0, 0, 0, sketch.min_abs, far), list(q))


def outside(
    sketch: Sketch, scale: str, at: NDArray[np.float64], inside: float
) -> tuple[float, float]:
    """Finite values below and above the edges; on an axis of magnitudes without zeros."""
    total = sketch.finite - (sketch.zeros if scale in {"log", "exponent"} else 0)
    missing = max(total - inside, 0.0)
    if missing < 1e-6:
        return 0.0, 0.0
    far = max(abs(sketch.min), abs(sketch.max)) if scale in {"log", "exponent"} else sketch.max
    if far <= at[-1]:
        return missing, 0.0
    top = np.array([at[-1], max(np.nextafter(far, np.inf), np.nextafter(at[-1], np.inf))])
    above = min(float(counts(sketch, scale, top).sum()), missing)
    return missing - above, above


def magnitude_ends(low: float, high: float) -> tuple[float, float]:
    """The powers of two around these magnitudes, at least four octaves apart."""
    if high <= 0:
        return 2.0**-8, 1.0
    first = math.floor(math.log2(low)) if low > 0 else _MIN_EXPONENT
    last = math.floor(math.log2(high))
    first, last = max(first, _MIN_EXPONENT), min(last, _MAX_EXPONENT - 1)
    if last + 1 - first < _LEAST_OCTAVES:
        first = last + 1 - _LEAST_OCTAVES
    return 2.0**first, 2.0 ** (last + 1)


def density(
    counts: NDArray[np.float64], zeros: float, total: float, at: NDArray[np.float64], scale: str
) -> NDArray[np.float64]:
    """Share of all values per unit of value in each cell. Exact zeros are left out."""
    found = counts.copy()
    if scale not in {"log", "exponent"} and at[0] <= 0 <= at[-1]:
        cell = min(int(np.searchsorted(at, 0.0, side="right")) - 1, len(found) - 1)
        found[cell] = max(found[cell] - zeros, 0.0)
    with np.errstate(over="ignore"):
        return np.minimum(found / max(total, 1.0) / np.diff(at), _MOST_DENSE)


def _magnitude_ends(sketch: Sketch, range: str) -> tuple[float, float]:
    exponents, found = _bins.exponent_counts(sketch.bins, _known(sketch))
    total = found.sum()
    if total == 0:
        return 2.0**-8, 1.0
    share = 0.0 if range == "all" else ROBUST
    upto = np.cumsum(found) / total
    first = int(exponents[np.searchsorted(upto, share, side="right")])
    last = int(exponents[np.flatnonzero(found)[-1]])  # what is largest is never left out
    return magnitude_ends(2.0**first, 2.0**last)


def _outwards(value: float, direction: int) -> float:
    """The next multiple of an eighth of the power of two below the value, away from the middle."""
    if value == 0 or not math.isfinite(value):
        return 0.0
    unit = 2.0 ** (math.floor(math.log2(abs(value))) - 3)
    rounded = math.ceil(value / unit) if direction > 0 else math.floor(value / unit)
    return rounded * unit


def _known(sketch: Sketch) -> Known:
    return Known(sketch.zeros, sketch.pos_infs, sketch.neg_infs, sketch.min, sketch.max)
