"""Small tensors on their way to the host: sent without waiting, waited for by whoever reads them.

All that is sent together goes as one tensor per device and dtype. From a CUDA device it is copied
to pinned memory on the training stream, with an event behind it; the thread that reads waits for
the event, asleep. Nothing here asks a device for a value in the training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde._torch_internals.tensors import outside_transforms

_AS: Final = {
    torch.bool: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}
"""What numpy does not have, as what holds it exactly."""


class HostCopies:
    """Tensors that were sent. `arrays` waits for them; any thread may ask, any number of times."""

    __slots__ = ("_arrays", "_batches", "_lock", "_places")

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._places: list[tuple[int, int, int, torch.Size]] = []
        self._batches = self._send(tensors)
        self._arrays: list[NDArray[np.float64]] | None = None
        self._lock = threading.Lock()

    def arrays(self) -> list[NDArray[np.float64]]:
        """Each tensor as it was when it was sent."""
        with self._lock:
            if self._arrays is None:
                flat = [batch.wait() for batch in self._batches]
                self._arrays = [
                    flat[batch][start:end].reshape(shape)
                    for batch, start, end, shape in self._places
                ]
                self._batches = []
            return self._arrays

    @torch.no_grad()
    def _send(self, tensors: Sequence[Tensor]) -> list[_Batch]:
        # There are thousands in a step: each is looked at as little as possible.
        together: dict[tuple[torch.dtype, int], tuple[int, list[Tensor]]] = {}
        ends: list[int] = []
        for x in tensors:
            key = (x.dtype, x.get_device())
            found = together.get(key)
            if found is None:
                found = together[key] = (len(ends), [])
                ends.append(0)
            batch, several = found
            several.append(x)
            shape = x.shape
            start = ends[batch]
            ends[batch] = end = start + (x.numel() if shape else 1)
            self._places.append((batch, start, end, shape))
        # What is sent belongs to no `torch.func` transformation, even if one is running.
        with outside_transforms():
            return [_Batch(_joined(several)) for _, several in together.values()]


def number(x: Tensor) -> Callable[[], float]:
    """One number, later: calling what is returned waits for it."""
    arrived = HostCopies([x.detach()])
    return lambda: float(arrived.arrays()[0].item())


class _Batch:
    """One flat tensor, on its way."""

    __slots__ = ("_event", "_host")

    def __init__(self, flat: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = flat
        if flat.device.type == "cuda":
            self._host = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True)
            self._host.copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event(blocking=True)
            self._event.record(torch.cuda.current_stream(flat.device))

    def wait(self) -> NDArray[np.float64]:
        if self._event is not None:
            self._event.synchronize()
        found: NDArray[np.float64] = self._host.cpu().numpy().astype(np.float64)
        return found


def _joined(tensors: list[Tensor]) -> Tensor:
    """A new tensor with the elements of all."""
    if all(x.dim() == 0 for x in tensors):
        flat = torch.stack(tensors)  # as most are, in thousands: no object is made for each
    else:
        flat = torch.cat([x.reshape(-1) for x in tensors])
    return flat.to(_AS.get(flat.dtype, flat.dtype))
