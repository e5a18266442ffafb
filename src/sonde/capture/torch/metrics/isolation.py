"""What a look at a training must leave as it was: random numbers, and buffers of modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn

from sonde._torch_internals.modules import RUNNING_NORMS, own_buffers, set_buffer
from sonde._torch_internals.tensors import SET_GRAD_ENABLED, version_of


class Isolation:
    """Inside this block, code of others may compute what it likes: without gradients, without
    autocast if that is on, and with random numbers that the training will not miss.

    About 5 microseconds on a CPU, which is why it is not made of existing blocks: `torch.autocast`
    alone takes as long.
    """

    __slots__ = ("_autocast", "_device", "_grad", "_offset", "_state")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._autocast = False

    def __enter__(self) -> None:
        self._state = torch.default_generator.get_state()
        self._offset = _offset(self._device)
        self._grad = torch.is_grad_enabled()
        SET_GRAD_ENABLED(False)
        self._autocast = torch.is_autocast_enabled(self._device.type)
        if self._autocast:
            torch.set_autocast_enabled(self._device.type, False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._autocast:
            torch.set_autocast_enabled(self._device.type, True)
        SET_GRAD_ENABLED(self._grad)
        torch.default_generator.set_state(self._state)
        if self._offset is not None and _offset(self._device) != self._offset:
            torch.cuda.default_generators[_index(self._device)].set_offset(self._offset)


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Whatever is drawn inside this block will be drawn again after it, on every device."""
    state = torch.default_generator.get_state()
    devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    states = [g.get_state() for g in devices]
    try:
        yield
    finally:
        torch.default_generator.set_state(state)
        for generator, kept in zip(devices, states, strict=True):
            generator.set_state(kept)


class Buffers:
    """Puts back what a forward changes in the buffers of a module: the statistics of BatchNorm.

    The first time all buffers are copied; after that only those that did change.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changing: set[tuple[nn.Module, str]] | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Inside this block the module may be called."""
        held = [
            (module, name, x, version_of(x), x.clone())
            for module in self._module.modules()
            for name, x in own_buffers(module).items()
            if x is not None and (self._changing is None or (module, name) in self._changing)
        ]
        changed: set[tuple[nn.Module, str]] = set()
        try:
            yield
        finally:
            for module, name, x, version, copy in held:
                # The kernels of BatchNorm write without raising the version.
                is_silent = isinstance(module, RUNNING_NORMS)
                if is_silent or own_buffers(module).get(name) is not x or version_of(x) != version:
                    changed.add((module, name))
                    _put_back(module, name, x, copy)
            if self._changing is None:
                self._changing = changed


@torch.no_grad()
def _put_back(module: nn.Module, name: str, x: Tensor, copy: Tensor) -> None:
    x.copy_(copy)
    set_buffer(module, name, x)


def _offset(device: torch.device) -> int | None:
    """How far the device's random numbers have come, without asking the device."""
    if device.type != "cuda" or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.default_generators[_index(device)].get_offset())


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index
