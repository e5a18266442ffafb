"""The table of rows on a CUDA device: filled by the fused kernel, drained without a wait.

Rows lie at fixed addresses in device memory, so compiled code and CUDA graphs can write to them. At
the end of a step, and whenever all rows are in use, a kernel on the training stream empties them:
it writes the bins that are not empty, some hundred of 2,048, to pinned host memory. There are a few
places for that: when all hold unread rows, the step is dropped, and nothing waits.

The memory is asked of the driver, not of torch's allocators, and goes back to it at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde._torch_internals.streams import current_device, raw_stream
from sonde._torch_internals.tensors import outside_transforms
from sonde.capture import native
from sonde.capture.torch.rows.host import TensorCopies
from sonde.capture.torch.rows.pinned import PinnedPlaces, PlacedRows
from sonde.capture.window import FilledRows
from sonde.kernels import c, cuda, layout
from sonde.kernels import torch as plain

_VECTORS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_SLICE_ROWS: Final = 2048
"""Rows of a table, 34 MB: enough for all sites of a transformer of 24 layers."""
_ROWS_PER_PAGE: Final = 256
_PAGE_BYTES: Final = _ROWS_PER_PAGE * layout.ROW_BYTES
_KEPT_STRETCHES: Final = 1024
_NOTHING: Final = nullcontext()


def table_for(device: torch.device) -> CudaTable:
    """An empty table on that device.

    Raises:
        sonde.kernels.cuda.Unavailable: if the kernel cannot be compiled or loaded here.
    """
    index = device.index if device.index is not None else torch.cuda.current_device()
    kernel = kernel_on(index)
    with torch.cuda.device(index), outside_transforms():
        return CudaTable(torch.device("cuda", index), kernel)


def kernel_on(index: int) -> cuda.Kernel:
    """The kernel on the device of that number; raises as `table_for` does."""
    properties = torch.cuda.get_device_properties(index)
    with torch.cuda.device(index), outside_transforms():
        torch.empty(1, device="cuda")  # makes the context that the kernel is loaded into
        capability = (properties.major, properties.minor)
        return cuda.load(index, capability, properties.multi_processor_count)


class CudaTable:
    """Rows in device memory, in pages that never move.

    Those from `slice_rows` on have pages of their own: CUDA graphs write to them, and so they live
    as long as these do, with the gate.
    """

    kernel = "cuda"
    slice_rows = _SLICE_ROWS

    def __init__(self, device: torch.device, kernel: cuda.Kernel) -> None:
        self.device = device
        self._index = device.index
        self._kernel = kernel
        self._pages = _Pages(kernel)
        self._fixed = _Pages(kernel)
        self._gate = torch.zeros(1, dtype=torch.int32, device=device)
        self._gate_address = self._gate.data_ptr()
        self._cursor = kernel.allocate(8)
        self._places = PinnedPlaces(kernel, _SLICE_ROWS)
        self._stretches: dict[int, _Stretches] = {}
        self.book: native.Book | None = None
        if native.AVAILABLE and c.available():
            self.book = native.Book()
            self.book.on_cuda(self._index, *kernel.launcher())
        self.ensure(_ROWS_PER_PAGE)

    @property
    def can_take(self) -> bool:
        """Whether one of the places to bring rows to is free."""
        return self._places.free > 0

    @property
    def nbytes(self) -> tuple[int, int]:
        tables = sum(s.nbytes for s in self._stretches.values())
        there = self._pages.nbytes + self._fixed.nbytes + tables
        return self._places.nbytes + tables, there

    @property
    def for_graphs(self) -> object:
        """What has to live as long as a CUDA graph that writes here."""
        return self._gate, self._fixed

    def ensure(self, n_rows: int) -> None:
        pages, wanted = self._pages, n_rows
        if n_rows > _SLICE_ROWS:
            pages, wanted = self._fixed, n_rows - _SLICE_ROWS
        if wanted <= pages.n_rows:
            return
        with self._here():
            pages.ensure(wanted, self._stream())
        self._places.rows = self._pages.n_rows + self._fixed.n_rows
        if self.book is not None:
            self.book.move(_ROWS_PER_PAGE, self._pages.bases, self._pages)

    def _address(self, index: int) -> int:
        if index < _SLICE_ROWS:
            return self._pages.bases[index >> 8] + (index & 255) * layout.ROW_BYTES
        index -= _SLICE_ROWS
        return self._fixed.bases[index >> 8] + (index & 255) * layout.ROW_BYTES

    def add(self, index: int, x: Tensor, *, gated: bool = False) -> None:
        address = self._address(index)
        gate = self._gate_address if gated else 0
        if current_device() != self._index:
            with self._here():
                self._add(address, x, gate)
        elif plain.is_plain(x) and x.is_contiguous():
            self._kernel.one(
                plain.DTYPES[x.dtype],
                x.data_ptr(),
                x.numel(),
                address,
                1,
                raw_stream(self._index),
                gate,
            )
        else:
            self._add(address, x, gate)

    def _add(self, address: int, x: Tensor, gate: int) -> None:
        """Whatever it is and wherever it lies."""
        values, repeat, zeros = plain.readable(x)
        name = plain.DTYPES[values.dtype]
        stream = self._stream()
        n = values.numel()
        if n == 0:
            pass
        elif plain.is_dense(values):
            self._kernel.one(name, values.data_ptr(), n, address, repeat, stream, gate)
        else:
            if values.dim() > cuda.MAX_DIMENSIONS:
                values = values.contiguous()
            self._kernel.view(
                name,
                values.data_ptr(),
                tuple(values.shape),
                values.stride(),
                address,
                repeat=repeat,
                stream=stream,
                gate=gate,
            )
        if zeros:
            plain.add_zeros(_as_tensor(address, self.device), zeros)

    def takes(self, x: Tensor) -> bool:
        return plain.is_plain(x) and (plain.is_dense(x) or _runs(x) is not None)

    def add_many(
        self,
        offsets: NDArray[np.int64],
        tensors: Sequence[Tensor],
        *,
        first: int = 0,
        copies: TensorCopies | None = None,
        olds: TensorCopies | None = None,
        gated: bool = False,
    ) -> None:
        others = copies or olds
        mode = cuda.COPY if copies else cuda.DIFFERENCE if olds else cuda.PLAIN
        found = self._stretches.pop(id(offsets), None)
        if found is None or found.offsets is not offsets:
            if len(self._stretches) >= _KEPT_STRETCHES:
                del self._stretches[next(iter(self._stretches))]  # used longest ago
            found = _Stretches(self.device, offsets, tensors)
        self._stretches[id(offsets)] = found
        at = np.array([x.data_ptr() for x in tensors], dtype=np.int64).tobytes()
        found.aim(first, self._pages.bases)
        table, n = found.point(at, None if others is None else others.addresses)
        gate = self._gate_address if gated else 0
        with self._here():
            self._kernel.many(mode, table, n, stream=self._stream(), gate=gate)

    def open_gate(self, is_open: bool) -> None:
        """Let launches that were captured into a CUDA graph write to their rows, or not."""
        self._gate.fill_(int(is_open))

    def take(self, used: int | None = None, *, early: bool = False) -> FilledRows:
        used = self._pages.n_rows if used is None else used
        self._places.is_sliced |= early
        kernel, stream = self._kernel, self._stream()
        with self._here():
            place = self._places.get()
            heads = place.memory.address
            n_rows = used + self._fixed.n_rows
            bins = heads + 8 * layout.HEADER * n_rows
            room = place.memory.nbytes // 8 - layout.HEADER * n_rows
            kernel.zero(self._cursor.address, 8, stream)
            for base, n in (*self._pages.parts(used), *self._fixed.parts()):
                kernel.pack(base, n, heads, bins, room, self._cursor.address, stream=stream)
                heads += 8 * layout.HEADER * n
            kernel.record(place.arrived.cuda_event, stream)
        return PlacedRows(self._places, place, used, n_rows)

    def discard(self) -> None:
        with self._here():
            for base, n in (*self._pages.parts(), *self._fixed.parts()):
                self._kernel.take(base, n, 0, stream=self._stream())

    def close(self) -> None:
        with self._here():
            if self.book is not None:
                self.book.move(_ROWS_PER_PAGE, [], None)
            self._stretches.clear()
            self._pages.free()
            self._fixed = _Pages(self._kernel)  # a CUDA graph may write to what it was
            self._cursor.free()
            self._places.close()

    def _here(self) -> AbstractContextManager[object]:
        """What is launched inside is launched on this device, whichever is the current one."""
        return _NOTHING if current_device() == self._index else torch.cuda.device(self._index)

    def _stream(self) -> int:
        return raw_stream(self._index)


class _Pages:
    """Rows in device memory, 256 on a page."""

    def __init__(self, kernel: cuda.Kernel) -> None:
        self._kernel = kernel
        self._memories: list[cuda.RawMemory] = []
        self.bases: list[int] = []

    @property
    def n_rows(self) -> int:
        return _ROWS_PER_PAGE * len(self.bases)

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in self._memories)

    def ensure(self, n_rows: int, stream: int) -> None:
        """Have at least so many rows; the new ones are empty for whoever uses the stream."""
        while self.n_rows < n_rows:
            more = min(max(len(self.bases), 1), -(-_SLICE_ROWS // _ROWS_PER_PAGE))
            try:
                memory = self._kernel.allocate(more * _PAGE_BYTES)
            except cuda.Unavailable:  # torch may hold what it does not use
                torch.cuda.empty_cache()
                memory = self._kernel.allocate(more * _PAGE_BYTES)
            self._kernel.take(memory.address, more * _ROWS_PER_PAGE, 0, stream=stream)
            self._memories.append(memory)
            self.bases += [memory.address + i * _PAGE_BYTES for i in range(more)]

    def parts(self, n_rows: int | None = None) -> Iterator[tuple[int, int]]:
        """The first rows, or all: address and number of those that lie next to each other."""
        left = self.n_rows if n_rows is None else n_rows
        for memory in self._memories:
            n = min(memory.nbytes // layout.ROW_BYTES, left)
            left -= n
            if n:
                yield memory.address, n

    def free(self) -> None:
        for memory in self._memories:
            memory.free()
        self._memories.clear()
        self.bases.clear()


class _Bare:
    """Device memory, as torch takes it."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (layout.WORDS,),
            "typestr": "<i8",
            "version": 3,
        }


