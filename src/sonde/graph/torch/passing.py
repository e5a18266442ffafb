"""A pass that is being traced: the hooks and the mode that show it to a trace, while it lasts."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sonde._signals import IGNORING, pass_on
from sonde.graph.torch.inert import InertHook
from sonde.graph.torch.trace import PassTrace, TraceMode

Leaves = Sequence[tuple[str, Tensor]]


@dataclass(frozen=True, slots=True)
class TensorAccess:
    """What has to be known of models in general."""

    modules: Callable[[nn.Module], Iterator[tuple[str, nn.Module]]]
    """Every module with its path, the root as ""."""
    inputs: Callable[[tuple[object, ...], dict[str, object]], Leaves]
    """The tensors in the arguments of a call, each with its slot."""
    outputs: Callable[[object], Leaves]


class TracedPass:
    """One outermost call. What fails is kept in `error`; nothing is raised into the model."""

    def __init__(self, framework: TensorAccess, model: nn.Module, *, max_calls: int) -> None:
        self.error: Exception | None = None
        self.trace = PassTrace([*model.parameters(), *model.buffers()], max_calls=max_calls)
        self._framework = framework
        self._modules = [m for _, m in framework.modules(model)]
        self._paths = {id(m): path for path, m in framework.modules(model)}
        self._mode = TraceMode(self.trace, self._failed)
        self._handles: list[RemovableHandle] = []
        self._thread = get_ident()
        self._top = ""
        self._is_running = False

    def begin(
        self, path: str, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """The call of `module` begins: its hooks run now, so those put on here see the rest."""
        self._top = path
        for one in self._modules:
            with IGNORING:  # a scripted module takes no hooks
                entered, left = _Enter(self), _Leave(self)
                self._handles.append(one.register_forward_pre_hook(entered, with_kwargs=True))
                self._handles.append(one.register_forward_hook(left, always_call=True))
        self.trace.enter(path, self._framework.inputs(args, kwargs))
        self._is_running = True
        self._mode.__enter__()

    def end(self, output: object) -> None:
        """The call is over."""
        self._guarded(lambda: self.trace.leave(self._top, self._framework.outputs(output)))

    def stop(self) -> TraceMode | None:
        """Look no more; returns the mode if it is not its turn to leave yet. The hooks stay, and
        do nothing: while an exception is handled they must not be taken off, see `unhook`."""
        if not self._is_running:
            return None
        has_left = self._mode.stop()
        self._is_running = False
        return None if has_left else self._mode

    def unhook(self) -> None:
        """Take the hooks off. Not while torch goes through them because of an exception."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._modules.clear()

    def attach(self, name: str, x: Tensor) -> None:
        self._guarded(lambda: self.trace.attach(name, x))

    def entered(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            self._guarded(lambda: self.trace.enter(path, self._framework.inputs(args, kwargs)))

    def left(self, module: nn.Module, output: object) -> None:
        path = self._paths.get(id(module))
        if path is not None:
            self._guarded(lambda: self.trace.leave(path, self._framework.outputs(output)))
            if self.trace.is_over:
                self.stop()  # the watch has stopped

    def _guarded(self, act: Callable[[], None]) -> None:
        if not self._is_running or self.error is not None or get_ident() != self._thread:
            return
        try:
            act()
        except Exception as error:
            pass_on(error)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.error = error


class _PassHook(InertHook):
    """A hook of one traced pass."""

    __slots__ = ("traced",)

    def __init__(self, traced: TracedPass) -> None:
        self.traced = traced


class _Enter(_PassHook):
    __slots__ = ()

    def __call__(
        self, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object] | None = None
    ) -> None:
        # A hook that is taken off while hooks run is still called, then without `kwargs`.
        if not torch.compiler.is_compiling():
            self.traced.entered(module, args, kwargs or {})


class _Leave(_PassHook):
    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if not torch.compiler.is_compiling():
            self.traced.left(module, output)


def skipped_code() -> list[CodeType]:
    """Code of ours that runs inside a model, for which a compiler has no use."""
    return [
        _Enter.__call__.__code__,
        _Leave.__call__.__code__,
        TraceMode.__torch_dispatch__.__code__,
    ]
