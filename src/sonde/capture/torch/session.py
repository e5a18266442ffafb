"""A session: one watched PyTorch model with its optimizers, from `watch` to `close`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sonde._errors import SondeError
from sonde._signals import pass_on
from sonde._torch_internals import patches
from sonde._torch_internals.modules import optimizer_hooks
from sonde.capture import active
from sonde.capture.backend import described
from sonde.capture.budget import Budget
from sonde.capture.drain import Drain
from sonde.capture.norms import Norms
from sonde.capture.numbers.latest import Latest
from sonde.capture.numbers.scalars import Scalars, renumber
from sonde.capture.plan import Every, Plan, Schedule
from sonde.capture.torch import names
from sonde.capture.torch.capture import Capture
from sonde.capture.torch.cuda import copies
from sonde.capture.torch.facts import Facts
from sonde.capture.torch.manual import ManualRecords
from sonde.capture.torch.metrics import register
from sonde.capture.torch.metrics.observer import Observer
from sonde.capture.torch.mistakes import concerns
from sonde.capture.torch.optim.hyperparameters import Hyperparameters
from sonde.capture.torch.optim.optimizers import Optimizers
from sonde.capture.troubles import Troubles
from sonde.record import FINAL, Kind, RecordSink

__all__ = ["TorchSession", "check", "updates_of"]


def check(model: nn.Module, optimizer: object, plan: Plan) -> list[Optimizer]:
    """The optimizers as a list, or an error about what cannot be watched. Changes nothing."""
    several = optimizer if isinstance(optimizer, list | tuple) else [optimizer]
    optimizers = [_optimizer(o) for o in several if o is not None]
    if not _selects_any(model, plan):
        paths = [path for path, _ in names.modules(model) if path]
        raise SondeError(
            f"`include` and `exclude` leave no module and no parameter of {type(model).__name__}. "
            f"Its paths look like: {', '.join(paths[:5]) or '(only the root)'}. "
            f"Patterns are globs; a regular expression is written `re:...`."
        )
    return optimizers


class TorchSession:
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
        with ExitStack() as undo:  # a signal handler may raise anywhere
            undo.callback(self.capture.close)
            self.capture.start()
            self._start(model, optimizers, plan, drain, undo)
            undo.pop_all()

    def _start(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        plan: Plan,
        drain: Drain,
        undo: ExitStack,
    ) -> None:
        self._facts = Facts(self.capture.structure, self.capture.layout)
        self.capture.recorder.facts = self._facts
        self.observer = Observer(self.capture)
        undo.callback(self.observer.close)
        self.has_optimizer = self.capture.silence.has_optimizer = bool(optimizers)
        self._concerns = list(concerns(model, optimizers))
        self.latest = Latest()
        self._manual = ManualRecords(self.capture)
        self._optimizers = Optimizers(self.capture, optimizers)
        undo.callback(self._optimizers.close)
        self._scalars = Scalars(
            drain,
            self.capture.phases,
            self.capture.troubles,
            self.latest,
            memory=self.observer,
            number=_number,
        )
        self._hyperparameters: Hyperparameters | None = None
        if plan.hyperparameters:
            found = Hyperparameters(self.capture, optimizers, self.observer.remember)
            undo.callback(found.close)
            self._hyperparameters = found
            found.taken = self._scalars.taken
            drain.norms = Norms(self._scalars.taken)
            undo.callback(patches.forget, found)
            patches.listen(found)
        if not optimizers:
            self.capture.begun = self._optimizers.begin_by_hand
        undo.callback(patches.forget, self._optimizers)
        patches.listen(self._optimizers)
        undo.callback(active.discard, self.capture, self.observer)
        active.add(self.capture, self.observer)

    @property
    def plan(self) -> Plan:
        """What to record."""
        return self.capture.plan

    @property
    def troubles(self) -> Troubles:
        """What went wrong or was left out."""
        return self.capture.troubles

    @property
    def step(self) -> int:
        """The step under way, or the next one."""
        return self.capture.step

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded."""
        return self.capture.recording

    @property
    def is_closed(self) -> bool:
        """Whether it has been closed."""
        return self.capture.is_closed

    @property
    def forced_phase(self) -> str | None:
        """The phase that `watch.phase` has set, None outside such a block."""
        return self.capture.phases.forced

    @property
    def kernel(self) -> str:
        """Which dialect sketches tensors on the model's device."""
        model = self.capture.model
        first = next(iter(model.parameters()), None) if model is not None else None
        device = first.device if first is not None else torch.device("cpu")
        return self.capture.recorder.table_on(device).kernel

    @property
    def sinks(self) -> list[RecordSink]:
        """What compares records of frozen parameters, and what keeps the latest record."""
        return [self._optimizers.frozen, self.latest]

    @property
    def spent_s(self) -> float:
        """What recording has cost so far: on the host, or on the device if that is more."""
        meter = self._optimizers.meter
        return max(self.capture.spent_ns / 1e9, 0.0 if meter is None else meter.added_s)

    @property
    def device_cost(self) -> dict[str, float] | None:
        """How long recorded and other steps take on the device, where that is known."""
        meter = self._optimizers.meter
        cost = None if meter is None else meter.cost
        return None if cost is None else cost._asdict()

    def costs(self, wall_s: float, budget: Budget | None) -> dict[str, object]:
        """What recording has cost in that time, for `run.info`."""
        capture = self.capture
        hooks_s = capture.spent_ns / 1e9
        share = hooks_s / max(wall_s, 1e-9)
        overhead: dict[str, object] = {"hooks_s": hooks_s, "wall_s": wall_s, "share": share}
        if (device_cost := self.device_cost) is not None:
            overhead["device"] = device_cost
        if budget is not None:
            overhead["budget"] = budget.share
            overhead["left_out_steps"] = budget.left_out
        return {
            "overhead": overhead,
            "memory": capture.recorder.memory,
            "recorded_steps": capture.steps.recorded,
            "dropped_steps": capture.steps.dropped,
            "step": capture.step,
        }

    def tell_concerns(self, others: Sequence[str], *, is_guess: bool) -> None:
        """Warn of what is suspicious about what is watched. Given are the runs of the same model
        that are still being recorded, and whether the step is a guess."""
        if is_guess:  # which a checkpoint may correct before the first pass
            self.capture.silence.guess = self.capture.step
        for code, text in self._concerns:
            self.capture.troubles.concern(code, text)
        for run in others:
            self.capture.troubles.concern(
                "watched_twice",
                f"The model is already watched, for the run {run!r}, and both watches record it. "
                "Close a watch before the next one: watch.close(), or `with sonde.watch(...)`.",
            )

    def watches(self, model: object) -> bool:
        """Whether this is the model, with or without a wrapper around it."""
        if not isinstance(model, nn.Module):
            return False
        return names.unwrapped(model) is self.capture.root

    def log(
        self,
        values: Mapping[str, object],
        *,
        step: int | None,
        reduce: str,
        refuse: Callable[[str], None],
    ) -> None:
        """Numbers of a step. Tensors are not waited for; what is no number is refused."""
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
        """Numbers of a step, and statistics of the last recorded one if asked for."""
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
        """Record `fn(tensor)` at every recorded step."""
        register.add_metric(
            self.observer,
            name,
            fn,
            kind=kind,
            where=where,
            reduce=reduce,
            every=every,
            against=against,
        )

    def renumber(self, step: object, refuse: Callable[[str], None]) -> None:
        """Give the next step this number, if it can have it."""
        capture = self.capture
        with capture.lock:
            if renumber(capture.phases, step, refuse):
                capture.steps.renumbered()

    def record(self, name: object, x: object, refuse: Callable[[str], None]) -> None:
        """Sketch a tensor that belongs to no module, in the current step."""
        if not isinstance(name, str) or not name:
            refuse(f"A tensor was not recorded: its name must be a str, got {name!r}.")
        elif not isinstance(x, Tensor):
            refuse(f"`{name}` was not recorded: it must be a tensor, got {type(x).__name__}.")
        else:
            self._manual.record(name, x)

    def record_parameters(self, kind: Kind, stage: str) -> None:
        """Record parameters or their gradients as they are now."""
        self._optimizers.see_by_hand(kind, "" if stage == FINAL else f"/{stage}")

    def measure(
        self, name: str, value: object, tensors: tuple[object, ...], reduce: object
    ) -> None:
        """Add numbers to a metric of the current step, of no module."""
        self.observer.measure(name, value, tensors, reduce)

    def set_reference(self, model: object, *, device: Any = None, run: bool = True) -> None:
        """Compare with this model from now on."""
        register.set_reference(self.observer, model, device=device, run=run)

    def reschedule(self, schedule: Schedule) -> None:
        """Use another schedule: at once between steps, else from the next step on."""
        self.capture.steps.reschedule(schedule)

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing inside the block."""
        return self.capture.steps.paused()

    def forked(self) -> None:
        """Record nothing any more: the process is a fork of the one that records."""
        self.capture.forked()

    def phase(self, name: str, step: int | None) -> AbstractContextManager[None]:
        """Record the passes inside under this phase."""
        return self.capture.steps.in_phase(name, step)

    def branch(self, name: str) -> AbstractContextManager[None]:
        """Record the training passes inside under this branch of training."""
        return self.capture.steps.in_branch(name)

    def go_to(self, step: int) -> int:
        """Go on at this step. Returns the step at which it would have gone on."""
        before = self.capture.step
        self.capture.steps.go_to(step)
        return before

    def end_by_hand(self) -> None:
        """`watch.step()`: the step ends now."""
        self._optimizers.end_by_hand()

    def close(self) -> None:
        try:
            if self.capture.plan.final_parameters:
                self._manual.record_final()
        finally:
            self._close()

    def _close(self) -> None:
        active.discard(self.capture, self.observer)
        patches.forget(self._optimizers)
        self._optimizers.close()
        if self._hyperparameters is not None:
            patches.forget(self._hyperparameters)
            self._hyperparameters.close()
        self.capture.close()
        self._facts.forget()
        self.observer.close()


def updates_of(optimizers: Sequence[Optimizer]) -> int | None:
    """How many updates the optimizer that ends steps has made, if it counts them, as Adam does."""
    if not optimizers:
        return None
    counted = [
        int(state["step"])
        for state in optimizers[-1].state.values()
        if isinstance(state, dict) and isinstance(state.get("step"), Tensor | int | float)
    ]
    return max(counted, default=None)


def _selects_any(model: nn.Module, plan: Plan) -> bool:
    try:
        return any(plan.wants(path, module) for path, module in names.modules(model)) or any(
            plan.wants_parameter(path, f"{path}.{name}" if path else name, module)
            for path, name, module, _ in names.parameters(model)
        )
    except Exception as error:
        pass_on(error)
        raise SondeError(
            f"`include` or `exclude` raised {error!r}. A function there takes a path and a module."
        ) from error


def _optimizer(given: object) -> Optimizer:
    """The optimizer that runs the hooks: this one, or what a wrapper keeps as `.optimizer`."""
    inner = None if isinstance(given, type) else getattr(given, "optimizer", None)
    own, inners = optimizer_hooks(given), optimizer_hooks(inner)
    # Accelerate's wrapper has no hooks; that of Fabric shows those of the optimizer in it.
    if isinstance(given, Optimizer) and own is not None and own is not inners:
        return given
    if inner is not None and inner is not given:
        return _optimizer(inner)
    if isinstance(given, Optimizer):
        raise SondeError(
            f"The optimizer {described(given)} has no hooks: it never called "
            "`torch.optim.Optimizer.__init__`. Pass the optimizer that it uses."
        )
    raise SondeError(
        f"`optimizer` must be a torch.optim.Optimizer or a list of them, got {described(given)}."
    )


def _number(value: Any) -> float | Callable[[], float]:
    """A number now, or later if it has to come from a device. `Any`: what a user logs."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"it must be one number, got a tensor of shape {tuple(value.shape)}. "
                f"Reduce it first, for example with .mean()."
            )
        if value.is_meta:
            raise ValueError("it must be one number, got a tensor without data (device meta).")
        if value.device.type == "cpu":
            return float(value.detach())
        return copies.number(value)
    return float(value)
