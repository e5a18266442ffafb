"""The C kernel: one fused pass over a tensor in CPU memory that adds its sketch into a row.

Optional. An install without a compiler works; `available()` then is false and nothing else here may
be called. No framework is known here: tensors and rows are addresses, and whoever passes one keeps
the memory alive and the row to themselves until the call returns.

    add(row, data, n, dtype, repeat, threads)
        Sketch of `n` contiguous values, each seen `repeat` times.
    add_strided(row, data, dtype, sizes, strides, repeat, threads)
        The same for a view: tuples of sizes and of strides in elements, in any order, zero allowed.
        Dimensions of stride zero are not walked; they multiply `repeat`.
    add_copy(row, data, copy_to, n, dtype, threads)
        Sketch of the values, which are copied to `copy_to` as they pass.
    add_difference(row, new, old, n, dtype, threads)
        Sketch of `new - old`, taken in float32 (one rounding) for formats of up to 16 bits and
        float32, in float64 for float64 and for integers of 32 bits and more.
    add_many(rows, datas, ns, dtypes, copies, olds, count, threads)
        Many tensors in one call, spread evenly over the threads: addresses of int64 arrays of
        `count` entries. `copies` and `olds` are such addresses too, or 0; an entry of theirs may be
        0. Two tensors may share a row, at the price of a single thread.
    merge(row, other)
        Add one row to another.
    same(a, b, n_bytes)
        Whether two stretches of memory hold the same bytes.
    launch(entry, function, blocks, threads, stream, *arguments)
        Launch a function on a CUDA device through the driver's entry at that address; the driver's
        error, or 0.
    call(entry, *arguments)
        Call another function of the driver, of up to four words, likewise.
    entry()
        Where the function behind `add` is, for the native path of a capture.
    paths(), use_path(name), thread_runtime()
        For tests and benchmarks: the instruction sets this processor has, best first; which one to
        use; where threads come from, `openmp` or `pthreads`.

`dtype` is a code from `DTYPES`. `threads` is how many may be used at most; few values stay on the
calling thread. The threads are those of the OpenMP runtime that is already in the process (torch
brings one), else new ones. The same input and number of threads give the same bits on one machine:
counts, extrema and bins exactly those of `reference`, sums to float64 rounding.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde._built import refuse_stale
from sonde.kernels.layout import WORDS, Table
from sonde.record import COUNTS, EXTREMA, SUMS, Sketches

try:
    from sonde.kernels import _c

    refuse_stale(_c)
    from sonde.kernels._c import (
        add,
        add_copy,
        add_difference,
        add_many,
        add_strided,
        call,
        entry,
        launch,
        merge,
        paths,
        same,
        thread_runtime,
        use_path,
    )
except ImportError:  # built without a compiler, or from other sources
    _AVAILABLE = False
else:
    _AVAILABLE = True

__all__ = [
    "DTYPES",
    "add",
    "add_copy",
    "add_difference",
    "add_many",
    "add_strided",
    "available",
    "call",
    "entry",
    "launch",
    "merge",
    "pack",
    "paths",
    "same",
    "thread_runtime",
    "use_path",
    "xla_device",
    "xla_handlers",
]

DTYPES: Final[dict[str, int]] = {
    name: code
    for code, name in enumerate(
        (
            "float32",
            "float64",
            "float16",
            "bfloat16",
            "float8_e4m3fn",
            "float8_e5m2",
            "float8_e4m3fnuz",
            "float8_e5m2fnuz",
            "float8_e8m0fnu",
            "int8",
            "uint8",
            "bool",
            "int16",
            "uint16",
            "int32",
            "uint32",
            "int64",
            "uint64",
        )
    )
}
"""Number formats by name, with the codes that the entries take. A bool is a byte, zero or not."""


def available() -> bool:
    """Whether the extension was built for this Python."""
    return _AVAILABLE


def pack(table: Table, indices: NDArray[np.int64], *, empties: bool = True) -> Sketches:
    """The chosen rows of a table as columns; the rows are empty afterwards, unless told otherwise.

    Other Python threads run meanwhile, and must leave these rows alone.
    """
    if table.dtype != np.int64 or table.shape[1:] != (WORDS,) or not table.flags.c_contiguous:
        raise ValueError(f"`table` must be a contiguous int64 array of {WORDS} columns.")
    chosen = np.ascontiguousarray(indices, dtype=np.int64)
    n = len(chosen)
    if n and (int(chosen.min()) < 0 or int(chosen.max()) >= len(table)):
        raise ValueError(f"`indices` must lie between 0 and {len(table) - 1}.")
    offsets = np.empty(n + 1, np.int64)
    source = (_address(table), _address(chosen), n, _address(offsets))
    held = _c.count_bins(*source)
    columns = Sketches(
        np.empty((n, len(COUNTS)), np.int64),
        np.empty((n, len(SUMS)), np.float64),
        np.empty((n, len(EXTREMA)), np.float64),
        offsets,
        np.empty(held, np.int16),
        np.empty(held, np.int64),
    )
    _c.pack(
        *source,
        _address(columns.counts),
        _address(columns.sums),
        _address(columns.extrema),
        _address(columns.bin_ids),
        _address(columns.bin_counts),
        empties,
    )
    return columns


def xla_handlers() -> tuple[int, int]:
    """Addresses of the handlers that XLA calls: for the CPU, for CUDA."""
    return _c.xla_handlers()


def xla_device(entries: NDArray[np.int64]) -> None:
    """Tell the handler where the kernel is on a CUDA device: what `cuda.Kernel.for_xla` lists."""
    _c.xla_device(_address(entries))


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
