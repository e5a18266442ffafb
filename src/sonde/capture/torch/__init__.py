"""Capture of PyTorch models. The only part of capture that knows torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sonde._errors import SondeError
from sonde.capture import active
from sonde.capture.drain import Drain
from sonde.capture.plan import Plan, Schedule
from sonde.capture.torch import naming, patches
from sonde.capture.torch.optimizers import Optimizers
from sonde.capture.torch.session import Capture
from sonde.capture.torch.tables import Sketcher

__all__ = ["Session", "check"]


def check(model: object, optimizer: object, plan: Plan) -> list[Optimizer]:
    """The optimizers as a list, or an error about what cannot be watched. Changes nothing."""
    if not isinstance(model, nn.Module):
        raise SondeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    optimizers = [_optimizer(o) for o in several if o is not None]
    selected = any(plan.wants(path, module) for path, module in naming.modules(model)) or any(
        plan.wants(f"{path}.{name}" if path else name, module)
        for path, name, module, _ in naming.parameters(model)
    )
    if not selected:
        paths = [path for path, _ in naming.modules(model) if path]
        raise SondeError(
            f"`include` and `exclude` leave no module and no parameter of {type(model).__name__}. "
            f"Its paths look like: {', '.join(paths[:5]) or '(only the root)'}. "
            f"Patterns are globs; a regular expression is written `re:...`."
        )
    return optimizers


class Session:
    """A model being watched, with its optimizers. `close` leaves nothing on either."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        plan: Plan,
        schedule: Schedule,
        drain: Drain,
        *,
        step: int,
    ) -> None:
        self.capture = Capture(model, plan, schedule, drain, step=step)
        self.has_optimizer = bool(optimizers)
        self.every: Any = schedule
        self._optimizers = Optimizers(self.capture, optimizers)
        if not optimizers:
            self.capture.begun = self._optimizers.begin_by_hand
        patches.listen(self)
        active.add(self.capture)

    @property
    def kernel(self) -> str:
        """Which dialect sketches tensors on the model's device."""
        model = self.capture.model
        first = next(iter(model.parameters()), None) if model is not None else None
        device = first.device if first is not None else torch.device("cpu")
        table: Sketcher = self.capture.rows_of(device).table  # type: ignore[assignment]
        return table.kernel

    def end_by_hand(self) -> None:
        """`watch.step()`: the step ends now."""
        self._optimizers.end_by_hand()

    def about_to_clip(self, parameters: Iterable[Tensor]) -> None:
        self._optimizers.about_to_clip(parameters)

    def scaler_stepped(self, optimizer: object) -> None:
        if self.has_optimizer:
            self._optimizers.scaler_stepped(optimizer)

    def close(self) -> None:
        active.discard(self.capture)
        patches.forget(self)
        self._optimizers.close()
        self.capture.close()


def _optimizer(given: Any) -> Optimizer:
    """An optimizer, or what a scheduler-like wrapper keeps as `.optimizer`."""
    if isinstance(given, Optimizer):
        return given
    inner = getattr(given, "optimizer", None)
    if isinstance(inner, Optimizer):
        return inner
    raise SondeError(
        f"`optimizer` must be a torch.optim.Optimizer or a list, got {type(given).__name__}."
    )
