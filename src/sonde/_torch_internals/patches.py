"""Functions of torch that call no hook, wrapped while a model is watched.

`clip_grad_norm_` changes gradients in place between backward and the optimizer: listeners run just
before. `GradScaler.step` may leave the optimizer out when gradients are not finite: then no
optimizer hook ends the step. `CUDAGraph` replays work without a hook being called; everything that
captures goes through its methods: `torch.cuda.graph`, `torch.cuda.make_graphed_callables`, and the
compiler's modes that use CUDA graphs.

All do exactly what they did, with the same arguments and results; when the last listener leaves,
torch is as it was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad

from sonde._torch_internals.registry import uses

_CLIP: Final = "_clip_grads_with_norm_"
_clips = uses(
    "clipping",
    f"torch.nn.utils.clip_grad:{_CLIP}",
    purpose="gradients are read before `clip_grad_norm_` changes them",
    fallback="they are read when the optimizer steps",
    left_out="gradients before clipping (stage `before_clip`) are not recorded",
).find()
_scale = uses(
    "loss_scale",
    "torch.amp.grad_scaler:GradScaler._scale",
    purpose="what a `GradScaler` multiplies losses with, without a wait for the device",
    fallback="it is not known",
    left_out="the scale of a `GradScaler`, and norms of gradients without it, are not recorded",
).holds(lambda: hasattr(torch.amp.grad_scaler.GradScaler("cpu"), "_scale"))


class GradientListener(Protocol):
    """What runs around clipping and scaled steps."""

    def about_to_clip(self, parameters: Sequence[Tensor]) -> None:
        """Gradients of these parameters are about to be scaled down."""

    def scaler_begins(self, optimizer: object, scale: Tensor | None) -> None:
        """`GradScaler.step(optimizer)` was called; losses had been multiplied with that."""

    def scaler_ended(self, optimizer: object) -> None:
        """`GradScaler.step(optimizer)` returned; the optimizer may or may not have stepped."""


class CudaGraphListener(Protocol):
    """What runs around captures and replays of CUDA graphs."""

    def begins(self) -> None:
        """A capture begins with the next launch."""

    def ended(self, graph: torch.cuda.CUDAGraph) -> None:
        """It is over, well or not."""

    def replays(self, graph: torch.cuda.CUDAGraph) -> None:
        """The graph is about to run."""

    def replayed(self, graph: torch.cuda.CUDAGraph) -> None:
        """The graph is on its way."""

    def unhook(self, modules: Sequence[nn.Module]) -> Callable[[], None]:
        """Take hooks off these modules until what is returned is called."""

    def failed(self, error: Exception) -> None:
        """One of the methods has raised; the training goes on."""


_LISTENERS: Final[WeakSet[GradientListener]] = WeakSet()
_GRAPH_LISTENERS: Final[WeakSet[CudaGraphListener]] = WeakSet()
_LOCK: Final = threading.Lock()
_Function = Callable[..., object]
_Originals = dict[tuple[object, str], object]
_ORIGINALS: Final[_Originals] = {}
_GRAPH_ORIGINALS: Final[_Originals] = {}


def listen(listener: GradientListener) -> None:
    """Call the listener from now on."""
    with _LOCK:
        if not _LISTENERS:
            _install()
        _LISTENERS.add(listener)


def forget(listener: GradientListener) -> None:
    """Do not call the listener any more; without listeners torch is restored."""
    with _LOCK:
        _LISTENERS.discard(listener)
        if not _LISTENERS:
            _restore(_ORIGINALS)


def listen_to_graphs(listener: CudaGraphListener) -> None:
    """Call the listener from now on, if there is a CUDA device."""
    with _LOCK:
        if not _GRAPH_LISTENERS and torch.cuda.is_available():
            _install_graphs()
        _GRAPH_LISTENERS.add(listener)


def forget_graphs(listener: CudaGraphListener) -> None:
    """Do not call the listener any more; without listeners torch is restored."""
    with _LOCK:
        _GRAPH_LISTENERS.discard(listener)
        if not _GRAPH_LISTENERS:
            _restore(_GRAPH_ORIGINALS)


def _install() -> None:
    def clip(
        original: _Function, parameters: Tensor | Iterable[Tensor], *args: object, **kwargs: object
    ) -> object:
        several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for listener in list(_LISTENERS):
            listener.about_to_clip(several)
        return original(several, *args, **kwargs)

    def step(
        original: _Function, self: GradScaler, optimizer: object, *args: object, **kwargs: object
    ) -> object:
        for listener in list(_LISTENERS):
            listener.scaler_begins(optimizer, getattr(self, "_scale", None) if _scale else None)
        result = original(self, optimizer, *args, **kwargs)
        for listener in list(_LISTENERS):
            listener.scaler_ended(optimizer)
        return result

    # The inner function is looked up in its module at each call, so this also reaches code that
    # imported `clip_grad_norm_` by name long ago.
    if _clips:
        _wrap(_ORIGINALS, clip_grad, _CLIP, clip)
    _wrap(_ORIGINALS, torch.amp.grad_scaler.GradScaler, "step", step)


def _install_graphs() -> None:
    def begin(
        original: _Function, self: torch.cuda.CUDAGraph, *args: object, **kwargs: object
    ) -> object:
        _each(lambda g: g.begins())
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            _each(lambda g: g.ended(self))
            raise

    def end(
        original: _Function, self: torch.cuda.CUDAGraph, *args: object, **kwargs: object
    ) -> object:
        try:
            return original(self, *args, **kwargs)
        finally:
            _each(lambda g: g.ended(self))

    def replay(
        original: _Function, self: torch.cuda.CUDAGraph, *args: object, **kwargs: object
    ) -> object:
        _each(lambda g: g.replays(self))
        result = original(self, *args, **kwargs)
        _each(lambda g: g.replayed(self))
        return result

    def make(original: _Function, callables: object, *args: object, **kwargs: object) -> object:
        several = callables if isinstance(callables, tuple) else (callables,)
        modules = [m for m in several if isinstance(m, nn.Module)]
        put_back: list[Callable[[], None]] = []
        _each(lambda g: put_back.append(g.unhook(modules)))
        try:
            return original(callables, *args, **kwargs)
        finally:
            for put in put_back:
                put()

    graph = torch.cuda.CUDAGraph
    _wrap(_GRAPH_ORIGINALS, graph, "capture_begin", begin)
    _wrap(_GRAPH_ORIGINALS, graph, "capture_end", end)
    _wrap(_GRAPH_ORIGINALS, graph, "replay", replay)
    _wrap(_GRAPH_ORIGINALS, torch.cuda, "make_graphed_callables", make)
    _wrap(_GRAPH_ORIGINALS, torch.cuda.graphs, "make_graphed_callables", make)


def _wrap(originals: _Originals, owner: object, name: str, around: Callable[..., object]) -> None:
    if (owner, name) in originals:
        return
    original = getattr(owner, name)
    originals[owner, name] = original

    @functools.wraps(original)
    def wrapped(*args: object, **kwargs: object) -> object:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def _restore(originals: _Originals) -> None:
    for (owner, name), original in originals.items():
        setattr(owner, name, original)
    originals.clear()


def _each(act: Callable[[CudaGraphListener], object]) -> None:
    for listener in list(_GRAPH_LISTENERS):
        try:
            act(listener)
        except Exception as error:  # training goes on
            listener.failed(error)
