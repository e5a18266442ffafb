"""Torch, as the tracer and the pipeline see it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from sonde.tracing.resolving import modules_of
from sonde.tracing.torch import modules
from sonde.tracing.torch.tensor_ops import TorchTensorOps, local, map_tensors, tensors_in
from sonde.tracing.tracer import Remove
from sonde.tracing.windows import TraceWindow


class TorchFramework:
    """See `sonde.tracing.tracer.Framework`."""

    def __init__(self, model: nn.Module) -> None:
        self.nature = TorchTensorOps()
        self.tree = modules.TorchTree(model)
        self._model = model
        found = [m for _, m in modules_of(self.tree)]
        self.known_keys = frozenset(id(m) for m in found)
        self._receivers = modules.Receivers(found)

    @property
    def is_training(self) -> bool:
        return self.tree.root.training

    is_redone = staticmethod(modules.is_redone)

    def receiver_key(self, receiver: object) -> int:
        return self._receivers.key(receiver)

    def on_output(self, module: nn.Module, tell: Callable[[object], None]) -> Remove:
        return modules.on_output(module, tell)

    def around_passes(self, begin: Callable[[], None], end: Callable[[], None]) -> Remove:
        # A wrapper that calls copies of the model in threads makes one pass of them.
        wrapped = self._model if isinstance(self._model, nn.DataParallel) else None
        concerned = (wrapped, self.tree.root) if wrapped is not None else (self.tree.root,)
        removes = [modules.around_calls(m, begin, end) for m in concerned]

        def remove() -> None:
            for each in removes:
                each()

        return remove

    def on_gradients(self, value: object, tell: Callable[[str, Tensor], None]) -> list[Remove]:
        return modules.on_gradients(value, tell)


class TorchSynchronization:
    """See `sonde.tracing.pipeline.Synchronization`. Copies to the host use their own stream."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def is_settled(self, window: TraceWindow) -> bool:
        return all(not e.flags and not _is_on_device(e.value) for e in window.entries)

    def seal(self, window: TraceWindow) -> Callable[[], None]:
        events = []
        # Of flags too: a callback may have made a plain number of the value.
        used = (t for e in window.entries for t in (*tensors_in(e.value), *e.flags))
        for device in {t.device for t in used if t.is_cuda}:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            events.append((device, event))

        def wait() -> None:
            for device, event in events:
                self._stream(device).wait_event(event)

        return wait

    def settle(self, window: TraceWindow) -> None:
        window.entries = [e for e in window.entries if not e.flags or self._any(e.flags)]
        copies: list[torch.device] = []

        def to_host(tensor: Tensor) -> Tensor:
            if tensor.device.type == "cpu":
                return tensor
            if tensor.device.type != "cuda":
                return local(tensor).cpu()
            copies.append(tensor.device)
            with torch.cuda.stream(self._stream(tensor.device)):
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                return host.copy_(tensor, non_blocking=True)

        for entry in window.entries:
            if _is_on_device(entry.value):
                entry.value = map_tensors(entry.value, to_host)
        for device in set(copies):
            self._stream(device).synchronize()

    def size_bytes(self, value: object) -> int:
        return 64 + sum(t.numel() * t.element_size() for t in tensors_in(value))

    def _any(self, flags: list[Tensor]) -> bool:
        """Whether one of the flags is set. Waits for the device, in a stream of our own."""
        for flag in flags:
            if flag.device.type == "cuda":
                with torch.cuda.stream(self._stream(flag.device)):
                    if bool(flag):
                        return True
            elif bool(flag):
                return True
        return False

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


def _is_on_device(value: object) -> bool:
    return any(t.device.type != "cpu" for t in tensors_in(value))
