"""A session: one watched JAX model, from `watch` to `close`."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jax.extend.core import ClosedJaxpr

from sonde._errors import SondeError
from sonde.capture.array_session import ArraySession
from sonde.capture.drain import Drain
from sonde.capture.jax import optimizers
from sonde.capture.jax.flow import graph_of
from sonde.capture.jax.functions import recorded, sketched
from sonde.capture.jax.measures import Measure, Measures, measured, scalar
from sonde.capture.jax.rows import DeviceRows, Layout
from sonde.capture.jax.step_numbers import StepNumbers
from sonde.capture.jax.taps import JaxTap, Tracing
from sonde.capture.numbers.metric_request import place_selector, requested
from sonde.capture.numbers.repeats import Value
from sonde.capture.phases import is_training
from sonde.capture.plan import Every, Plan, Schedule, schedule_of
from sonde.metrics.jax.functions import BUILT_IN
from sonde.metrics.model import Metric
from sonde.record import PARAMETER_KINDS, Kind, Site

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
T = TypeVar("T")


class JaxSession(ArraySession):
    """A model of Flax, or a plain function, whose steps are recorded where they are due."""

    def __init__(
        self, model: object, plan: Plan, schedule: Schedule, drain: Drain, *, step: int
    ) -> None:
        super().__init__(model, plan, schedule, drain, step=step)
        self.model = model
        self._drain = drain
        self._rows: DeviceRows = DeviceRows(drain)
        self._numbers = StepNumbers(drain, self._scalars.taken.__contains__)
        self._scalars.keep_in(self._numbers)
        self._metrics: list[Metric] = []
        self._has_graph = False
        self._stacks: dict[str, int] = {}
        self._functions: dict[Hashable, tuple[object, Callable[..., object]]] = {}

    # -- for users -----------------------------------------------------------------------------

    def wrap(self, function: F) -> F:
        """The function as a training step: recorded where it is due, and every call ends a step."""
        _check_function(function)
        self.has_optimizer = True
        run = recorded(function, self)

        def step(*args: object, **kwargs: object) -> object:
            result = run(*args, **kwargs)
            self.end_step()
            return result

        for name in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(function, name):
                setattr(step, name, getattr(function, name))
        step.__wrapped__ = function  # type: ignore[attr-defined]  # as functools.wraps has it
        return cast("F", step)

    def intercept(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns; the call is recorded if the current step is."""
        _check_function(function)
        key = _identity(function)
        if key not in self._functions:
            self._functions[key] = (function, recorded(function, self))
        run = cast("Callable[P, T]", self._functions[key][1])
        return run(*args, **kwargs)

    def recorded_optimizer(self, tx: T) -> T:
        """The optax optimizer `tx` with its gradients, updates and state recorded."""
        if not (callable(getattr(tx, "init", None)) and callable(getattr(tx, "update", None))):
            raise SondeError(
                f"`tx` must be an optax optimizer (a GradientTransformation), got "
                f"{type(tx).__name__}."
            )
        return cast("T", optimizers.tapped(tx))

    def end_with(
        self, params: object, state: object, grads: object, refuse: Callable[[str], None]
    ) -> None:
        """Record trees that a function has returned, and end the step."""
        began = time.perf_counter_ns()
        phase = self.begin()
        if phase is not None:
            try:
                self._see(params, state, grads, phase, refuse)
            except Exception as error:
                self.troubles.failed("step", error)
        self._spent_ns += time.perf_counter_ns() - began
        self.end_step()

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
        """Evaluate a pure function of arrays in the recorded steps, as part of them."""
        metric, usual = requested(
            name, fn, kind=kind, reduce=reduce, against=against, built_in=BUILT_IN
        )
        if metric.against:
            raise SondeError(
                f"The metric `{metric.name}` compares with a reference, which JAX models cannot "
                "have. Compute the difference in the step and return it to watch.log(...)."
            )
        if any((m.name, m.kinds) == (metric.name, metric.kinds) for m in self._metrics):
            raise SondeError(
                f"There is a metric `{metric.name}` of {', '.join(metric.kinds)} already. "
                "Give this one another name."
            )
        self._metrics.append(
            replace(
                metric,
                where=place_selector(usual if where is None else where),
                every=None if every is None else schedule_of(every),
            )
        )

    # -- as the owner of functions -------------------------------------------------------------

    @property
    def wanted_kinds(self) -> frozenset[Kind]:
        return self.plan.kinds

    def begin(self) -> str | None:
        if self._machine.is_silent:
            return None
        with self._lock:
            phase = self._phases.name(trains=True, has_gradients=True)
            if is_training(phase) and self._phases.is_between:
                self._phases.begin_step()
            return phase if self._phases.wants(phase) and self._rows.has_room else None

    @property
    def due_metrics(self) -> Sequence[Metric]:
        return [m for m in self._metrics if m.every is None or m.every(self.step)]

    @property
    def wants_scalars(self) -> bool:
        return self.plan.hyperparameters

    def fail(self, where: str, error: Exception) -> None:
        self.troubles.failed(where, error)

    def take_numbers(self, measures: Sequence[Measure], numbers: Array, phase: str) -> None:
        with self._lock:
            self._numbers.put(measures, numbers, phase)

    def wants(self, tap: JaxTap) -> bool:
        site = Site(tap.path, tap.kind, 0, tap.slot)
        plan = self.plan
        if tap.kind not in plan.kinds or tap.scalar:
            return False
        if tap.kind in PARAMETER_KINDS:
            return plan.wants_parameter(tap.path, site.path, tap.module)
        return bool(plan.kinds_at(frozenset({tap.kind}), tap.path, tap.module)) and plan.wants(
            tap.path, tap.module
        )

    def skip(self, where: str, reason: str) -> None:
        self.troubles.skip(where, reason)

    def take_rows(self, layout: Layout, rows: Array, phase: str, types: dict[str, str]) -> None:
        began = time.perf_counter_ns()
        try:
            with self._lock:
                self._rows.put(layout, rows, phase, types)
        except Exception as error:
            self.troubles.failed("rows", error)
        self._spent_ns += time.perf_counter_ns() - began

    @property
    def wants_graph(self) -> bool:
        return not self._has_graph

    def see_graph(self, closed: ClosedJaxpr) -> None:
        try:
            part = graph_of(closed, self.step)
            if part is not None:
                self._has_graph = True
                self._drain.put(part)
        except Exception as error:
            self.troubles.failed("graph", error)

    def see_stacks(self, stacks: Mapping[str, int]) -> None:
        self._stacks.update(stacks)

    def unrecorded(self, function: object, error: Exception) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        self.troubles.failed(f"function {name}", SondeError(_remedy(name, error)))

    # -- as a session --------------------------------------------------------------------------

    def number(self, value: object) -> Value:  # type: ignore[override]  # or the promise of one
        if not isinstance(value, Array):
            return super().number(value)
        if isinstance(value, jax.core.Tracer):
            raise TypeError(
                "it is a traced value. Return it from the step function, and log what that returns."
            )
        if value.size != 1:
            raise ValueError(f"it must be one number, got an array of shape {value.shape}.")
        value.copy_to_host_async()
        return lambda: float(np.asarray(value).reshape(()))

    def record(self, name: object, x: object, refuse: Callable[[str], None]) -> None:
        if not isinstance(x, Array) or not isinstance(name, str) or not name:
            super().record(name, x, refuse)
            return
        phase = self.begin()
        if phase is not None:
            self._sketch_now([(JaxTap("attach", "", name), x)], phase, refuse)

    def watches(self, model: object) -> bool:
        return model is self.model or model is getattr(self.model, "function", self.model)

    def close(self) -> None:
        if not self.is_closed and self.plan.final_parameters and isinstance(self.model, nnx.Module):
            try:
                self._record_final(self.model)
            except Exception as error:  # buffers that were given away, a device that is gone
                self.troubles.failed("final parameters", error)
        super().close()

    def _hand_over(self, phases: Sequence[str]) -> bool:
        steps = {phase: self._phases.step_of(phase) for phase in phases}
        self._numbers.hand_over(steps)
        return super()._hand_over(phases)

    def _record_final(self, model: nnx.Module) -> None:
        ended = self._phases.ended
        if ended is None or "param" not in self.plan.kinds:
            return
        tracing = Tracing(frozenset({"param"}))
        params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
        seen = optimizers.see_trees(tracing, params)
        before = self._phases.force("final", ended)
        self._sketch_now(seen, "final", lambda _text: None)
        self._hand_over(["final"])
        self._phases.force(*before)

    def _see(
        self,
        params: object,
        state: object,
        grads: object,
        phase: str,
        refuse: Callable[[str], None],
    ) -> None:
        pure = [nnx.to_pure_dict(t) if isinstance(t, nnx.State) else t for t in (params, grads)]
        tracing = Tracing(self.plan.kinds)
        seen = optimizers.see_trees(tracing, pure[0], state, pure[1])
        wanted = [(t, x) for t, x in seen if self.wants(t)]
        self._sketch_now(wanted, phase, refuse, is_given=True)
        if self.plan.hyperparameters:
            for name, x in optimizers.scalars_of(state):
                self._numbers.put([scalar(name)], jnp.array([[x.reshape(()), 1]]), phase)

    def _sketch_now(
        self,
        seen: Sequence[tuple[JaxTap, Array]],
        phase: str,
        refuse: Callable[[str], None],
        *,
        is_given: bool = False,
    ) -> None:
        """Sketch arrays outside functions, without waiting for them."""
        alive = [(t, x) for t, x in seen if not x.is_deleted()]
        if len(alive) < len(seen):
            gone = next(t for t, x in seen if x.is_deleted())
            refuse(
                f"`{gone.path or '.'}/{gone.slot}` was not recorded: its buffer was donated to a "
                "jitted function. Pass what the function returned, or do not donate it."
            )
        if any(isinstance(x, jax.core.Tracer) for _, x in alive):
            refuse(
                "Traced values were not recorded. Call this outside jit, or name the value inside "
                "with sonde.jax.attach(x, name)."
            )
            return
        if alive:
            layout, rows = sketched(alive, self.skip, self._stacks)
            measures = Measures(self.due_metrics, self.fail)
            groups = [g for tap, x in alive for g in measures.see(tap, x, None)]
            numbers, found = measured(groups, self.fail)
            with self._lock:
                self._rows.put(layout, rows, phase, {}, is_given=is_given)
                self._numbers.put(found, numbers, phase)


def _check_function(function: object) -> None:
    if not callable(function):
        raise SondeError(
            f"`function` must be a step function, jitted or not, got {type(function).__name__}."
        )


def _identity(function: object) -> Hashable:
    """What tells functions apart: a method is a new object every time it is looked up."""
    inner = getattr(function, "__func__", None)
    return id(function) if inner is None else (id(inner), id(getattr(function, "__self__", None)))


def _remedy(name: str, error: Exception) -> str:
    """What to do about a function that cannot be traced."""
    what = f"`{name}` cannot be recorded and runs as it is: "
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return (
            f"{what}a traced value has leaked out of it. Return values from the function instead "
            f"of storing them. ({_first_line(error)})"
        )
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.JAXIndexError):
        return (
            f"{what}it needs values of arrays while it is traced, so jax.jit cannot compile it. "
            f"Use jax.lax.cond or jnp.where, or pass the argument as a Python value. "
            f"({_first_line(error)})"
        )
    return f"{what}{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
