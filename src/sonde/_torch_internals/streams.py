"""CUDA streams and memory pools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from sonde._torch_internals.registry import uses

_raw = uses(
    "raw_stream",
    "torch._C:_cuda_getCurrentRawStream",
    purpose="kernels are launched on the stream that torch uses now",
    fallback="`torch.cuda.current_stream`, which takes longer",
).find()
_device = uses(
    "current_device",
    "torch._C:_cuda_getDevice",
    purpose="whether a tensor's device is the current one",
    fallback="`torch.cuda.current_device`, which takes longer",
).find()
_end_pool = uses(
    "end_pool",
    "torch._C:_cuda_endAllocateToPool",
    purpose="after a recording of a CUDA graph that failed, memory is allocated as before",
    fallback="metrics are computed without CUDA graphs",
).find()


def _public_stream(index: int) -> int:
    return int(torch.cuda.current_stream(index).cuda_stream)


raw_stream: Final[Callable[[int], int]] = _raw[0] if _raw else _public_stream
"""Return the handle of the current stream of a device.

Raises what torch raises where it cannot be asked: never another stream's handle. A kernel on a
stream of which torch does not know could read a tensor before it is computed.
"""

current_device: Final[Callable[[], int]] = _device[0] if _device else torch.cuda.current_device
"""Return the number of the current device."""

CAN_RECOVER: Final = _end_pool is not None
"""Whether a recording of a CUDA graph may fail without consequences."""


def end_pool(device: int, pool: tuple[int, int]) -> None:
    """Stop allocating to the pool of a recording that failed."""
    if _end_pool:
        _end_pool[0](device, pool)
