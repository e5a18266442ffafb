"""A session for frameworks whose arrays numpy reads: all of `Session` but the hooks.

A backend derives from `ArraySession`, hangs its hooks in `__init__` and takes them off in `detach`.
A hook calls `take` with an array; whoever updates the parameters calls `end_step` afterwards.
`register(ArrayBackend(name, type, session))` does the rest. docs/extending.md has an example.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sonde._errors import SondeError
from sonde.capture import active
from sonde.capture.array_rows import ArrayRows
from sonde.capture.backend import Prepared
from sonde.capture.budget import Budget
from sonde.capture.drain import Drain
from sonde.capture.norms import Norms
from sonde.capture.numbers.latest import Latest
from sonde.capture.numbers.scalars import RecentScalars, Scalars, renumber
from sonde.capture.phases import Phases, is_training
from sonde.capture.plan import Every, Plan, Schedule
from sonde.capture.steps import HookWork, WatchEvent
from sonde.capture.troubles import TOO_MANY_CALLS, Troubles
from sonde.record import PARAMETER_KINDS, Kind, RecordSink, Site


class ArraySession:
    """A watched model whose tensors are numpy arrays, or become one by `numpy.asarray`.

    With an optimizer, the backend calls
    `end_step` when it has stepped; without, `watch.step()` does, by `end_by_hand`.
    """

    def __init__(
        self,
        model: object,
        plan: Plan,
        schedule: Schedule,
        drain: Drain,
        *,
        step: int,
        optimizer: object = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.has_optimizer = optimizer is not None
        self.troubles = Troubles(drain, strict=plan.strict)
        self.recorded_steps = self.dropped_steps = 0
        self._schedule = schedule
        self._phases = Phases(plan.phases, step, self.troubles.skip, self.troubles.failed)
        self._machine = self._phases.machine
        self._rows = ArrayRows(drain)
        self._latest = Latest()
        self._scalars = Scalars(
            drain,
            self._phases,
            self.troubles,
            self._latest,
            memory=RecentScalars(),
            number=self.number,
        )
        self._lock = threading.RLock()
        self._spent_ns = 0
        if plan.hyperparameters:
            drain.norms = Norms(self._scalars.taken)
        self._decide()
        active.add(self)

    # -- for the backend -----------------------------------------------------------------------

    def take(
        self,
        kind: Kind,
        path: str,
        array: ArrayLike,
        *,
        slot: str = "0",
        call: int = 0,
        owner: object = None,
        phase: str | None = None,
    ) -> None:
        """Record an array, if the plan asks for it and the current step is recorded. Never raises,
        unless the watch is strict.

        Args:
            kind: What kind of tensor it is.
            path: Dotted path of its module, `""` for the model itself.
            array: Its values, which may be changed once this returns.
            slot: Which of a module's tensors; of a parameter, its own name (`weight`).
            call: Which call of the module in this pass, from 0.
            owner: The module, for patterns that are types and for the run's list of sites.
            phase: Of which phase; by default `train`, or what `watch.phase` says.
        """
        phase = phase or self._phases.name(trains=True, has_gradients=True)
        self._take(Site(path, kind, call, slot), array, phase, owner, is_asked=False)

    def end_step(self) -> None:
        """The parameters have been updated: hand the step over and decide about the next one."""
        began = time.perf_counter_ns()
        with self._lock:
            if self.is_closed:
                return
            was_recorded = self._phases.records_training
            self.recorded_steps += was_recorded
            if not self._hand_over(self._rows.phases) and was_recorded:
                self.dropped_steps += 1
                self.troubles.tell(
                    "dropped", "the background thread did not keep up", level="warning"
                )
            self._phases.end_step()
            self._decide()
        self._spent_ns += time.perf_counter_ns() - began

    def detach(self) -> None:
        """Take every hook off the model and its optimizer."""

    def number(self, value: object) -> float:
        """A number of what a user logs. Raises on what is none."""
        array: NDArray[np.generic] = np.asarray(value)
        if array.size != 1:
            raise ValueError(f"it must be one number, got an array of shape {array.shape}.")
        return float(array.reshape(()))

    # -- as a session --------------------------------------------------------------------------

    @property
    def sinks(self) -> Sequence[RecordSink]:
        return [self._latest]

    @property
    def step(self) -> int:
        return self._phases.step

    @property
    def is_recording(self) -> bool:
        return self._machine.work is HookWork.RECORD

    @property
    def is_closed(self) -> bool:
        return self._machine.is_closed

    @property
    def forced_phase(self) -> str | None:
        return self._phases.forced

    @property
    def spent_s(self) -> float:
        return self._spent_ns / 1e9

    def costs(self, wall_s: float, budget: Budget | None) -> dict[str, object]:
        overhead: dict[str, object] = {
            "hooks_s": self.spent_s,
            "wall_s": wall_s,
            "share": self.spent_s / max(wall_s, 1e-9),
        }
        if budget is not None:
            overhead |= {"budget": budget.share, "left_out_steps": budget.left_out}
        return {
            "overhead": overhead,
            "memory": self._rows.memory,
            "recorded_steps": self.recorded_steps,
            "dropped_steps": self.dropped_steps,
            "step": self.step,
        }

    def watches(self, model: object) -> bool:
        return model is self.model

    def tell_concerns(self, others: Sequence[str], *, is_guess: bool) -> None:
        for run in others:
            self.troubles.concern(
                "watched_twice",
                f"The model is already watched, for the run {run!r}, and both watches record it. "
                "Close a watch before the next one: watch.close(), or `with sonde.watch(...)`.",
            )

    def reschedule(self, schedule: Schedule) -> None:
        with self._lock:
            self._schedule = schedule
            if self._machine.is_between and not self.is_closed:
                self._decide()

    def renumber(self, step: object, refuse: Callable[[str], None]) -> None:
        with self._lock:
            if renumber(self._phases, step, refuse) and not self.is_closed:
                self._decide()

    def go_to(self, step: int) -> int:
        with self._lock:
            before = self.step
            if not self.is_closed:
                self._hand_over(self._rows.phases)
                self._phases.go_to(step)
                self._decide()
            return before

    def end_by_hand(self) -> None:
        self.end_step()

    def attach(self, x: Any, name: str) -> None:
        """Record an array of the model itself: `sonde.attach`."""
        self.take("attach", "", x, slot=name)

    def record(self, name: object, x: Any, refuse: Callable[[str], None]) -> None:
        if not isinstance(name, str) or not name:
            refuse(f"An array was not recorded: its name must be a str, got {name!r}.")
        else:
            phase = self.forced_phase or "train"
            self._take(Site("", "attach", 0, name), x, phase, None, is_asked=True)

    def log(
        self,
        values: Mapping[str, object],
        *,
        step: int | None,
        reduce: str,
        refuse: Callable[[str], None],
    ) -> None:
        self._scalars.log(values, step=step, reduce=reduce, refuse=refuse)

    def metrics(
        self,
        step: int | None,
        *,
        stats: str | Sequence[str] | None,
        kinds: str | Iterable[str] | None,
        include: object,
        prefix: str,
    ) -> dict[str, float]:
        return self._scalars.flat(step, stats=stats, kinds=kinds, include=include, prefix=prefix)

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
        raise SondeError(_UNSUPPORTED.format("Metrics", type(self.model).__name__))

    def set_reference(self, model: object, *, device: object = None, run: bool = True) -> None:
        raise SondeError(_UNSUPPORTED.format("References", type(self.model).__name__))

    @contextmanager
    def paused(self) -> Iterator[None]:
        block = object()
        try:
            self._machine.pause(block)
            yield
        finally:  # twice, here and below: a signal handler may raise in the first
            try:
                self._machine.resume(block)
            finally:
                self._machine.resume(block)

    @contextmanager
    def phase(self, name: str, step: int | None) -> Iterator[None]:
        before = self._phases.forced_to
        try:
            with self._lock:
                self._phases.force(name, step)
            yield
        finally:
            try:
                self._end_phase(name, before)
            finally:
                self._end_phase(name, before)

    def _end_phase(self, name: str, before: tuple[str | None, int | None]) -> None:
        with self._lock:
            if self._phases.forced_to == before:
                return
            if not is_training(name):
                self._hand_over([name])
            self._phases.force(*before)

    @contextmanager
    def branch(self, name: str) -> Iterator[None]:
        before, self._phases.branch = self._phases.branch, name
        try:
            yield
        finally:
            self._phases.branch = before

    def forked(self) -> None:
        self._machine.end(WatchEvent.FORK)

    def close(self) -> None:
        with self._lock:
            if self.is_closed:
                return
            active.discard(self)
            self.detach()
            self._hand_over(self._rows.phases)
            self._machine.end(WatchEvent.CLOSE)
            self._machine.end(WatchEvent.BARE)
            self.troubles.tell_the_rest()

    # -- inside --------------------------------------------------------------------------------

    def _take(
        self, site: Site, array: ArrayLike, phase: str, owner: object, *, is_asked: bool
    ) -> None:
        """Record an array; one that a user has not asked for by name, if the plan wants it."""
        began = time.perf_counter_ns()
        try:
            with self._lock:
                if self.is_closed:
                    return
                if is_training(phase) and self._machine.is_between and not is_asked:
                    self._phases.begin_step()
                if self._machine.is_silent or not self._phases.wants(phase):
                    return
                if is_asked or self._is_planned(site, owner):
                    name = type(self.model if owner is None else owner).__name__
                    self._rows.add(site, phase, np.asarray(array), name)
        except Exception as error:
            self.troubles.failed(site.name, error)
        finally:
            self._spent_ns += time.perf_counter_ns() - began

    def _is_planned(self, site: Site, owner: object) -> bool:
        plan = self.plan
        if site.kind not in plan.kinds:
            return False
        if site.call >= plan.max_calls:
            self.troubles.skip(site.module or ".", TOO_MANY_CALLS.format(plan.max_calls))
            return False
        if site.kind in PARAMETER_KINDS:
            return plan.wants_parameter(site.module, site.path, owner)
        is_left_out = not plan.kinds_at(frozenset({site.kind}), site.module, owner)
        return not is_left_out and plan.wants(site.module, owner)

    def _hand_over(self, phases: Sequence[str]) -> bool:
        return self._rows.hand_over({phase: self._phases.step_of(phase) for phase in phases})

    def _decide(self) -> None:
        """Whether the next step is due."""
        self.troubles.step = self.step
        is_due = False
        try:
            is_due = bool(self._schedule(self.step))
        except Exception as error:
            self.troubles.failed("every", error)
        finally:
            self._phases.decide(is_due)


@dataclass(frozen=True, slots=True)
class ArrayBackend:
    """Watches models of a type with a session class."""

    name: str
    models: type | tuple[type, ...]
    session: type[ArraySession]

    def takes(self, model: object) -> bool:
        return isinstance(model, self.models)

    def prepare(self, model: object, optimizer: object, plan: Plan) -> Prepared:
        def start(schedule: Schedule, drain: Drain, step: int) -> ArraySession:
            return self.session(model, plan, schedule, drain, step=step, optimizer=optimizer)

        optimizers = [] if optimizer is None else [type(optimizer).__name__]
        return Prepared(type(model).__name__, optimizers, None, start)


_UNSUPPORTED = (
    "{} are not available for {}: its backend records tensors and numbers only. Compute the number "
    "in the training loop and record it with watch.log(...)."
)
