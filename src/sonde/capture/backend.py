"""A backend: what `sonde.watch` needs to know about a framework.

`backend_of` chooses the backend by the model's type. A framework that Sonde knows is asked only
once it has been imported, so watching a model of one framework never loads another. To watch models
of a further framework, implement `Backend` and `Session` and call `register`. `ArraySession` (in
`array_session.py`) is most of a `Session`, for frameworks whose arrays numpy reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Final, NamedTuple, Protocol

from sonde._errors import SondeError
from sonde.capture.budget import Budget
from sonde.capture.drain import Drain
from sonde.capture.launch import Agree
from sonde.capture.plan import Every, Plan, Schedule
from sonde.capture.troubles import Troubles
from sonde.record import RecordSink

Refuse = Callable[[str], None]
"""Takes a sentence about something that was not done: raises it if strict, else warns."""


class Backend(Protocol):
    """A framework whose models can be watched."""

    @property
    def name(self) -> str:
        """The framework's name, as users import it: `torch`."""
        ...

    def takes(self, model: object) -> bool:
        """Return whether this is a model of the framework. Never raises."""
        ...

    def prepare(self, model: object, optimizer: object, plan: Plan) -> Prepared:
        """Check what is to be watched, without changing anything.

        Raises:
            SondeError: If the model, the optimizer or the selection cannot be watched.
        """
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that can be watched: what the run says about it, and how to begin.

    `updates` is how many updates the optimizer has made, None if it does not count them.
    `start(schedule, drain, step)` hangs the hooks. `agree(key, proposal)` is how ranks agree on a
    word, without a collective.
    """

    model_type: str
    optimizer_types: Sequence[str]
    updates: int | None
    start: Callable[[Schedule, Drain, int], Session]
    agree: Agree | None = None


class Session(Protocol):
    """A model being watched, from `watch` to `close`. `Watch` passes on what users ask of it.

    Hands what it measures to the drain: `Part` and `End` for sketches, `Numbers` for numbers.
    """

    @property
    def plan(self) -> Plan:
        """What to record."""
        ...

    @property
    def troubles(self) -> Troubles:
        """What went wrong or was left out."""
        ...

    @property
    def sinks(self) -> Sequence[RecordSink]:
        """Sinks of its own, fed beside the run's writer."""
        ...

    @property
    def step(self) -> int:
        """The step under way, or the next one."""
        ...

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""
        ...

    @property
    def forced_phase(self) -> str | None:
        """The phase that `watch.phase` has set, None outside such a block."""
        ...

    @property
    def has_optimizer(self) -> bool:
        """Whether an optimizer ends steps; else `watch.step()` does."""
        ...

    @property
    def spent_s(self) -> float:
        """Seconds that recording has cost so far."""
        ...

    def costs(self, wall_s: float, budget: Budget | None) -> dict[str, object]:
        """What recording has cost in that time, for `run.info`."""
        ...

    def watches(self, model: object) -> bool:
        """Return whether this is the watched model, with or without a wrapper around it."""
        ...

    def tell_concerns(self, others: Sequence[str], *, is_guess: bool) -> None:
        """Warn of what is suspicious: other runs of the same model, a step that is a guess."""

    def reschedule(self, schedule: Schedule) -> None:
        """Use another schedule: at once between steps, else from the next step on."""

    def renumber(self, step: object, refuse: Refuse) -> None:
        """Give the next step this number, if it can have it."""

    def go_to(self, step: int) -> int:
        """Continue at this step. Returns the step at which it would have continued."""
        ...

    def end_by_hand(self) -> None:
        """End the step: `watch.step()`."""

    def record(self, name: object, x: object, refuse: Refuse) -> None:
        """Sketch a tensor that belongs to no module, in the current step."""

    def log(
        self, values: Mapping[str, object], *, step: int | None, reduce: str, refuse: Refuse
    ) -> None:
        """Record numbers of a step, without waiting for a device."""

    def metrics(
        self,
        step: int | None,
        *,
        stats: str | Sequence[str] | None,
        kinds: str | Iterable[str] | None,
        include: object,
        prefix: str,
    ) -> dict[str, float]:
        """Numbers of a step, and statistics of the last recorded one if asked for."""
        ...

    def add_metric(
        self,
        name: str | Callable[..., object],
        fn: Callable[..., object] | None,
        *,
        kind: str | tuple[str, ...] | None,
        where: object,
        reduce: object,
        every: Every | None,
        against: str | None,
    ) -> None:
        """Record `fn(tensor)` at every recorded step."""

    def set_reference(self, model: object, *, device: object = None, run: bool = True) -> None:
        """Compare with this model from now on."""

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing inside the block."""
        ...

    def phase(self, name: str, step: int | None) -> AbstractContextManager[None]:
        """Record the passes inside the block under this phase."""
        ...

    def branch(self, name: str) -> AbstractContextManager[None]:
        """Record the training passes inside the block under this branch of training."""
        ...

    def forked(self) -> None:
        """Record nothing any more: the process is a fork of the one that records."""

    def close(self) -> None:
        """Hand over what is left and take every hook off. May be called twice."""


class _Known(NamedTuple):
    """A framework that Sonde knows: where its `BACKEND` lies, and what its models are."""

    module: str
    models: str


_KNOWN: Final[dict[str, _Known]] = {
    "torch": _Known("sonde.capture.torch.backend", "a torch.nn.Module"),
    "flax": _Known("sonde.capture.jax.backend", "a module of Flax"),
}
"""By the module that has been imported where such a model exists."""

_REGISTERED: Final[list[Backend]] = []


def register(backend: Backend) -> None:
    """Watch models of another framework with this backend. The last one registered is asked first.

    Replaces a registered backend of the same name.
    """
    _REGISTERED[:] = [backend, *(b for b in _REGISTERED if b.name != backend.name)]


def backend_of(model: object) -> Backend:
    """Return the backend for this model.

    Raises:
        SondeError: If no framework takes it, with what `model` may be.
    """
    for backend in _REGISTERED:
        if backend.takes(model):
            return backend
    imported = {name: k for name, k in _KNOWN.items() if sys.modules.get(name) is not None}
    for known in imported.values():
        found: Backend = import_module(known.module).BACKEND
        if found.takes(model):
            return found
    wanted = " or ".join(known.models for known in (imported or _KNOWN).values())
    if not imported:
        names = " nor ".join(_KNOWN)
        raise SondeError(f"`model` must be {wanted}; neither {names} has been imported.")
    raise SondeError(f"`model` must be {wanted}, got {described(model)}.")


def described(given: object) -> str:
    """What was given in place of a model, for a message."""
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
