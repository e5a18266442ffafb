"""Arrow arrays from NumPy arrays and lists, made from their buffers.

`pyarrow.array` imports pandas, where it is installed, to recognize its types: 40 MB of memory and
half a second in every training that is watched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_DTYPES: Final = {
    pa.bool_(): np.dtype(np.bool_),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.float64(): np.dtype(np.float64),
}


def of_type(values: Any, kind: pa.DataType) -> pa.Array:
    """An array of that type, from an array or a list of its values. `None` is null.

    Raises TypeError, ValueError or OverflowError for values that are not of the type.
    """
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, np.ndarray):
        return _numbers(values.astype(_DTYPES[kind], casting="same_kind", copy=False), kind)
    if pa.types.is_list(kind):
        return _lists_of(values, kind.value_type)
    if pa.types.is_string(kind):
        return strings(values)
    is_null = np.array([v is None for v in values], np.bool_)
    given = [False if v is None else v for v in values]
    return _numbers(_checked(given, _DTYPES[kind]), kind, is_null)


def strings(values: Sequence[str | None]) -> pa.Array:
    """An array of texts."""
    given = ["" if v is None else v for v in values]
    data = "".join(given).encode()
    sizes = [len(v) if v.isascii() else len(v.encode()) for v in given]
    is_null = np.array([v is None for v in values], np.bool_)
    buffers = [_validity(is_null), pa.py_buffer(_offsets(sizes)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def lists(
    lengths: Sequence[int] | NDArray[np.int64],
    values: pa.Array,
    is_null: NDArray[np.bool_] | None = None,
) -> pa.Array:
    """An array of lists of these lengths, cut from the values."""
    buffers = [_validity(is_null), pa.py_buffer(_offsets(lengths))]
    return pa.Array.from_buffers(pa.list_(values.type), len(lengths), buffers, children=[values])


def dictionary(codes: NDArray[np.generic], entries: pa.Array) -> pa.Array:
    """The entries at these codes, each kept once."""
    return pa.DictionaryArray.from_arrays(of_type(codes, pa.int32()), entries)


def taken(texts: pa.Array, at: NDArray[np.integer]) -> pa.Array:
    """Some of the texts, by number. (`texts.take` imports `pyarrow.compute`, 10 MB.)"""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset :].astype(np.int64)
    held = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    sizes = (ends[1:] - ends[:-1])[at]
    made = _offsets(sizes)
    picked = held[np.arange(made[-1]) + np.repeat(ends[at] - made[:-1], sizes)]
    buffers = [None, pa.py_buffer(made), pa.py_buffer(picked)]
    return pa.Array.from_buffers(pa.string(), len(at), buffers)


def bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    """The least and the greatest of some whole numbers. (`to_numpy` imports pandas too.)"""
    if column.null_count:
        column = column.drop_null()
    dtype = _DTYPES[column.type]
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    held = [np.frombuffer(c.buffers()[1], dtype, len(c), c.offset * dtype.itemsize) for c in chunks]
    return min(int(each.min()) for each in held), max(int(each.max()) for each in held)


def _numbers(
    values: NDArray[Any], kind: pa.DataType, is_null: NDArray[np.bool_] | None = None
) -> pa.Array:
    held = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    data = pa.py_buffer(np.ascontiguousarray(held))
    return pa.Array.from_buffers(kind, len(values), [_validity(is_null), data])


def _checked(values: list[object], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """The values with that dtype. Raises rather than rounding one."""
    found = np.array(values, dtype)
    if dtype != np.float64 and any(type(v) is float for v in values):
        raise TypeError(f"a float is no {dtype}")
    return found


def _lists_of(values: Sequence[Sequence[object] | None], kind: pa.DataType) -> pa.Array:
    is_null = np.array([v is None for v in values], np.bool_)
    given = [v or () for v in values]
    held = of_type([v for each in given for v in each], kind)
    return lists([len(v) for v in given], held, is_null)


def _offsets(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError(f"{ends[-1]} values are too many for one array")
    return ends.astype(np.int32)


def _validity(is_null: NDArray[np.bool_] | None) -> pa.Buffer | None:
    if is_null is None or not is_null.any():
        return None
    return pa.py_buffer(np.packbits(~is_null, bitorder="little"))
