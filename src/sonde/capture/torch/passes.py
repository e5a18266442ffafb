"""A pass: one outermost call of a watched model (or of a part of it) in one thread.

While it lasts, the pass knows which modules are being called, how often each was called, and which
tensors were met: a tensor that is met again unchanged is not read again.

What is known of a change is its version, which every operation of torch raises. A write that torch
does not see (through `.data`, or by a foreign kernel into an existing tensor) is not seen here.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from sonde._python import frame_at
from sonde._torch_internals import modules
from sonde._torch_internals.tensors import (
    HAS_HOOK_DICTS,
    HAS_VERSIONS,
    current_backward,
    is_forward_mode_enabled,
    is_fx_tracing,
    is_jit_tracing,
    version_of,
)
from sonde.capture.native import AVAILABLE, GradHook, Native, Row, Seen
from sonde.capture.phases import Phases
from sonde.capture.torch.rows.host import EXCHANGE
from sonde.capture.torch.tap import Tap, TapOwner
from sonde.capture.window import NATIVE_PHASE, Spot
from sonde.record import Kind

_GRADIENTS: Final[frozenset[Kind]] = frozenset({"input_grad", "output_grad", "attach_grad"})


class ObserverNeeds(Protocol):
    """Somebody else who looks at what a capture meets: at which kinds, and whether at calls."""

    kinds: frozenset[Kind]
    follows_calls: bool


def native_path(lock: Any, root: ref[nn.Module]) -> Native | None:
    """The native path for a capture of a model, with its lock; None where there is none."""
    if not (AVAILABLE and HAS_VERSIONS and HAS_HOOK_DICTS) or EXCHANGE is None:
        return None
    try:
        return Native(lock, root, Tensor, EXCHANGE, current_backward, torch.is_grad_enabled)
    except ValueError:  # not the exchange that we know
        return None


def is_being_traced() -> bool:
    """Whether `torch.jit` or `torch.fx` looks at the model: such a call is none of ours."""
    return is_jit_tracing() or is_fx_tracing()


def is_replica(module: nn.Module) -> bool:
    """Whether a module that is not ours may use our hook: a replica of `DataParallel` may, a
    shallow copy only borrowed it."""
    return modules.is_replica(module)


_CALL: Final[CodeType] = modules.CALL


class HeldTensor:
    """A tensor that one piece of code has seen and another one is going to see, until that asks."""

    __slots__ = ("_row", "_version", "_window", "x")

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self._version = 0
        self._row: Row | None = None
        self._window = -1

    def put(self, x: Tensor, row: Row | None) -> None:
        """The row that holds it as it is now."""
        if row is not None and not x.is_inference():  # of which nobody counts the versions
            self.x, self._version, self._row, self._window = x, version_of(x), row, row.window

    def row_of(self, x: Tensor) -> Row | None:
        """The row that holds this very tensor, unchanged since, if that is what was put here. Code
        may hand it out as another object for the same memory, which has not been written to."""
        held = self.x
        if held is None or x.is_inference() or self._version != version_of(x):
            return None
        if held is not x and not _is_same_memory(held, x):
            return None
        row = self._row
        self.clear()
        return row if row is not None and row.window == self._window else None

    def clear(self) -> None:
        self.x = self._row = None


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    if type(a) is not Tensor or type(b) is not Tensor:
        return False
    return (
        a.device == b.device
        and a.dtype is b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.data_ptr() == b.data_ptr()
    )


class Pass:
    """The pass that a thread is in; with an empty stack, the last one it was in."""

    __slots__ = ("calls", "phase", "redone", "returned", "seen", "stack")

    def __init__(self) -> None:
        self.phase = "train"
        self.stack: list[tuple[Tap, int]] = []
        self.redone: list[tuple[Tap, int]] = []
        self.calls: dict[Tap, int] = {}
        self.seen: dict[int, Seen] = {}
        self.returned = HeldTensor()

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.returned.clear()
        self.stack.clear()
        self.calls.clear()
        self.seen.clear()

    @property
    def is_outside(self) -> bool:
        """Whether what is being called belongs to no pass, see `Capture._enter`."""
        return bool(self.stack) and self.stack[-1][1] < 0

    def next_call(self, tap: Tap) -> int:
        """The number of this call of the module within the pass."""
        call = self.calls.get(tap, 0)
        self.calls[tap] = call + 1
        return call

    def look(self, x: Tensor) -> Seen:
        """What is known of this very tensor, unchanged since; else a fresh entry."""
        if x.is_inference():
            return Seen(x, 0)  # nobody counts its versions
        version = version_of(x)
        seen = self.seen.get(id(x))
        if seen is None or seen.version != version or seen.ref() is not x:
            seen = self.seen[id(x)] = Seen(x, version)
        return seen


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
    """Say who takes the native path while something is recorded: all, unless somebody else wants to
    know the calls of modules, or what compiled code shows, or gradients."""
    if native is not None:
        native.alone = observer is None
        is_easy = observer is None or not observer.follows_calls
        native.live = is_live and is_easy and NATIVE_PHASE in phases
        others = frozenset() if observer is None else observer.kinds & _GRADIENTS
        native.hears_gradients = is_live and not others


def pop(stack: list[tuple[Tap, int]], tap: Tap) -> int:
    """The call of the module that ends; -1 if it never began. Calls above it never returned."""
    if stack and stack[-1][0] is tap:
        return stack.pop()[1]
    if not any(t is tap for t, _ in stack):
        return -1
    while stack:
        top, call = stack.pop()
        if top is tap:
            return call
    return -1


def is_inside_call_of(module: nn.Module) -> bool:
    """Whether the call of the module that begins now happens inside of another call of it.

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
    """Calls inside of reentrant checkpoints, whose gradients can be had only when they are redone.

    Such a checkpoint runs its part of the model without gradients first, and again in the backward
    pass. Both are methods of a `CheckpointFunction` (of torch, or of one of the libraries that
    copied it) with the same context: its identity says which calls are which.
    """

    __slots__ = ("_owed",)

    def __init__(self) -> None:
        self._owed: WeakKeyDictionary[Any, dict[Tap, list[int]]] = WeakKeyDictionary()

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


class LeafHooks:
    """Hooks on the gradients of leaves, which outlive a pass: one per leaf, until the step ends."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Tensor], GradHook, Any]] = {}

    def watch(self, x: Tensor, spot: Spot, owner: TapOwner) -> None:
        held = self._held.get(id(x))
        if held is None or held[0]() is not x:
            hook = GradHook(owner, spot)
            held = self._held[id(x)] = (ref(x), hook, x.register_hook(hook))
        if spot not in held[1].spots:
            held[1].spots.append(spot)

    def clear(self) -> None:
        for _, _, handle in self._held.values():
            handle.remove()
        self._held.clear()


def _context(method: str) -> Any:
    """The context of the checkpoint that is in its `forward` or `backward` now, None if none is."""
    name = f"CheckpointFunction.{method}"
    frame: FrameType | None = frame_at(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == method and code.co_qualname.endswith(name):
            return frame.f_locals.get(code.co_varnames[0])
        frame = frame.f_back
    return None
