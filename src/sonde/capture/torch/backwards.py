"""Steps that are backward passes: for programs that give Sonde no optimizer and end no step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor, nn

from sonde._torch_internals.frames import never_trace
from sonde._torch_internals.tensors import after_backward, current_backward
from sonde.capture.leaves import leaves

_MAX_OUTPUTS: Final = 64


class BackwardSteps:
    """Calls `end` after each backward pass through a model: `BackwardSteps(model, watch.step)`.

    Passes in evaluation mode, without gradients or recomputed in a backward do not count. Several
    forwards before one backward make one step. With `waits`, so do several backwards without a
    forward in between; such a step ends when the next forward begins.
    """

    def __init__(self, model: nn.Module, end: Callable[[], None], *, waits: bool = False) -> None:
        self._model = ref(model)
        self._end = end
        self._waits = waits
        self._forwards = 0
        self._backwards = 0
        self._is_over = False
        self._queued = -1
        self._handles = [
            model.register_forward_pre_hook(self._before),
            model.register_forward_hook(self._after),
        ]

    def end_open(self) -> None:
        """End the step that is under way, if a backward pass has been through it."""
        if self._is_over:
            self._finish()

    def close(self) -> None:
        """Take the hooks off, after the step under way."""
        self.end_open()
        for handle in self._handles:
            handle.remove()

    def _is_training(self) -> bool:
        model = self._model()
        trains = model is not None and model.training and torch.is_grad_enabled()
        return trains and current_backward() < 0

    def _before(self, _module: nn.Module, _args: object) -> None:
        if self._is_over and self._is_training():
            self._finish()

    def _after(self, _module: nn.Module, _args: object, output: Any) -> None:
        if not self._is_training():
            return
        found = [x for _, x in leaves(output, Tensor, _MAX_OUTPUTS) if x.requires_grad]
        if not found:
            return
        self._forwards += 1
        seen: list[int] = []  # once for each pass, however many outputs it has
        for x in found:
            x.register_hook(lambda _grad: self._arrived(seen))

    # To the compiler of the model: call these as they are.
    for _hook in (_before, _after):
        never_trace(_hook)
    del _hook

    def _arrived(self, seen: list[int]) -> None:
        backward = current_backward()
        if not seen:
            self._backwards += 1
        seen.append(backward)
        if backward == self._queued and backward >= 0:
            return
        self._queued = backward
        if after_backward is None:
            self._is_over = True
        else:
            after_backward(self._passed)

    def _passed(self) -> None:
        """A backward pass is over, and gradients are accumulated."""
        self._queued = -1
        self._is_over = True
        if not self._waits or self._backwards >= self._forwards:
            self._finish()

    def _finish(self) -> None:
        self._is_over = False
        self._forwards = self._backwards = 0
        self._end()
