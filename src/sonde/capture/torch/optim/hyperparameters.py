"""What optimizers work with, as scalars: learning rate, betas, eps, weight decay, momentum; and the
scale of a gradient scaler.

Read when an optimizer is about to step, so each is the value that the step used. A value that lies
on a device is sent to the host without waiting.

`lr` belongs to the first parameter group of the first optimizer. Others have their place in the
name: `lr/group1`, `lr/optimizer1`, `lr/optimizer1/group1`; a group with a `name` goes by it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from numbers import Real
from typing import Final
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from sonde._torch_internals.frames import never_trace
from sonde.capture.drain import Numbers
from sonde.capture.torch.capture import Capture
from sonde.capture.torch.cuda import copies

KEYS: Final = ("lr", "betas", "eps", "weight_decay", "momentum")
LOSS_SCALE: Final = "loss_scale"

Value = float | Callable[[], float]


class Hyperparameters:
    """Hooks on the optimizers of a model. `taken` are names that the user logs: these are left out.

    `remember` takes each number too, with its step and name.
    """

    def __init__(
        self,
        capture: Capture,
        optimizers: Sequence[Optimizer],
        remember: Callable[[int, str, Value], None],
    ) -> None:
        self.taken: set[str] = set()
        self._capture = capture
        self._remember = remember
        self._optimizers = [ref(o) for o in optimizers]
        self._read_at: dict[int, int] = {}
        self._scaled_at = -1
        self._is_off = False
        self._handles = [o.register_step_pre_hook(self._pre) for o in optimizers]
        capture.graphs.before_end = self.read_all

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _pre(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self._read(optimizer)

    # To the compiler of an optimizer's step: call it as it is, and all that it calls.
    never_trace(_pre)

    def read_all(self) -> None:
        """Read what was not read in this step: a CUDA graph was replayed, which calls no hook."""
        for known in self._optimizers:
            self._read(known())

    def about_to_clip(self, parameters: Sequence[Tensor]) -> None:
        """Norms come from sketches: there is nothing to do."""

    def scaler_begins(self, optimizer: object, scale: Tensor | None) -> None:
        """`GradScaler.step(optimizer)` was called, and may or may not run it."""
        if self._read(optimizer) and isinstance(scale, Tensor):
            self._guarded(partial(self._scaled, scale))

    def scaler_ended(self, optimizer: object) -> None:
        """All was read when it began."""

    def _read(self, optimizer: object) -> bool:
        """Read an optimizer, once in a step; whether it is one of ours."""
        for place, known in enumerate(self._optimizers):
            found = known()
            if found is not None and found is optimizer:
                if self._read_at.get(place) != self._capture.step:
                    self._guarded(partial(self._send_all, place, found))
                return True
        return False

    def _guarded(self, act: Callable[[], None]) -> None:
        """Read, if this step is recorded. Training goes on: what fails is switched off."""
        capture = self._capture
        if self._is_off or not capture.recording or capture.is_closed:
            return
        # What a CUDA graph captures runs at its replays, and has no value before.
        if capture.recorder.capturing is not None or _is_capturing():
            return
        began = time.perf_counter_ns()
        try:
            act()
        except Exception as error:
            capture.troubles.pass_on(error)
            self._is_off = True
            capture.troubles.failed("hyperparameters", error)
        finally:
            capture.spent_ns += time.perf_counter_ns() - began

    def _send_all(self, place: int, optimizer: Optimizer) -> None:
        self._read_at[place] = self._capture.step
        self._send(dict(_numbers(place, optimizer)))

    def _scaled(self, scale: Tensor) -> None:
        if self._scaled_at != self._capture.step:
            self._scaled_at = self._capture.step
            self._send({LOSS_SCALE: copies.number(scale)})

    def _send(self, found: dict[str, Value]) -> None:
        step = self._capture.step
        numbers = {name: value for name, value in found.items() if name not in self.taken}
        for name, value in numbers.items():
            self._remember(step, name, value)
        if numbers:
            where: list[str | None] = [None] * len(numbers)
            self._capture.drain.put(
                Numbers(step, "train", list(numbers), where, list(numbers.values()))
            )


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured, on a machine that can."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _numbers(place: int, optimizer: Optimizer) -> Iterator[tuple[str, Value]]:
    """Each number of an optimizer with its name."""
    groups = optimizer.param_groups
    given = [group.get("name") for group in groups]
    are_named = all(isinstance(name, str) and name for name in given) and len(set(given)) == len(
        given
    )
    for i, group in enumerate(groups):
        suffix = f"/optimizer{place}" if place else ""
        if are_named:
            suffix += f"/{given[i]}"
        elif i:
            suffix += f"/group{i}"
        for key in KEYS:
            for name, value in _parts(key, group.get(key)):
                number = _number(value)
                if number is not None:
                    yield name + suffix, number


def _parts(key: str, value: object) -> list[tuple[str, object]]:
    if isinstance(value, tuple | list):
        return [(f"{key}.{i}", one) for i, one in enumerate(value)]
    return [(key, value)]


def _number(value: object) -> Value | None:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            return None
        return float(value.detach()) if value.device.type == "cpu" else copies.number(value)
    if isinstance(value, bool):  # a flag, though Python counts it as a number
        return None
    return float(value) if isinstance(value, Real) else None
