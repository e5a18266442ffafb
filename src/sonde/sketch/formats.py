"""Number formats, and what a tensor would lose in one: read off its bins after the fact.

The table holds every floating-point format of `ml_dtypes` and of numpy up to float32, under their
names there; a test compares it with `ml_dtypes.finfo`. Kept here as numbers so that reading a run
needs numpy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.sketch import bins as _bins


@dataclass(frozen=True, slots=True)
class Format:
    """The limits of a number format: largest, smallest normal and smallest subnormal magnitude."""

    name: str
    largest: float
    smallest_normal: float
    smallest: float


def _format(name: str, largest: float, normal_exponent: int, smallest_exponent: int) -> Format:
    return Format(name, largest, 2.0**normal_exponent, 2.0**smallest_exponent)


FORMATS: Final[dict[str, Format]] = {
    f.name: f
    for f in (
        _format("float32", (2 - 2**-23) * 2.0**127, -126, -149),
        _format("bfloat16", (2 - 2**-7) * 2.0**127, -126, -133),
        _format("float16", 65504.0, -14, -24),
        _format("float8_e3m4", 15.5, -2, -6),
        _format("float8_e4m3", 240.0, -6, -9),
        _format("float8_e4m3b11fnuz", 30.0, -10, -13),
        _format("float8_e4m3fn", 448.0, -6, -9),
        _format("float8_e4m3fnuz", 240.0, -7, -10),
        _format("float8_e5m2", 57344.0, -14, -16),
        _format("float8_e5m2fnuz", 57344.0, -15, -17),
        _format("float8_e8m0fnu", 2.0**127, -127, -127),
        _format("float6_e2m3fn", 7.5, 0, -3),
        _format("float6_e3m2fn", 28.0, -2, -4),
        _format("float4_e2m1fn", 6.0, 0, -1),
    )
}

_ALIASES: Final = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
    "fp4": "float4_e2m1fn",
}


@dataclass(frozen=True, slots=True)
class Loss:
    """Shares of the finite, non-zero values that a format would lose, between 0 and 1.

    `underflow` would become zero, `subnormal` would keep fewer digits, `overflow` would leave the
    range. NaN when there is no finite non-zero value.
    """

    underflow: float
    subnormal: float
    overflow: float


def format_named(name: str) -> Format:
    """The format of that name (`float8_e4m3fn`) or common short name (`e4m3`, `bf16`)."""
    found = FORMATS.get(_ALIASES.get(name, name))
    if found is None:
        known = ", ".join(FORMATS)
        raise ValueError(f"Unknown number format `{name}`. Known are: {known}.")
    return found


def loss(
    bins: NDArray[np.int64],
    known: _bins.Known,
    name: str,
    scale: float = 1.0,
    *,
    max_abs: float,
    min_abs: float,
) -> Loss:
    """What values times `scale` (a power of two) would lose in the format `name`.

    Which side of an edge is counted: underflow is |x| below half the smallest subnormal (what
    rounds to nearest gives zero; the tie itself is not counted). Subnormal is from there up to, not
    including, the smallest normal. Overflow is |x| in bins that begin at or above the largest
    value: for e4m3, e5m2 and fp4 that includes the largest value itself, unless nothing exceeds it;
    for float16 and bfloat16 it leaves out the last half step below the next power of two. A limit
    below 2**-128 lies inside of the lowest bin, which then counts as a whole, unless no value is
    that small.
    """
    if not (scale > 0 and math.frexp(scale)[0] == 0.5):
        raise ValueError(f"`scale` must be a power of two, got {scale}.")
    form = format_named(name)
    beyond = sum(_bins.beyond(bins, known))
    n = int(_bins.magnitudes(bins).sum()) + beyond - known.zeros
    if n == 0:
        return Loss(math.nan, math.nan, math.nan)

    def smaller_than(limit: float) -> int:
        return _bins.below(bins, known.zeros, limit / scale) if min_abs * scale < limit else 0

    under = smaller_than(form.smallest / 2)
    less = smaller_than(form.smallest_normal)
    over = 0
    if max_abs * scale > form.largest:
        over = _bins.at_least(bins, form.largest / scale) + beyond
    return Loss(under / n, (less - under) / n, over / n)
