"""Tables of rows on a device: where sketches of torch tensors are made.

The host's table uses the fused C pass where it was built, and plain torch operations otherwise. A
device without a kernel of its own uses plain torch operations there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde._torch_internals.tensors import outside_transforms
from sonde.capture import native
from sonde.capture.window import FilledRows, Rows, RowTable
from sonde.kernels import c, layout
from sonde.kernels import torch as plain
from sonde.kernels.cuda import Unavailable
from sonde.record import Sketches
from sonde.sketch import take

_FIRST_ROWS = 64
_SLICE_ROWS = 1024
"""Rows of a table, 17 MB: of what lies in the third-level cache of a processor, sketches are made
five times as fast as of what does not."""
_KEPT_TABLES = 2
"""Empty tables kept for the next steps: one being read, one in between."""
_BOUNDARY = 256
FORMATS = {dtype: c.DTYPES[name] for dtype, name in plain.DTYPES.items()}
"""What fused kernels read, with its code in C."""


EXCHANGE = getattr(Tensor, "__dlpack_c_exchange_api__", None)
"""What tells C what tensors are, if this torch has it."""


class SketchTable(RowTable, Protocol):
    """A table that takes torch tensors. All methods add; none waits for a device."""

    kernel: str

    def add(self, index: int, x: Tensor) -> None:
        """Add the sketch of `x` to a row.

        Raises:
            sonde.kernels.torch.Unsupported: if the tensor has no values that can be read.
        """

    def takes(self, x: Tensor) -> bool:
        """Whether `add_many` reads such tensors on this device. All read those that are dense; of
        others neither copies nor differences can be had."""
        ...

    def add_many(
        self,
        offsets: NDArray[np.int64],
        tensors: Sequence[Tensor],
        *,
        first: int = 0,
        copies: TensorCopies | None = None,
        olds: TensorCopies | None = None,
    ) -> None:
        """Add each tensor to its row, in one go: tensors on this device that it takes. The i-th row
        is `first + offsets[i]`.

        With `copies`, they are copied there on the way. With `olds`, it is the differences to these
        that are sketched. The same array of offsets stands for tensors of the same sizes and
        dtypes, whenever it is given.
        """


class GatedTable(SketchTable, Protocol):
    """A table that CUDA graphs write to, behind a gate on the device.

    `for_graphs` is memory of the table that has to live as long as the graphs that use it.
    """

    @property
    def for_graphs(self) -> object: ...

    def add(self, index: int, x: Tensor, *, gated: bool = False) -> None:
        """Add the sketch of `x` to a row; when `gated`, in each replay that finds the gate open."""

    def open_gate(self, is_open: bool) -> None:
        """Let the replays that come write, or not."""


DeviceRows = Rows[SketchTable]


def gated(table: SketchTable) -> GatedTable | None:
    """The table, if CUDA graphs can write to it."""
    return cast("GatedTable", table) if table.kernel == "cuda" else None


class TensorCopies:
    """Room for copies of dense tensors, in one stretch of memory on their device."""

    __slots__ = ("_memory", "_offsets", "addresses")

    def __init__(self, tensors: Sequence[Tensor], offsets: NDArray[np.int64]) -> None:
        self._offsets = offsets
        size = int(self._offsets[-1])
        self._memory = torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
        self.addresses: NDArray[np.int64] = self._memory.data_ptr() + self._offsets[:-1]

    @staticmethod
    def offsets_of(tensors: Sequence[Tensor]) -> NDArray[np.int64]:
        """Where each tensor's copy begins, on boundaries that suit every kernel; then the end."""
        sizes = [-(-x.nbytes // _BOUNDARY) * _BOUNDARY for x in tensors]
        return np.cumsum([0, *sizes], dtype=np.int64)

    def like(self, i: int, x: Tensor) -> Tensor:
        """The i-th copy, as a tensor of the shape and layout of `x`."""
        first = int(self._offsets[i])
        flat = self._memory[first : first + x.nbytes].view(x.dtype)
        return flat.as_strided(x.shape, x.stride())


def table_for(device: torch.device) -> SketchTable:
    """An empty table on that device, with the fastest kernel that works there."""
    if device.type == "cpu" and c.available():
        return HostTable()
    if device.type == "cuda":
        from sonde.capture.torch.rows import cuda  # only where there is such a device

        try:
            return cuda.table_for(device)
        except Unavailable as reason:
            return PlainTable(device, str(reason))
    if device.type == "cpu":
        return PlainTable(device, "the C kernel was not built, for want of a compiler at install")
    return PlainTable(device, "there is no kernel of ours for such devices")


class HostTable:
    """Rows in host memory, filled by the fused C pass."""

    kernel = "c"
    can_take = True
    slice_rows = _SLICE_ROWS

    def __init__(self) -> None:
        self.book: native.Book | None = None
        if native.AVAILABLE:
            self.book = native.Book()
            self.book.on_host(c.entry())
        self._pool = _Pool()
        self._use(layout.new_table(_FIRST_ROWS))

    @property
    def nbytes(self) -> tuple[int, int]:
        return self._rows.nbytes + self._pool.nbytes, 0

    def ensure(self, n_rows: int) -> None:
        if n_rows > len(self._rows):
            grown = layout.new_table(max(n_rows, min(2 * len(self._rows), _SLICE_ROWS)))
            grown[: len(self._rows)] = self._rows
            self._use(grown)

    def take(self, used: int | None = None, *, early: bool = False) -> FilledRows:
        if early:
            # Packed here and now they are small and in the cache; and no other table is needed.
            return PackedRows(c.pack(self._rows, np.arange(used or 0)))
        filled = _HostRows(self._rows, used, self._pool)
        self._use(self._pool.get(len(self._rows)))
        return filled

    def _use(self, rows: layout.Table) -> None:
        self._rows, self._address = rows, rows.ctypes.data
        if self.book is not None:
            self.book.move(len(rows), [self._address], rows)
            self.book.threads = torch.get_num_threads()

    def discard(self) -> None:
        layout.clear(self._rows)

    def close(self) -> None:
        self._pool.close()
        self._use(layout.new_table(1))

    def add(self, index: int, x: Tensor) -> None:
        values, repeat, zeros = plain.readable(x)
        address = self._address + index * layout.ROW_BYTES
        code = FORMATS[values.dtype]
        threads = torch.get_num_threads()
        if plain.is_dense(values):
            c.add(address, values.data_ptr(), values.numel(), code, repeat, threads)
        else:
            sizes, strides = tuple(values.shape), values.stride()
            c.add_strided(address, values.data_ptr(), code, sizes, strides, repeat, threads)
        if zeros:
            plain.add_zeros(torch.from_numpy(self._rows[index]), zeros)

    def takes(self, x: Tensor) -> bool:
        return is_one_stretch(x)

    def add_many(
        self,
        offsets: NDArray[np.int64],
        tensors: Sequence[Tensor],
        *,
        first: int = 0,
        copies: TensorCopies | None = None,
        olds: TensorCopies | None = None,
    ) -> None:
        n = len(offsets)
        work = np.zeros((6, n), dtype=np.int64)
        work[0] = self._address + (first + offsets) * layout.ROW_BYTES
        work[1] = [x.data_ptr() for x in tensors]
        work[2] = [x.numel() for x in tensors]
        work[3] = [FORMATS[x.dtype] for x in tensors]
        if copies is not None:
            work[4] = copies.addresses
        if olds is not None:
            work[5] = olds.addresses
        base = work.ctypes.data
        rows, datas, sizes, codes, to, of = (base + i * n * work.itemsize for i in range(6))
        to, of = to if copies is not None else 0, of if olds is not None else 0
        c.add_many(rows, datas, sizes, codes, to, of, n, torch.get_num_threads())


class _Pool:
    """Empty tables of one length, for the next steps."""

    def __init__(self) -> None:
        self._free: list[layout.Table] = []
        self._length = 0
        self._is_closed = False

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in list(self._free))

    def get(self, length: int) -> layout.Table:
        if length != self._length:
            self._length = length
            self._free.clear()
        try:
            return self._free.pop()
        except IndexError:
            return layout.new_table(length)

    def put(self, rows: layout.Table) -> None:
        if not self._is_closed and len(rows) == self._length and len(self._free) < _KEPT_TABLES:
            self._free.append(rows)

    def close(self) -> None:
        self._is_closed = True
        self._free.clear()


class _HostRows:
    """Rows taken from the host's table; cleared and given back once they are read."""

    can_wait = False

    def __init__(self, rows: layout.Table, used: int | None, pool: _Pool) -> None:
        self._rows = rows
        self._used = used
        self._pool = pool
        self.size_bytes = rows.nbytes

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        found = c.pack(self._rows, rows)
        if self._used is not None:
            unread = np.ones(self._used, dtype=np.bool_)
            unread[rows] = False
            for index in np.flatnonzero(unread):  # given up: they may hold anything
                layout.clear(self._rows[index : index + 1])
        self._pool.put(self._rows)
        del self._rows
        return found


class PackedRows:
    """Rows that were made columns when they were taken."""

    can_wait = True

    def __init__(self, columns: Sketches) -> None:
        self._columns = columns
        self.size_bytes = sum(getattr(columns, f.name).nbytes for f in fields(columns))

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        n = len(self._columns.counts)
        if len(rows) == n and np.array_equal(rows, np.arange(n)):
            return self._columns
        return take(self._columns, rows)


class PlainTable:
    """Rows on any device, filled by plain torch operations; `reason` says why no kernel is used."""

    kernel = "torch"
    can_take = True
    slice_rows = _SLICE_ROWS

    def __init__(self, device: torch.device, reason: str = "") -> None:
        self.reason = reason
        self._device = device
        self._rows = self._new(_FIRST_ROWS)

    @property
    def nbytes(self) -> tuple[int, int]:
        return (self._rows.nbytes, 0) if self._device.type == "cpu" else (0, self._rows.nbytes)

    def ensure(self, n_rows: int) -> None:
        if n_rows > len(self._rows):
            grown = self._new(max(n_rows, min(2 * len(self._rows), _SLICE_ROWS)))
            with outside_transforms():
                grown[: len(self._rows)] = self._rows
            self._rows = grown

    def take(self, used: int | None = None, *, early: bool = False) -> FilledRows:
        if early and self._device.type == "cpu":
            with outside_transforms():
                table = self._rows.numpy()
            columns = layout.unpack(table[:used])
            layout.clear(table)
            return PackedRows(columns)
        filled = _PlainRows(self._rows)
        self._rows = self._new(len(self._rows))
        return filled

    def discard(self) -> None:
        self._rows = self._new(len(self._rows))

    def close(self) -> None:
        self._rows = self._new(0)

    def add(self, index: int, x: Tensor) -> None:
        plain.add(self._rows, index, x)

    def takes(self, x: Tensor) -> bool:
        return is_one_stretch(x)

    def add_many(
        self,
        offsets: NDArray[np.int64],
        tensors: Sequence[Tensor],
        *,
        first: int = 0,
        copies: TensorCopies | None = None,
        olds: TensorCopies | None = None,
    ) -> None:
        for i, (offset, x) in enumerate(zip(offsets.tolist(), tensors, strict=True)):
            x = x.detach()
            index = first + offset
            plain.add(self._rows, index, x if olds is None else difference(x, olds.like(i, x)))
            if copies is not None:
                copies.like(i, x).copy_(x)

    def _new(self, n_rows: int) -> Tensor:
        # Rows belong to no `torch.func` transformation, even if one is running.
        with outside_transforms():
            return torch.from_numpy(layout.new_table(n_rows)).to(self._device)


class _PlainRows:
    """Rows taken from a plain table; copying them to the host may wait for the device."""

    can_wait = False

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows
        self.size_bytes = rows.nbytes

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        with outside_transforms():
            table = self._rows.cpu().numpy()
        return take(layout.unpack(table), rows)


def is_one_stretch(x: Tensor) -> bool:
    """Whether every table can read it as it lies, copy it, and compare it with its copy."""
    return plain.is_plain(x) and plain.is_dense(x)


def difference(new: Tensor, old: Tensor) -> Tensor:
    """The change, in float32 for floats of up to 32 bits and small integers, else in float64."""
    exact = (torch.float64, torch.int32, torch.int64, torch.uint32, torch.uint64)
    wide = torch.float64 if new.dtype in exact else torch.float32
    return new.detach().to(wide) - old.to(wide)
