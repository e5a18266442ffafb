"""Number formats, and what a tensor would lose in one: read off its bins after the fact.

The table holds every floating-point format of `ml_dtypes` and of numpy up to float32, under their
names there; a test compares it with `ml_dtypes.finfo`. Kept here as numbers so that reading a run
needs numpy alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
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
    "float": "float32",
    "single": "float32",
    "half": "float16",
    "float8_e4m3": "float8_e4m3fn",
    "float8_e8m0": "float8_e8m0fnu",
    "float6_e2m3": "float6_e2m3fn",
    "float6_e3m2": "float6_e3m2fn",
    "float4": "float4_e2m1fn",
    "float4_e2m1": "float4_e2m1fn",
    "mxfp4": "float4_e2m1fn",
    "nvfp4": "float4_e2m1fn",
}
"""Names besides those that `_spelled_out` gives. `float8_e4m3` itself is a format of `ml_dtypes`
and stands for it; `e4m3` and `fp8_e4m3` are other names of `float8_e4m3fn`."""

_BITS: Final = {"e2m1": 4, "e2m3": 6, "e3m2": 6}


@dataclass(frozen=True, slots=True)
class Loss:
    """Shares of the finite, non-zero values that a format would lose, between 0 and 1.

    `underflow` would become zero, `subnormal` would keep fewer digits, `overflow` would leave the
    range. NaN when there is no finite non-zero value.
    """

    underflow: float
    subnormal: float
    overflow: float


def format_named(name: object) -> Format:
    """The format with that name, in any usual spelling: `float8_e5m2`, `fp8_e5m2`, `e5m2`, `bf16`,
    `half`; or a dtype of torch, numpy or `ml_dtypes`.

    Raises:
        SondeError: If there is no such format.
    """
    given = name.__name__ if isinstance(name, type) else str(name)
    found = FORMATS.get(given.removeprefix("torch."))
    if found is None:
        spelled = _spelled_out(given)
        found = FORMATS.get(_ALIASES.get(spelled, spelled))
    if found is None:
        raise SondeError(
            f"Unknown number format `{given}`. Known are: {', '.join(FORMATS)}; short names such "
            "as `bf16`, `half`, `e4m3`, `fp8_e5m2`; and dtypes."
        )
    return found


def _spelled_out(name: str) -> str:
    """A short name (`fp8_e5m2`, `e5m2`, `f8e5m2`, `bf16`) the long way: `float8_e5m2`."""
    plain = name.lower().strip().replace("-", "_").rpartition(".")[2]
    if re.match(r"e\d+m\d+", plain):
        return f"float{_BITS.get(plain[:4], 8)}_{plain}"
    parts = re.fullmatch(r"(b?)(?:float|fp|f)(\d+)_?(e\d+m\d+.*)?", plain)
    if parts is None:
        return plain
    brain, bits, layout = parts.groups()
    return f"{brain}float{bits}_{layout}" if layout else f"{brain}float{bits}"


def loss(
    bins: NDArray[np.int64],
    known: _bins.Known,
    name: object,
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
    below 2**-128 lies inside the lowest bin, which then counts as a whole, unless no value is
    that small.
    """
    if not (scale > 0 and math.frexp(scale)[0] == 0.5):
        raise SondeError(f"`scale` must be a power of two, got {scale}.")
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
