"""The kernel for arrays that numpy reads: adds the sketch of one into a row of a table.

The C kernel does it where it was built and the array lies in order in memory, `reference` where
not. Both give the same counts, extrema and bins, and the same sums to float64 rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sonde.kernels import c, reference
from sonde.kernels.layout import HEADER, Table

_COUNTS, _SUMS, _EXTREMA = slice(0, 6), slice(6, 10), slice(10, 13)


def add(table: Table, row: int, array: NDArray[np.generic], *, threads: int = 1) -> None:
    """Add the sketch of an array of real numbers, or of the moduli of complex ones, into a row.

    Raises:
        TypeError: If the array holds no numbers.
    """
    name = array.dtype.name
    if c.available() and name in c.DTYPES and _is_in_order(array):
        at: int = table[row].__array_interface__["data"][0]
        data: int = array.__array_interface__["data"][0]
        c.add(at, data, array.size, c.DTYPES[name], 1, threads)
        return
    if array.dtype.kind not in "biufcV" or (array.dtype.kind == "V" and name not in c.DTYPES):
        raise TypeError(f"an array of {array.dtype} holds no numbers")
    s = reference.sketch(array)
    into = table[row]
    into[_COUNTS] += (s.count, s.zeros, s.nans, s.pos_infs, s.neg_infs, s.subnormals)
    into[_SUMS].view(np.float64)[:] += (s.sum, s.sum_abs, s.sum_sq, s.sum_4)
    extrema = into[_EXTREMA].view(np.float64)
    extrema[:] = (min(extrema[0], s.min), max(extrema[1], s.max), min(extrema[2], s.min_abs))
    into[HEADER:] += s.bins


def _is_in_order(array: NDArray[np.generic]) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned and array.dtype.isnative
