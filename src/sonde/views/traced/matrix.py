"""One matrix of a stored tensor as cells, few enough to draw: nothing extreme and nothing that is
not finite gets lost.

The bytes are decoded a piece at a time, so that it takes little memory however large the tensor is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.store import packing
from sonde.store.packing import SIZES, Bytes, PackedArray
from sonde.views.numbers import notes
from sonde.views.specs import F64, NONFINITE, NUMBER, U8, Bounds, Matrix

_AT_ONCE: Final = 1 << 20
_NARROW: Final = 16
_FEW: Final = 100
"""Of so many cells one per cent is none: their limits are their extremes."""


def sides(shape: Sequence[int]) -> tuple[int, int]:
    """Height and width of the matrices of a tensor: a vector is one row, a number one element."""
    height, width = (1, 1, *shape)[-2:]
    return height, width


def matrix(
    array: PackedArray, *, item: int, rows: int, columns: int, at_once: int = _AT_ONCE
) -> Matrix:
    """A matrix of a tensor in at most rows × columns cells; of too few items the last one.

    Complex numbers count by their magnitude. `at_once` elements are decoded at a time.
    """
    height, width = sides(array.shape)
    leading = array.shape[:-2]
    items = math.prod(leading) if height * width else 0
    item = max(0, min(item, items - 1))
    tall, wide = -(-height // rows) or 1, -(-width // columns) or 1
    shape = (-(-height // tall), -(-width // wide)) if items else (0, 0)
    size = height * width * SIZES[array.dtype]
    data = packing.view_of(array.data).cast("B")[item * size : (item + 1) * size] if items else b""
    cells = _Cells(shape)
    for row, column, piece in _pieces(array.dtype, data, (height, width), (tall, wide), at_once):
        cells.add(row, column, piece, wide)
    values = np.where(np.abs(cells.top) >= np.abs(cells.bottom), cells.top, cells.bottom)
    return Matrix(
        items=items,
        item=item,
        index=_index(leading, item) if items else (),
        height=height,
        width=width,
        rows=shape[0],
        columns=shape[1],
        cell_rows=tall,
        cell_columns=wide,
        values=values,
        low=cells.low,
        high=cells.high,
        flags=cells.flags,
        not_finite=cells.not_finite,
        limits=_limits(values, cells),
        is_signed=bool((cells.low < 0).any()),
    )


class _Cells:
    """What was seen of each cell so far. NaN where nothing was."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.low, self.high, self.bottom, self.top = np.full((4, *shape), np.nan)
        """The smallest and the largest element, and the same of those that are finite."""
        self.flags: U8 = np.full(shape, NUMBER, np.uint8)
        self.not_finite = 0

    def add(self, row: int, column: int, piece: F64, wide: int) -> None:
        """Elements that lie behind one row of cells, from a column on."""
        starts = np.arange(0, piece.shape[1], wide)
        there = np.s_[row, column : column + len(starts)]
        is_bad = ~np.isfinite(piece)
        _widen(self.low[there], self.high[there], piece, starts)
        bad = int(np.count_nonzero(is_bad))
        if bad:
            self.not_finite += bad
            self.flags[there][np.logical_or.reduceat(is_bad.any(axis=0), starts)] = NONFINITE
            piece = np.where(is_bad, np.nan, piece)
        _widen(self.bottom[there], self.top[there], piece, starts)


def _pieces(
    dtype: str, data: Bytes, size: tuple[int, int], cell: tuple[int, int], at_once: int
) -> Iterator[tuple[int, int, F64]]:
    """The elements, each piece with the row and the column of cells where it begins.

    A piece is some whole lines of a row of cells, or, of long lines, a part of one.
    """
    (height, width), (tall, wide) = size, cell
    if not data:
        return
    bytes_each = SIZES[dtype]
    lines = min(tall, max(1, at_once // width))
    across = width if lines * width <= at_once else max(1, at_once // wide) * wide
    for top in range(0, height, tall):
        bottom = min(top + tall, height)
        for line in range(top, bottom, lines):
            n = min(lines, bottom - line)
            for left in range(0, width, across):
                shape = (n, min(across, width - left))
                begin = (line * width + left) * bytes_each
                part = data[begin : begin + math.prod(shape) * bytes_each]
                yield top // tall, left // wide, _numbers(packing.decode(dtype, shape, part))


def _widen(low: F64, high: F64, piece: F64, starts: NDArray[np.int64]) -> None:
    """Let cells reach from their smallest to their largest element. NaN counts only if all are."""
    if piece.shape[1] < _NARROW:  # down short lines numpy goes element by element
        piece = np.asfortranarray(piece)
    np.fmin(low, np.fmin.reduceat(np.fmin.reduce(piece, axis=0), starts), out=low)
    np.fmax(high, np.fmax.reduceat(np.fmax.reduce(piece, axis=0), starts), out=high)


def _numbers(array: NDArray[np.generic]) -> F64:
    with np.errstate(all="ignore"):
        plain = np.abs(array) if np.iscomplexobj(array) else array
        return plain.astype(np.float64)


def _index(leading: Sequence[int], item: int) -> tuple[int, ...]:
    found = []
    for n in reversed(leading):
        item, at = divmod(item, n)
        found.append(at)
    return tuple(reversed(found))


def _limits(values: F64, cells: _Cells) -> Bounds:
    """Robust over what is drawn, with the extremes of what is behind it."""
    limits = notes.bounds(values)
    if limits.low is None:
        return limits
    least, most = np.fmin.reduce(cells.bottom, axis=None), np.fmax.reduce(cells.top, axis=None)
    limits = replace(limits, min=float(least), max=float(most))
    if values.size > _FEW:
        return limits
    low, high = float(np.fmin.reduce(values, axis=None)), float(np.fmax.reduce(values, axis=None))
    return replace(limits, low=low, high=high, low_share=0.0, high_share=0.0)
