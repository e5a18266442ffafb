"""What hangs on a watched model: a pair of hooks per module, and hooks on tensors for gradients.

The hooks hold no state that training could feel. A copy of a watched model is not watched: copied
or pickled, a hook turns into a method of the standard library that takes anything and does nothing,
so a saved model loads where Sonde is not installed. While a model is exported or traced by
`torch.jit`, the hooks leave nothing in what is made of it.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, nn
from torch.compiler import is_compiling

from sonde._errors import SondeError
from sonde._torch_internals import modules, tensors
from sonde._torch_internals.frames import stay_out_of
from sonde._torch_internals.modules import ModuleHooks
from sonde.capture.active import attach
from sonde.capture.leaves import leaves
from sonde.capture.native import GradHook, use_number
from sonde.capture.torch.compile import hooks
from sonde.capture.torch.tap import Tap
from sonde.graph.torch.inert import InertHook

MAX_SLOTS: Final = 64
"""Tensors of one call that are told apart; a model that returns more has the rest skipped."""


_GRADIENT: Final = modules.new_id()
use_number(_GRADIENT)


def hang(tap: Tap, module: nn.Module, number: int) -> None:
    """Put the hooks on the module, under that number.

    It is the same on all modules of a watch, which no method of torch's would allow: compiled code
    that serves several modules asks for hooks by their number.
    """
    before = (EnterRoot(tap) if tap.is_root else Enter(tap)) if tap.enters else None
    # With a hook before, that after is called also when the module raises, so that we know it is no
    # longer being called.
    modules.hang(module, ModuleHooks(before, Leave(tap)), number)


def take_off(tap: Tap, number: int, *, for_good: bool = False) -> None:
    """Take the hooks off again, if the module still lives."""
    module = tap.module()
    if module is not None:
        modules.take_off(module, number, for_good=for_good)


def inputs(
    args: tuple[object, ...], kwargs: dict[str, object], limit: int
) -> list[tuple[str, Tensor]]:
    """The tensors that a call was given: `0`, `1.key` by position, `mask` by name."""
    found = leaves(args, Tensor, limit)
    return found + leaves(kwargs, Tensor, limit - len(found)) if kwargs else found


class _ModuleHook(InertHook):
    """A hook of one tap."""

    __slots__ = ("tap",)

    def __init__(self, tap: Tap) -> None:
        self.tap = tap

    @property
    def __name__(self) -> str:
        # Asked for by torch.jit.script, which then compiles the source of hooks.
        raise _ScriptError(
            "A watched model cannot be scripted: its hooks are not TorchScript. "
            "Call sonde.unwatch(model) before torch.jit.script(model)."
        )


class _ScriptError(SondeError, AttributeError):
    """There is no name, for other code."""


class Enter(_ModuleHook):
    """Forward pre-hook."""

    __slots__ = ()

    def __call__(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        tap = self.tap
        if is_compiling():
            if hooks.is_placing():
                hooks.enter(tap, inputs(args, kwargs, MAX_SLOTS))
            return
        lane = tap.lane
        if (lane is None or not lane.enter(module)) and not tap.owner.asleep:
            tap.owner.enter(tap, module, args, kwargs)


class EnterRoot(Enter):
    """Forward pre-hook of the model itself: notices every pass, recorded or not."""

    __slots__ = ()

    def __call__(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if not is_compiling():
            self.tap.owner.silence.passed()
        Enter.__call__(self, module, args, kwargs)


class Leave(_ModuleHook):
    """Forward hook. `Any`: the native path takes nothing but a tensor."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: Any) -> None:
        tap = self.tap
        if is_compiling():
            if hooks.is_placing():
                hooks.leave(tap, leaves(output, Tensor, MAX_SLOTS))
            return
        lane = tap.lane
        call = -1 if lane is None else lane.leave(module, output)
        if call >= 0:
            if tap.owner.onlooker is not None:
                tap.owner.onlooker.saw(tap, call, output)
        elif not tap.owner.asleep:
            tap.owner.leave(tap, module, output)


def hook_gradient(x: Tensor, hook: GradHook) -> None:
    """Call the hook with the gradient of a tensor that has one and is no leaf."""
    tensors.hook_gradient(x, hook, _GRADIENT)


stay_out_of(Enter.__call__.__code__)
stay_out_of(EnterRoot.__call__.__code__)
stay_out_of(Leave.__call__.__code__)
stay_out_of(attach.__code__)
