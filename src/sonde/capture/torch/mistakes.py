"""Mistakes that would leave a run empty or wrong without a word, each said once.

Training passes but no step that ends, because another optimizer updates the model; tensors that are
attached where no watch records them. `concerns` are those that show when a watch begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from sonde._torch_internals.tensors import HAS_VERSIONS, version_of
from sonde.capture.steps import StepMachine
from sonde.capture.troubles import Troubles

_LOOK_EVERY: Final = 10
"""Passes after which parameters are looked at: less often than they cost anything."""
_CHANGES: Final = 5
"""Changes of a parameter in one step that are no accident."""
_MOST_PASSES: Final = 1000
"""Training passes in one step: more than micro-batches, most of the time."""

NO_OPTIMIZER: Final = (
    "All of it counts as step {step}. Pass the optimizer to sonde.watch(), or call watch.step() "
    "after each update."
)
OTHER_OPTIMIZER: Final = (
    "All of it counts as step {step}. Another optimizer than the one given to sonde.watch() seems "
    "to update the model: close the watch, and watch with the optimizer that is used."
)

GUESS: Final = (
    "The run continues at step {step}, after the last recorded one. The checkpoint may be "
    "of another step. Pass `step=` to sonde.watch(), or keep watch.state_dict() in the "
    "checkpoint and call watch.load_state_dict()."
)


class Mistakes:
    """Listens for steps that never end and for tensors that are attached in vain."""

    def __init__(self, root: ref[nn.Module], troubles: Troubles) -> None:
        self.has_optimizer = False
        self.machine: StepMachine | None = None
        self.guess: int | None = None  # the step, if that is one
        self._root = root
        self._troubles = troubles
        self._passes = 0
        self._version = 0
        self._is_told = False
        self._unheard: dict[str, str] = {}
        self.heard_names: set[str] = set()
        _ALL.add(self)

    def passed(self) -> None:
        """A pass begins. Called for each, recorded or not: cheap."""
        try:
            self._pass()
        except Exception as error:
            self._troubles.pass_on(error)
            self._is_told, self.guess = True, None
            self._troubles.failed("the check for steps", error)

    def _pass(self) -> None:
        if (self._is_told and self.guess is None) or not torch.is_grad_enabled():
            return
        if self.machine is not None and self.machine.is_silent:
            return  # a loop that pauses the watch knows that its steps are not recorded
        root = self._root()
        if root is None or not root.training:
            return
        self._passes += 1
        if self.guess is not None:
            step, self.guess = self.guess, None
            self._troubles.concern("resumed_at_a_guess", GUESS.format(step=step))
        if self._passes == 1:
            self._version = _version_of(root)
        elif self._passes % _LOOK_EVERY == 0:
            self._look(root)

    def stepped(self) -> None:
        """An optimizer that is watched has stepped, or `watch.step()` was called."""
        self._passes = 0

    def is_by_hand(self) -> None:
        """The loop records by hand: it may take as many passes for a step as it likes."""
        self._is_told = True

    def unheard(self, name: str, reason: str) -> None:
        """A tensor was attached, and is not recorded."""
        self._unheard.setdefault(name, reason)

    def heard(self, name: str) -> None:
        """A tensor was attached, and is recorded."""
        self.heard_names.add(name)

    def end_step(self) -> None:
        """A recorded step is over: warn of what was attached in vain."""
        for name, reason in self._unheard.items():
            if not any(name in each.heard_names for each in _ALL):
                self.heard_names.add(name)  # it is said once
                self._troubles.concern(
                    "attach_unheard", f"sonde.attach({name!r}) is not recorded: {reason}", name
                )
        self._unheard.clear()

    def close(self) -> None:
        """The watch is over: what it recorded is no reason for others to be silent."""
        _ALL.discard(self)

    def _look(self, root: nn.Module) -> None:
        changes = _version_of(root) - self._version
        if changes < _CHANGES and self._passes < _MOST_PASSES:
            return
        self._is_told = True
        what = f"{self._passes} training passes, and no step has ended."
        remedy = OTHER_OPTIMIZER if self.has_optimizer else NO_OPTIMIZER
        self._troubles.concern("no_step", f"{what} {remedy.format(step=self._troubles.step)}")


_ALL: Final[WeakSet[Mistakes]] = WeakSet()
"""Of all watches: what one of them records is not attached in vain."""


def _version_of(root: nn.Module) -> int:
    """How often the first trainable parameters were changed, as far as torch counts it."""
    known = (p for p in root.parameters() if not is_lazy(p))
    trained = (p for p in known if p.requires_grad and not p.is_inference())
    return sum(version_of(p) for p in islice(trained, 4)) if HAS_VERSIONS else 0


def concerns(model: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[tuple[str, str]]:
    """What is suspicious about a model and its optimizers, each with a short stable word."""
    own = set(map(id, model.parameters()))
    for i, optimizer in enumerate(optimizers):
        trained: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"]]
        if own and trained and own.isdisjoint(map(id, trained)):
            which = f" ({i + 1} of {len(optimizers)})" if len(optimizers) > 1 else ""
            text = (
                f"The optimizer {type(optimizer).__name__}{which} trains no parameter of "
                f"{type(model).__name__}: updates of the model are not recorded. Pass the "
                "optimizer that trains it, made after the model has its final parameters."
            )
            yield "foreign_optimizer", text
