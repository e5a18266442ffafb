"""Recognising passes: when a call of a module begins one, of which phase, and on which path.

Most of it is asked when a pass begins. What cannot be told from hooks alone is read off the frames
of the interpreter: a call inside another call, a checkpoint, the forward of an autograd function.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from types import CodeType, FrameType
from typing import Final, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from sonde._python import frame_at
from sonde._torch_internals import modules
from sonde._torch_internals.placements import is_inferring_shapes
from sonde._torch_internals.tensors import (
    HAS_HOOK_DICTS,
    HAS_VERSIONS,
    current_backward,
    is_forward_mode_enabled,
    is_fx_tracing,
    is_jit_tracing,
)
from sonde.capture.native import AVAILABLE, Native
from sonde.capture.phases import Phases
from sonde.capture.torch.collector import Pass
from sonde.capture.torch.rows.host import EXCHANGE
from sonde.capture.torch.tap import Tap
from sonde.capture.window import NATIVE_PHASE
from sonde.record import Kind

_GRADIENTS: Final[frozenset[Kind]] = frozenset({"input_grad", "output_grad", "attach_grad"})


class ObserverNeeds(Protocol):
    """What an observer besides the capture needs: which kinds, and whether calls."""

    kinds: frozenset[Kind]
    follows_calls: bool


def native_path(lock: object, root: ref[nn.Module]) -> Native | None:
    """The native path for a capture of a model, with its lock; None where there is none."""
    if not (AVAILABLE and HAS_VERSIONS and HAS_HOOK_DICTS) or EXCHANGE is None:
        return None
    try:
        return Native(lock, root, Tensor, EXCHANGE, current_backward, torch.is_grad_enabled)
    except ValueError:  # not the exchange that we know
        return None


def is_being_traced() -> bool:
    """Whether `torch.jit` or `torch.fx` looks at the model, or a pipeline stage for shapes: such a
    call is none of ours."""
    return is_jit_tracing() or is_fx_tracing() or is_inferring_shapes()


def is_replica(module: nn.Module) -> bool:
    """Whether a module that is not ours may use our hook: a replica of `DataParallel` may, a
    shallow copy only borrowed it."""
    return modules.is_replica(module)


_CALL: Final[CodeType] = modules.CALL


def bind(native: Native | None, at: Pass) -> None:
    """The pass begins in this thread: let what it calls take the native path, if it may."""
    if native is not None:
        native.bound = False
        if at.phase == NATIVE_PHASE:
            native.bind(at.stack, at.calls, at.seen)


def forget_passes(passes: dict[int, Pass], native: Native | None) -> None:
    """No pass will begin: let go of what is known of the last ones."""
    passes.clear()
    if native is not None:
        native.bind([], {}, {})
        native.bound = False


def settle(
    native: Native | None, observer: ObserverNeeds | None, is_live: bool, phases: Collection[str]
) -> None:
    """Say who takes the native path while something is recorded: all, unless an observer has to
    know the calls of modules, or what compiled code shows, or gradients."""
    if native is not None:
        native.alone = observer is None
        is_easy = observer is None or not observer.follows_calls
        native.live = is_live and is_easy and NATIVE_PHASE in phases
        others = frozenset() if observer is None else observer.kinds & _GRADIENTS
        native.hears_gradients = is_live and not others


def is_inside_call_of(module: nn.Module) -> bool:
    """Whether the call of the module that begins now happens inside another call of it.

    For the rare case that cannot be told from a call that was interrupted: looks at the frames.
    """
    found = 0
    frame: FrameType | None = frame_at(1)
    while frame is not None and found < 2:
        if frame.f_code is _CALL and frame.f_locals.get("self") is module:
            found += 1
        frame = frame.f_back
    return found >= 2


def phase_of(phases: Phases, root: nn.Module | None, module: nn.Module | None) -> str:
    """The phase of a pass that begins with this module (None: with compiled code)."""
    trains = root is None or root.training
    called = root if module is None else module
    without = trains and called is not None and _is_without_gradients(called)
    return phases.name(trains=trains, has_gradients=not without)


def _is_without_gradients(module: nn.Module) -> bool:
    """Whether the pass that begins with this module is no training pass: gradients are off, and the
    module has parameters that need them."""
    if torch.is_grad_enabled() or _is_in_autograd_function():
        return False
    return any(p.requires_grad for p in module.parameters())


def _is_in_autograd_function() -> bool:
    """Whether the forward of an autograd function (a reentrant checkpoint, a reversible block, a
    compiled graph) runs. It is part of training, although gradients are off.

    It also turns off forward-mode gradients, which `torch.no_grad` leaves on.
    """
    return not (is_forward_mode_enabled() or torch.is_inference_mode_enabled())


class Checkpoints:
    """Calls inside reentrant checkpoints, whose gradients can be had only when they are redone.

    Such a checkpoint runs its part of the model without gradients first, and again in the backward
    pass. Both are methods of a `CheckpointFunction` (of torch, or of one of the libraries that
    copied it) with the same context: its identity says which calls are which.
    """

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: WeakKeyDictionary[object, dict[Tap, list[int]]] = WeakKeyDictionary()

    def forward(self, tap: Tap, call: int) -> None:
        """A call without gradients begins, or ends; remember it if it will have to be redone."""
        context = _context("forward")
        if context is not None:
            with suppress(TypeError):  # whatever that is, it is none of torch's contexts
                self._owed.setdefault(context, {}).setdefault(tap, []).append(call)

    def backward(self, tap: Tap) -> int | None:
        """A call in backward: the number it had, None if there is nothing new to learn from it."""
        if not self._owed:
            return None
        context = _context("backward")
        calls = None
        if context is not None:
            with suppress(TypeError):
                calls = self._owed.get(context, {}).get(tap)
        return calls.pop(0) if calls else None

    def clear(self) -> None:
        self._owed.clear()


def _context(method: str) -> object:
    """The context of the checkpoint that is in its `forward` or `backward` now, None if none is."""
    name = f"CheckpointFunction.{method}"
    frame: FrameType | None = frame_at(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == method and code.co_qualname.endswith(name):
            return frame.f_locals.get(code.co_varnames[0])
        frame = frame.f_back
    return None
