"""Taps inside of compiled code: one operator that the compiler keeps and runs, and that reports
here.

Under `torch.compile` our hooks are traced, not run: whatever they do in Python happens once, at
compile time. So there they do nothing but place `sonde::tap(x, key)` into the graph, in forward
and, through a traced tensor hook, in backward. At run time the operator finds its spot by the key
and does what an eager hook does. It returns nothing and is marked as having an effect, so it is
neither removed nor moved across writes to its argument; no Python state is read while tracing, so
a schedule that fires causes no recompilation.

Calls of a module are numbered within the code that is compiled together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import CodeType
from typing import Any, Final, TypeVar
from weakref import ref

import torch
from torch import Tensor

from sonde.capture.torch.tap import Owner, Tap
from sonde.record import Kind

F = TypeVar("F", bound=Callable[..., Any])

_LIBRARY: Final = torch.library.Library("sonde", "DEF")
_LIBRARY.define("tap(Tensor x, int key) -> ()")


class _Key:
    """Where a tap in a compiled graph belongs. Weak: a graph may outlive the watch."""

    __slots__ = ("call", "kind", "owner", "slot", "tap")

    def __init__(self, tap: Tap, kind: Kind, call: int, slot: str) -> None:
        self.owner = ref(tap.owner)
        self.tap = ref(tap)
        self.kind = kind
        self.call = call
        self.slot = slot


class _Trace:
    """What is being traced: the modules whose calls have begun, and how often each was called."""

    def __init__(self) -> None:
        self.context: Any = None
        self.stack: list[tuple[Tap, int]] = []
        self.calls: dict[Tap, int] = {}

    def now(self) -> _Trace:
        """This, emptied if a new trace has begun: a retry, a recompilation, another function."""
        context = torch._guards.TracingContext.try_get()
        if self.context is None or self.context() is not context:
            self.context = ref(context) if context is not None else None
            self.stack.clear()
            self.calls.clear()
        return self


_KEYS: Final[list[_Key]] = []
_LOCK: Final = threading.Lock()
_TRACE: Final = _Trace()  # torch compiles one frame at a time


def _run(x: Tensor, key: int) -> None:
    found = _KEYS[key]
    owner = found.owner()
    tap = found.tap()
    if owner is None or tap is None or owner.asleep:
        return
    owner.compiled(tap, found.kind, found.call, found.slot, x)


def _pretend(x: Tensor, key: int) -> None:
    """At compile time nothing happens."""


_LIBRARY.impl("tap", _run, "CompositeExplicitAutograd")
torch.library.register_fake("sonde::tap", _pretend, lib=_LIBRARY)
_TAP: Final = torch.ops.sonde.tap.default
torch.fx.node.has_side_effect(_TAP)


def stay_out_of(code: CodeType) -> None:
    """Tell the compiler not to compile this function by itself, nor what it calls.

    It may still be traced as a part of something else. Hooks of the outermost compiled module run
    outside of the compiled code and would each become a graph of their own.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


# -- while tracing -----------------------------------------------------------------------------


def _while_tracing(function: F) -> F:
    """Run the function while the compiler traces; what it returns is a constant of the graph."""
    # What torch.compiler.assume_constant_result does, which would import the whole compiler (4 s).
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_while_tracing
def _begin(tap: Tap) -> int:
    trace = _TRACE.now()
    call = trace.calls.get(tap, 0)
    trace.calls[tap] = call + 1
    trace.stack.append((tap, call))
    return 0


@_while_tracing
def _end(tap: Tap) -> int:
    stack = _TRACE.now().stack
    while stack and stack.pop()[0] is not tap:
        pass
    return 0


@_while_tracing
def _new_key(tap: Tap, kind: Kind, slot: str) -> int:
    """A key for this tensor of the module call that is being traced."""
    call = next((c for t, c in reversed(_TRACE.now().stack) if t is tap), 0)
    return _add_key(tap, kind, call, slot)


@_while_tracing
def _new_attach_key(owner: Owner, kind: Kind, name: str) -> int:
    """A key for a named tensor inside of the innermost call of this owner's; -1 if not wanted."""
    inner = next(((t, c) for t, c in reversed(_TRACE.now().stack) if t.owner is owner), None)
    if inner is None or not inner[0].selected or kind not in owner.plan.kinds:
        return -1
    return _add_key(inner[0], kind, inner[1], name)


def _add_key(tap: Tap, kind: Kind, call: int, slot: str) -> int:
    with _LOCK:
        _KEYS.append(_Key(tap, kind, call, slot))
        return len(_KEYS) - 1


def enter(tap: Tap, tensors: list[tuple[str, Any]]) -> None:
    """A module call begins, in a trace."""
    _begin(tap)
    for slot, x in tensors:
        if tap.input:
            _TAP(x.detach(), _new_key(tap, "input", slot))
        if tap.input_grad and x.requires_grad:
            _tap_gradient(x, _new_key(tap, "input_grad", slot))


def leave(tap: Tap, tensors: list[tuple[str, Any]]) -> None:
    """A module call ends, in a trace."""
    if not tap.enters:
        _begin(tap)
    for slot, x in tensors:
        if tap.output:
            _TAP(x.detach(), _new_key(tap, "output", slot))
        if tap.output_grad and x.requires_grad:
            _tap_gradient(x, _new_key(tap, "output_grad", slot))
    _end(tap)


def attach(owner: Owner, x: Tensor, name: str) -> None:
    """A tensor is given a name, in a trace."""
    key = _new_attach_key(owner, "attach", name)
    if key >= 0:
        _TAP(x.detach(), key)
    if x.requires_grad:
        key = _new_attach_key(owner, "attach_grad", name)
        if key >= 0:
            _tap_gradient(x, key)


def _tap_gradient(x: Tensor, key: int) -> None:
    x.register_hook(lambda grad: _TAP(grad, key))
