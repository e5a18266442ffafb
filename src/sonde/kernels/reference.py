"""The definition of a sketch, in numpy and float64. Slow, obvious, and the judge of all others.

Every value is taken as float64 for sums and extrema and as float32 for its bin. NaN is counted and
otherwise left out; infinities are counted and binned; zeros of both signs are counted and binned;
subnormal means subnormal as float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sonde.record import N_BINS
from sonde.sketch import Sketch


def sketch(values: ArrayLike) -> Sketch:
    """Sketch of an array of real numbers (of any shape) or of the moduli of complex ones."""
    array = np.asarray(values)
    if np.iscomplexobj(array):
        array = np.abs(array.astype(np.complex128))
    x = array.astype(np.float64).ravel()
    with np.errstate(over="ignore"):
        x32 = x.astype(np.float32)
    bits = x32.view(np.uint32)
    nan = np.isnan(x)
    finite = x[np.isfinite(x)]
    size = np.abs(finite)
    nonzero = size[size > 0]
    with np.errstate(over="ignore", under="ignore"):
        square = size * size
        sums = (finite.sum(), size.sum(), square.sum(), (square * square).sum())
    return Sketch(
        count=x.size,
        zeros=int((x == 0).sum()),
        nans=int(nan.sum()),
        pos_infs=int((x == np.inf).sum()),
        neg_infs=int((x == -np.inf).sum()),
        subnormals=int((((bits >> 23) & 0xFF == 0) & (bits & 0x7FFFFF != 0)).sum()),
        sum=float(sums[0]),
        sum_abs=float(sums[1]),
        sum_sq=float(sums[2]),
        sum_4=float(sums[3]),
        min=float(finite.min(initial=np.inf)),
        max=float(finite.max(initial=-np.inf)),
        min_abs=float(nonzero.min(initial=np.inf)),
        bins=np.bincount(bits[~nan] >> 21, minlength=N_BINS).astype(np.int64),
    )
