"""The table of rows on a CUDA device: filled by the fused kernel, drained without a wait.

Rows lie at fixed addresses in device memory, so compiled code and CUDA graphs can write to them. At
the end of a step one kernel on the training stream copies them aside and empties them; a second
stream brings the copy to pinned host memory while training goes on. There are two places to copy
to: when both are still on their way, the step is dropped, and nobody waits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.capture.rows import Filled
from sonde.kernels import c, cuda, row
from sonde.kernels import torch as plain
from sonde.record import Sketches
from sonde.sketch import take

_ROWS_PER_PAGE: Final = 256
_POLL_S: Final = 0.0005


def table_for(device: torch.device) -> CudaTable:
    """An empty table on that device.

    Raises:
        sonde.kernels.cuda.Unavailable: if the kernel cannot be compiled or loaded here.
    """
    properties = torch.cuda.get_device_properties(device)
    index = device.index if device.index is not None else torch.cuda.current_device()
    with torch.cuda.device(index):
        torch.empty(1, device=device)  # makes the context that the kernel is loaded into
        capability = (properties.major, properties.minor)
        kernel = cuda.load(index, capability, properties.multi_processor_count)
        return CudaTable(torch.device("cuda", index), kernel)


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
        self._stage = [_Stage(device), _Stage(device)]
        self._work = _Work(device)
        self.ensure(_ROWS_PER_PAGE)

    @property
    def can_take(self) -> bool:
        """Whether one of the two places to copy rows to is free."""
        return any(not s.busy for s in self._stage)

    def ensure(self, n_rows: int) -> None:
        while n_rows > len(self._pages) * _ROWS_PER_PAGE:
            page = torch.empty((_ROWS_PER_PAGE, row.WORDS), dtype=torch.int64, device=self.device)
            self._pages.append(page)
            self._bases.append(page.data_ptr())
            self._kernel.take(page.data_ptr(), _ROWS_PER_PAGE, 0, stream=self._stream())

    def add(self, index: int, x: Tensor, *, gated: bool = False) -> None:
        values, repeat, zeros = plain.readable(x)
        address = self._bases[index >> 8] + (index & 255) * row.ROW_BYTES
        name = plain.DTYPES[values.dtype]
        stream = self._stream()
        gate = self._gate.data_ptr() if gated else 0
        n = values.numel()
        if n == 0:
            pass
        elif plain.is_dense(values):
            self._kernel.one(
                name, values.data_ptr(), n, address, repeat=repeat, stream=stream, gate=gate
            )
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

    def add_many(
        self,
        indices: Sequence[int],
        tensors: Sequence[Tensor],
        *,
        copies: Sequence[Tensor | None] = (),
        olds: Sequence[Tensor] = (),
        gated: bool = False,
    ) -> None:
        others = copies or olds
        mode = cuda.COPY if copies else cuda.DIFFERENCE if olds else cuda.PLAIN
        table, n = self._work.fill(self._bases, indices, tensors, others)
        gate = self._gate.data_ptr() if gated else 0
        self._kernel.many(mode, table, n, stream=self._stream(), gate=gate)

    def open_gate(self, is_open: bool) -> None:
        """Let launches that were captured into a CUDA graph write to their rows, or not."""
        self._gate.fill_(int(is_open))

    def take(self) -> Filled:
        stage = next(s for s in self._stage if not s.busy)
        return stage.fill(self._kernel, self._pages, self._stream())

    def discard(self) -> None:
        for base in self._bases:
            self._kernel.take(base, _ROWS_PER_PAGE, 0, stream=self._stream())

    def _stream(self) -> int:
        return torch._C._cuda_getCurrentRawStream(self._index)


class _Stage:
    """A place to copy rows to: in device memory first, then in pinned host memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)
        self._copied = torch.cuda.Event()
        self._arrived = torch.cuda.Event()
        self._there = torch.empty((0, row.WORDS), dtype=torch.int64, device=device)
        self._here = torch.empty((0, row.WORDS), dtype=torch.int64)
        self.busy = False

    def fill(self, kernel: cuda.Kernel, pages: Sequence[Tensor], stream: int) -> Filled:
        """Copy all pages here and empty them; on its way to the host when this returns."""
        n_rows = len(pages) * _ROWS_PER_PAGE
        if len(self._there) < n_rows:
            self._there = torch.empty((n_rows, row.WORDS), dtype=torch.int64, device=self._device)
            self._here = torch.empty((n_rows, row.WORDS), dtype=torch.int64, pin_memory=True)
        self.busy = True
        for i, page in enumerate(pages):
            to = self._there[i * _ROWS_PER_PAGE].data_ptr()
            kernel.take(page.data_ptr(), _ROWS_PER_PAGE, to, stream=stream)
        self._copied.record(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._side):
            self._side.wait_event(self._copied)
            self._here.copy_(self._there, non_blocking=True)
            self._arrived.record(self._side)
        return _CudaRows(self, self._here, self._arrived)