def _as_tensor(address: int, device: torch.device) -> Tensor:
    """A row as a tensor, where it lies."""
    return torch.as_tensor(_Bare(address), device=device)


class _Stretches:
    """The table of stretches for `many`: fixed lengths and rows, addresses that may change.

    Built on the host and kept on the device while it holds: parameters and optimizer state stay
    where they are, so most steps find their table unchanged.
    """

    def __init__(
        self,
        device: torch.device,
        offsets: NDArray[np.int64],
        tensors: Sequence[Tensor],
    ) -> None:
        self.offsets = offsets  # kept: its identity stands for these tensors
        counts = np.array([x.numel() for x in tensors], dtype=np.int64)
        widths = np.array([x.element_size() for x in tensors], dtype=np.int64)
        codes = np.array([cuda.DTYPES[plain.DTYPES[x.dtype]] for x in tensors], dtype=np.int64)
        found = [(0, 0) if plain.is_dense(x) else _runs(x) or (0, 0) for x in tensors]
        runs, pitches = np.array(found, dtype=np.int64).T
        whole = np.maximum(runs, 1)  # a stretch ends where a run ends
        sizes = np.maximum(cuda.STRETCH // whole, 1) * whole
        pieces = -(-counts // sizes)
        which = np.repeat(np.arange(len(tensors)), pieces)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        firsts = nth * sizes[which]
        self._which = which
        starts = np.where(runs[which] > 0, firsts // whole[which] * pitches[which], firsts)
        self._offsets = starts * widths[which]
        shape = (len(which), cuda.STRETCH_WORDS)
        self._table = torch.empty(shape, dtype=torch.int64, device=device)
        self._pinned = torch.empty(shape, dtype=torch.int64, pin_memory=True)
        self._words = self._pinned.numpy()
        self._words[:, 1] = 0
        self._words[:, 2] = np.minimum(sizes[which], counts[which] - firsts)
        self._words[:, 4] = codes[which]
        vectors = cuda.VECTOR // widths
        self._words[:, 5] = (runs // vectors + (pitches // vectors << 32))[which]
        self._sent = torch.cuda.Event()
        self._at: bytes = b""
        self._first = -1
        self._rows: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._others: NDArray[np.int64] | None = None
        self.nbytes = self._pinned.nbytes

    def aim(self, first: int, bases: Sequence[int]) -> None:
        """Have the sketches go to the rows from this one on; pages never move."""
        if first != self._first:
            rows = first + self.offsets
            pages = np.array(bases, dtype=np.int64)
            self._first = first
            self._rows = pages[rows >> 8] + (rows & 255) * layout.ROW_BYTES
            self._at = b""

    def point(self, at: bytes, others: NDArray[np.int64] | None) -> tuple[int, int]:
        """Address and length of the table on the device, when the tensors lie there."""
        if at != self._at or not _same(others, self._others):
            if not self._sent.query():
                # The last table is still on its way: never wait for it, write another one.
                self._pinned = torch.empty_like(self._pinned, pin_memory=True)
                was, self._words = self._words, self._pinned.numpy()
                self._words[:] = was
            self._words[:, 0] = np.frombuffer(at, dtype=np.int64)[self._which] + self._offsets
            self._words[:, 3] = self._rows[self._which]
            if others is not None or self._others is not None:
                self._words[:, 1] = 0 if others is None else others[self._which] + self._offsets
            self._table.copy_(self._pinned, non_blocking=True)
            self._sent.record(torch.cuda.current_stream(self._table.device))
            self._at, self._others = at, others
        return self._table.data_ptr(), len(self._words)


def _runs(x: Tensor) -> tuple[int, int] | None:
    """How many values lie next to each other, and how far it is from there to the next as many.

    None if it is not as even as that, or not in whole vectors. The head of attention that a larger
    tensor holds is.
    """
    per = cuda.VECTOR // x.element_size()
    run, pitch, expected = 1, 0, 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            if pitch:
                return None
            pitch = expected = stride
        elif not pitch:
            run *= size
        expected *= size
    is_whole = pitch > run and run % per == 0 and pitch % per == 0 and x.data_ptr() % 16 == 0
    return (run, pitch) if is_whole and x.dtype in _VECTORS and x.numel() < 1 << 31 else None


def _same(a: NDArray[np.int64] | None, b: NDArray[np.int64] | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or np.array_equal(a, b)
