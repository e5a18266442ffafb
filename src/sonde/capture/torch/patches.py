"""Two functions of torch that say nothing to hooks, made to tell us while somebody watches.

`clip_grad_norm_` changes gradients in place between backward and the optimizer: we look just
before. `GradScaler.step` may leave the optimizer out when gradients are not finite: then no
optimizer hook ends the step, and we hear of it here. Both do exactly what they did, with the same
arguments and results; when the last watch closes, torch is as it was.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.utils import clip_grad


class Listener(Protocol):
    """Who wants to hear."""

    def about_to_clip(self, parameters: Sequence[Tensor]) -> None:
        """Gradients of these parameters are about to be scaled down."""

    def scaler_begins(self, optimizer: object, scale: Tensor | None) -> None:
        """`GradScaler.step(optimizer)` was called; losses had been multiplied with that."""

    def scaler_ended(self, optimizer: object) -> None:
        """`GradScaler.step(optimizer)` returned; the optimizer may or may not have stepped."""


_LISTENERS: WeakSet[Any] = WeakSet()
_LOCK = threading.Lock()
_ORIGINALS: dict[str, Callable[..., Any]] = {}


def listen(listener: Listener) -> None:
    """Tell the listener from now on."""
    with _LOCK:
        if not _LISTENERS:
            _install()
        _LISTENERS.add(listener)


def forget(listener: Listener) -> None:
    """Stop telling the listener; without listeners torch is restored."""
    with _LOCK:
        _LISTENERS.discard(listener)
        if not _LISTENERS:
            _restore()


def _install() -> None:
    # The inner function is looked up in its module at each call, so this also reaches code that
    # imported `clip_grad_norm_` by name long ago.
    clip = getattr(clip_grad, "_clip_grads_with_norm_", None)
    if clip is not None and "clip" not in _ORIGINALS:
        _ORIGINALS["clip"] = clip

        @functools.wraps(clip)
        def clip_and_tell(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            several = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            for listener in list(_LISTENERS):
                listener.about_to_clip(several)
            return clip(several, *args, **kwargs)

        clip_grad._clip_grads_with_norm_ = clip_and_tell

    scaler: Any = torch.amp.grad_scaler.GradScaler
    if "step" not in _ORIGINALS:
        step = scaler.step
        _ORIGINALS["step"] = step

        @functools.wraps(step)
        def step_and_tell(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            for listener in list(_LISTENERS):
                listener.scaler_begins(optimizer, getattr(self, "_scale", None))
            result = step(self, optimizer, *args, **kwargs)
            for listener in list(_LISTENERS):
                listener.scaler_ended(optimizer)
            return result

        scaler.step = step_and_tell


def _restore() -> None:
    if "clip" in _ORIGINALS:
        clip_grad._clip_grads_with_norm_ = _ORIGINALS.pop("clip")
    if "step" in _ORIGINALS:
        scaler: Any = torch.amp.grad_scaler.GradScaler
        scaler.step = _ORIGINALS.pop("step")