class _CudaRows:
    """Rows on their way to the host."""

    def __init__(self, stage: _Stage, here: Tensor, arrived: Any) -> None:
        self._stage = stage
        self._here = here
        self._arrived = arrived
        self.size_bytes = here.nbytes

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        while not self._arrived.query():
            time.sleep(_POLL_S)
        table = self._here.numpy()
        found = c.pack(table, rows) if c.available() else take(row.unpack(table), rows)
        self._stage.busy = False
        return found


class _Work:
    """The table of stretches for `many`: built on the host, kept on the device while it holds.

    Parameters and optimizer state stay where they are, so most steps find their table unchanged.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[tuple[int, int], _Stretches] = {}

    def fill(
        self,
        bases: Sequence[int],
        indices: Sequence[int],
        tensors: Sequence[Tensor],
        others: Sequence[Tensor | None],
    ) -> tuple[int, int]:
        """Address and length of the table on the device."""
        key = (indices[0], len(indices))
        found = self._kept.get(key)
        if found is None or not found.fits(indices, tensors):
            found = self._kept[key] = _Stretches(self._device, bases, indices, tensors)
        return found.point(tensors, others)


class _Stretches:
    """The stretches of some tensors: fixed lengths and rows, addresses that may change."""

    def __init__(
        self,
        device: torch.device,
        bases: Sequence[int],
        indices: Sequence[int],
        tensors: Sequence[Tensor],
    ) -> None:
        self._indices = list(indices)
        self._sizes = [(x.numel(), x.dtype) for x in tensors]
        counts = np.array([x.numel() for x in tensors], dtype=np.int64)
        widths = np.array([x.element_size() for x in tensors], dtype=np.int64)
        pieces = -(-counts // cuda.STRETCH)
        which = np.repeat(np.arange(len(tensors)), pieces)
        nth = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        codes = np.array([cuda.DTYPES[plain.DTYPES[x.dtype]] for x in tensors], dtype=np.int64)
        addresses = np.array(
            [bases[i >> 8] + (i & 255) * row.ROW_BYTES for i in indices], dtype=np.int64
        )
        self._which = which
        self._offsets = nth * cuda.STRETCH * widths[which]
        self._n = len(which)
        shape = (self._n, cuda.STRETCH_WORDS)
        self._pinned = torch.empty(shape, dtype=torch.int64, pin_memory=True)
        self._table = torch.empty(shape, dtype=torch.int64, device=device)
        self._sent = torch.cuda.Event()
        words = self._pinned.numpy()
        words[:, 2] = np.minimum(cuda.STRETCH, counts[which] - nth * cuda.STRETCH)
        words[:, 3] = addresses[which]
        words[:, 4] = codes[which]
        words[:, 5] = 0
        self._pointers: tuple[Any, ...] = ()

    def fits(self, indices: Sequence[int], tensors: Sequence[Tensor]) -> bool:
        return self._indices == list(indices) and all(
            x.numel() == n and x.dtype is d for x, (n, d) in zip(tensors, self._sizes, strict=True)
        )

    def point(self, tensors: Sequence[Tensor], others: Sequence[Tensor | None]) -> tuple[int, int]:
        """Put in where the tensors lie now, and send the table if anything moved."""
        pointers = (
            tuple(x.data_ptr() for x in tensors),
            tuple(0 if x is None else x.data_ptr() for x in others),
        )
        if pointers != self._pointers:
            if not self._sent.query():
                # The last table is still on its way: never wait for it, write another one.
                self._pinned = self._pinned.clone().pin_memory()
            words = self._pinned.numpy()
            words[:, 0] = np.array(pointers[0], dtype=np.int64)[self._which] + self._offsets
            words[:, 1] = 0
            if others:
                base = np.array(pointers[1], dtype=np.int64)[self._which]
                words[:, 1] = np.where(base == 0, 0, base + self._offsets)
            self._table.copy_(self._pinned, non_blocking=True)
            self._sent.record(torch.cuda.current_stream(self._table.device))
            self._pointers = pointers
        return self._table.data_ptr(), self._n
