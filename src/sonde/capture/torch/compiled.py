"""Taps inside of compiled code: one operator that the compiler keeps and runs, and that reports
here.

Under `torch.compile` our hooks are traced, not run: whatever they do in Python happens once, at
compile time. So there they do nothing but place `sonde::tap(x, key, training)` into the graph, in
forward and, through a traced tensor hook, in backward. At run time the operator finds its spot by
the key and does what an eager hook does. It returns nothing and is marked as having an effect, so
it is neither removed nor moved across writes to its argument; no Python state is read while
tracing, so a schedule that fires causes no recompilation.
"""

from __future__ import annotations

import threading
from typing import Any, Final
from weakref import ref

import torch
from torch import Tensor

from sonde.capture.torch.tap import Tap
from sonde.record import Kind

_LIBRARY: Final = torch.library.Library("sonde", "DEF")
_LIBRARY.define("tap(Tensor x, int key, bool training) -> ()")


class _Key:
    """Where a tap in a compiled graph belongs. Weak: a graph may outlive the watch."""

    __slots__ = ("call", "kind", "owner", "slot", "tap")

    def __init__(self, tap: Tap, kind: Kind, call: int, slot: str) -> None:
        self.owner = ref(tap.owner)
        self.tap = ref(tap)
        self.kind = kind
        self.call = call
        self.slot = slot


_KEYS: Final[list[_Key]] = []
_LOCK: Final = threading.Lock()


def _run(x: Tensor, key: int, training: bool) -> None:
    found = _KEYS[key]
    owner = found.owner()
    tap = found.tap()
    if owner is None or tap is None or owner.asleep:
        return
    owner.compiled(tap, found.kind, found.call, found.slot, x, training=training)


def _pretend(x: Tensor, key: int, training: bool) -> None:
    """At compile time nothing happens."""


_LIBRARY.impl("tap", _run, "CompositeExplicitAutograd")
torch.library.register_fake("sonde::tap", _pretend, lib=_LIBRARY)
_TAP: Final = torch.ops.sonde.tap.default
torch.fx.node.has_side_effect(_TAP)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _new_key(tap: Tap, kind: Kind, slot: str) -> int:
    """A key for this tensor of the module call that is being traced. Runs while tracing."""
    with _LOCK:
        _KEYS.append(_Key(tap, kind, tap.traced[1], slot))
        return len(_KEYS) - 1


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _count_call(tap: Tap) -> int:
    """Count a call of the module in the trace that is being made. Runs while tracing.

    A retry of the trace, or a recompilation, counts from the start.
    """
    tap.next_traced(id(torch._guards.TracingContext.try_get()))
    return 0


def enter(tap: Tap, training: bool, tensors: list[tuple[str, Any]]) -> None:
    """A module call begins, in a trace."""
    _count_call(tap)
    _place(tap, "input", "input_grad", training, tensors)


def leave(tap: Tap, training: bool, tensors: list[tuple[str, Any]]) -> None:
    """A module call ends, in a trace."""
    _place(tap, "output", "output_grad", training, tensors)


def _place(
    tap: Tap, kind: Kind, grad_kind: Kind, training: bool, tensors: list[tuple[str, Any]]
) -> None:
    """Put taps on these tensors and on their gradients into the graph that is being traced."""
    for slot, x in tensors:
        if kind in tap.kinds:
            _TAP(x.detach(), _new_key(tap, kind, slot), training)
        if grad_kind in tap.kinds and x.requires_grad:
            _tap_gradient(x, _new_key(tap, grad_kind, slot), training)


def _tap_gradient(x: Tensor, key: int, training: bool) -> None:
    x.register_hook(lambda grad: _TAP(grad, key, training))
