"""The table of rows on a CUDA device: filled by the fused kernel, drained without a wait.

Rows lie at fixed addresses in device memory, so compiled code and CUDA graphs can write to them. At
the end of a step one kernel on the training stream copies them aside and empties them; a second
stream brings the copy to pinned host memory while training goes on. There are a few places to bring
them to: when all hold rows that nobody has read yet, the step is dropped, and nobody waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.capture import quick
from sonde.capture.rows import Filled
from sonde.capture.torch.tables import Measured, Snapshot
from sonde.kernels import c, cuda, row
from sonde.kernels import torch as plain
from sonde.record import Sketches
from sonde.sketch import take

_stream_of: Final = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: 0)
_current_device: Final = getattr(torch._C, "_cuda_getDevice", lambda: 0)
_VECTORS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})
_ROWS_PER_PAGE: Final = 256
_PAGE_BYTES: Final = _ROWS_PER_PAGE * row.ROW_BYTES
_MOST_PLACES: Final = 6
_PINNED_BYTES: Final = 128 << 20
"""Pinned host memory for rows: as many places as that is enough for, but two at least."""
_KEPT_STRETCHES: Final = 64
_NOTHING: Final = nullcontext()


def table_for(device: torch.device) -> CudaTable:
    """An empty table on that device.

    Raises:
        sonde.kernels.cuda.Unavailable: if the kernel cannot be compiled or loaded here.
    """
    index = device.index if device.index is not None else torch.cuda.current_device()
    kernel = kernel_on(index)
    with torch.cuda.device(index), torch._C._DisableFuncTorch():
        return CudaTable(torch.device("cuda", index), kernel)


def kernel_on(index: int) -> cuda.Kernel:
    """The kernel on the device of that number; raises as `table_for` does."""
    properties = torch.cuda.get_device_properties(index)
    with torch.cuda.device(index), torch._C._DisableFuncTorch():
        torch.empty(1, device="cuda")  # makes the context that the kernel is loaded into
        capability = (properties.major, properties.minor)
        return cuda.load(index, capability, properties.multi_processor_count)


class CudaTable:
    """Rows in device memory, in pages that never move."""

    kernel = "cuda"

    def __init__(self, device: torch.device, kernel: cuda.Kernel) -> None:
        self.device = device
        self._index = device.index
        self._kernel = kernel
        self._pages: list[Tensor] = []
        self._bases: list[int] = []
        self._gate = torch.zeros(1, dtype=torch.int32, device=device)
        self._gate_address = self._gate.data_ptr()
        self._side = torch.cuda.Stream(device)
        self._places = [_Place(self._side) for _ in range(_MOST_PLACES)]
        self._asides = [_Aside(self._side), _Aside(self._side)]
        self._stretches: dict[int, _Stretches] = {}
        self.book: quick.Book | None = None
        if quick.AVAILABLE and c.available():
            self.book = quick.Book()
            self.book.on_cuda(self._index, *kernel.launcher())
        self.ensure(_ROWS_PER_PAGE)

    @property
    def can_take(self) -> bool:
        """Whether one of the places to bring rows to is free."""
        return self._free() > 0

    def _free(self) -> int:
        n = min(_MOST_PLACES, _PINNED_BYTES // (len(self._pages) * _PAGE_BYTES))
        return max(n, 2) - sum(place.is_busy for place in self._places)

    def ensure(self, n_rows: int) -> None:
        while n_rows > len(self._pages) * _ROWS_PER_PAGE:
            with torch._C._DisableFuncTorch():
                shape = (_ROWS_PER_PAGE, row.WORDS)
                page = torch.empty(shape, dtype=torch.int64, device=self.device)
            self._pages.append(page)
            self._bases.append(page.data_ptr())
            with self._here():
                self._kernel.take(page.data_ptr(), _ROWS_PER_PAGE, 0, stream=self._stream())
            if self.book is not None:
                self.book.move(_ROWS_PER_PAGE, self._bases, list(self._pages))

    def add(self, index: int, x: Tensor, *, gated: bool = False) -> None:
        address = self._bases[index >> 8] + (index & 255) * row.ROW_BYTES
        gate = self._gate_address if gated else 0
        if _current_device() != self._index:
            with self._here():
                self._add(index, address, x, gate)
        elif plain.is_plain(x) and x.is_contiguous():
            self._kernel.one(
                plain.DTYPES[x.dtype],
                x.data_ptr(),
                x.numel(),
                address,
                1,
                _stream_of(self._index),
                gate,
            )
        else:
            self._add(index, address, x, gate)

    def _add(self, index: int, address: int, x: Tensor, gate: int) -> None:
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
            plain.add_zeros(self._pages[index >> 8][index & 255], zeros)

    def takes(self, x: Tensor) -> bool:
        return plain.is_plain(x) and (plain.is_dense(x) or _runs(x) is not None)

    def add_many(
        self,
        indices: NDArray[np.int64],
        tensors: Sequence[Tensor],
        measured: Measured | None,
        *,
        copies: Snapshot | None = None,
        olds: Snapshot | None = None,
        gated: bool = False,
    ) -> None:
        others = copies or olds
        mode = cuda.COPY if copies else cuda.DIFFERENCE if olds else cuda.PLAIN
        found = self._stretches.pop(id(indices), None)
        if found is None or found.indices is not indices:
            if len(self._stretches) >= _KEPT_STRETCHES:
                del self._stretches[next(iter(self._stretches))]  # used longest ago
            found = _Stretches(self.device, self._bases, indices, tensors)
        self._stretches[id(indices)] = found
        if measured is not None:
            at = measured[0]
        else:
            at = np.array([x.data_ptr() for x in tensors], dtype=np.int64).tobytes()
        table, n = found.point(at, None if others is None else others.addresses)
        gate = self._gate_address if gated else 0
        with self._here():
            self._kernel.many(mode, table, n, stream=self._stream(), gate=gate)

    def open_gate(self, is_open: bool) -> None:
        """Let launches that were captured into a CUDA graph write to their rows, or not."""
        self._gate.fill_(int(is_open))

    def take(self) -> Filled:
        place = next(p for p in self._places if not p.is_busy)
        aside = self._asides[0]
        self._asides.reverse()
        kernel, stream, side = self._kernel, self._stream(), self._side.cuda_stream
        n_bytes = len(self._pages) * _PAGE_BYTES
        with self._here():
            if aside.left:
                kernel.wait(stream, aside.left)
            if aside.memory.nbytes < n_bytes or place.memory.nbytes < n_bytes:
                # Rows belong to no `torch.func` transformation, even if one is running.
                with torch._C._DisableFuncTorch():
                    aside.grow(n_bytes, self.device)
                    place.grow(n_bytes)
            place.is_busy = True
            for i, base in enumerate(self._bases):
                kernel.take(base, _ROWS_PER_PAGE, aside.address + i * _PAGE_BYTES, stream=stream)
            kernel.record(aside.filled.cuda_event, stream)
            kernel.wait(side, aside.filled.cuda_event)
            kernel.bring(place.address, aside.address, n_bytes, side)
            kernel.record(place.arrived.cuda_event, side)
        aside.left = place.arrived.cuda_event
        return _CudaRows(place, n_bytes, can_wait=2 * self._free() > _MOST_PLACES)

    def discard(self) -> None:
        with self._here():
            for base in self._bases:
                self._kernel.take(base, _ROWS_PER_PAGE, 0, stream=self._stream())

    def _here(self) -> AbstractContextManager[object]:
        """What is launched inside is launched on this device, whichever is the current one."""
        return _NOTHING if _current_device() == self._index else torch.cuda.device(self._index)

    def _stream(self) -> int:
        return _stream_of(self._index)


class _Aside:
    """Device memory where rows lie until they have left for the host; `left` is the event of that,
    0 if there was none. (An event has no number before it was recorded once.)"""

    def __init__(self, side: torch.cuda.Stream) -> None:
        self.filled = torch.cuda.Event()
        self.filled.record(side)
        self.left = 0
        self.memory = torch.empty(0)
        self.address = 0

    def grow(self, n_bytes: int, device: torch.device) -> None:
        if self.memory.nbytes < n_bytes:
            self.memory = torch.empty(n_bytes, dtype=torch.uint8, device=device)
            self.address = self.memory.data_ptr()


class _Place:
    """Pinned host memory that rows are brought to, and stay in until somebody has read them."""

    def __init__(self, side: torch.cuda.Stream) -> None:
        self.arrived = torch.cuda.Event(blocking=True)
        self.arrived.record(side)
        self.memory = torch.empty(0)
        self.address = 0
        self.is_busy = False

    def grow(self, n_bytes: int) -> None:
        if self.memory.nbytes < n_bytes:
            self.memory = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
            self.address = self.memory.data_ptr()


class _CudaRows:
    """Rows on their way to the host."""

    def __init__(self, place: _Place, n_bytes: int, *, can_wait: bool) -> None:
        self._place = place
        self.size_bytes = n_bytes
        self.can_wait = can_wait

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        try:
            self._place.arrived.synchronize()  # sleeps, and lets other threads run
            with torch._C._DisableFuncTorch():
                table = self._place.memory.numpy()[: self.size_bytes].view(np.int64)
            table = table.reshape(-1, row.WORDS)
            if c.available():
                return c.pack(table, rows, empties=False)
            return take(row.unpack(table), rows)
        finally:
            self._place.is_busy = False


class _Stretches:
    """The table of stretches for `many`: fixed lengths and rows, addresses that may change.

    Built on the host and kept on the device while it holds: parameters and optimizer state stay
    where they are, so most steps find their table unchanged.
    """

    def __init__(
        self,
        device: torch.device,
        bases: Sequence[int],
        indices: NDArray[np.int64],
        tensors: Sequence[Tensor],
    ) -> None:
        self.indices = indices  # kept: its identity stands for these tensors
        counts = np.array([x.numel() for x in tensors], dtype=np.int64)
        widths = np.array([x.element_size() for x in tensors], dtype=np.int64)
        codes = np.array([cuda.DTYPES[plain.DTYPES[x.dtype]] for x in tensors], dtype=np.int64)
        pages = np.array(bases, dtype=np.int64)
        addresses = pages[indices >> 8] + (indices & 255) * row.ROW_BYTES
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
        self._words[:, 3] = addresses[which]
        self._words[:, 4] = codes[which]
        vectors = cuda.VECTOR // widths
        self._words[:, 5] = (runs // vectors + (pitches // vectors << 32))[which]
        self._sent = torch.cuda.Event()
        self._at: bytes = b""
        self._others: NDArray[np.int64] | None = None

    def point(self, at: bytes, others: NDArray[np.int64] | None) -> tuple[int, int]:
        """Address and length of the table on the device, when the tensors lie there."""
        if at != self._at or not _same(others, self._others):
            if not self._sent.query():
                # The last table is still on its way: never wait for it, write another one.
                self._pinned = torch.empty_like(self._pinned, pin_memory=True)
                was, self._words = self._words, self._pinned.numpy()
                self._words[:] = was
            self._words[:, 0] = np.frombuffer(at, dtype=np.int64)[self._which] + self._offsets
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
