"""The wiring for traces: a model, its probes, a pipeline and a place to keep values.

with sonde.trace(model, ["forward.x", "encoder.1"]) as trace:
    for x, y in loader:
        ...
trace.results["forward.x"].values
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from sonde._errors import SondeError
from sonde.capture.launch import rank_and_world
from sonde.capture.open_watches import OPEN, PARTS, TRACES, UNRECORDED
from sonde.capture.plan import Every, schedule_of
from sonde.record import Event
from sonde.tracing import callbacks
from sonde.tracing.callbacks import BeforeSave, OnWindow
from sonde.tracing.hdf5 import HDF5
from sonde.tracing.pipeline import Destination, InMemory, Pipeline, Ranks
from sonde.tracing.probes import Probes
from sonde.tracing.resolving import resolve
from sonde.tracing.results import Results
from sonde.tracing.tracer import Tracer
from sonde.tracing.troubles import TraceTroubles
from sonde.tracing.windows import ByteBudget

if TYPE_CHECKING:
    from sonde.capture.backend import Session
    from sonde.store.writing.writer import Writer
    from sonde.tracing.torch.framework import TorchFramework
    from sonde.watching import Watch

T = TypeVar("T")

_HDF5_ENDINGS: Final = (".h5", ".hdf5", ".he5")
_CLOSE_S: Final = 10.0
_ordinals: Final = count()


def trace(
    model: Any,
    paths: str | Iterable[str],
    *,
    every: Every = 1,
    phase: str | Iterable[str] = ("train",),
    gather_every: int | None = 1,
    before_save: BeforeSave | Sequence[BeforeSave] = (),
    before_gather: OnWindow | Sequence[OnWindow] = (),
    after_gather: OnWindow | Sequence[OnWindow] = (),
    after_trace: OnWindow | Sequence[OnWindow] = (),
    into: str | os.PathLike[str] | HDF5 = "auto",
    always: bool = False,
    step: int | None = None,
    budget_bytes: int = 2 << 30,
    timeout_s: float = 30.0,
    strict: bool = False,
) -> Trace:
    """Record variables inside a model's methods: each value, when it changed, on every rank.

    Args:
        model: A `torch.nn.Module`, wrapped or not. Nothing of it is replaced.
        paths: What to follow: `forward` (what it returns), `forward.x` (an argument or local),
            `encoder.1` (what that module returns), `layers.*.attn.forward.q`, `helper.q`,
            `forward.self.count`, `forward.d.key.0`, `forward.q@grad`. `*` stands for one
            component, `**` for any number.
        every: Follow every n-th iteration; or a function of the iteration; or windows
            `[(0, 100), (1000, 2000, 10)]`.
        phase: Of which passes: `train`, `eval` (the mode of the model), or both; or the names that
            a watch gives.
        gather_every: After n iterations the values of all ranks are gathered on rank 0, the
            last ones at the end. None: each rank keeps its own.
        before_save: Functions `(name, value, iteration) -> value` for each value that is captured.
        before_gather: Functions `(name, values, iterations)` that change the lists of a window, on
            each rank. `sonde.tracing` has `stack`, `stack_padded` and `mean_over`.
        after_gather: Functions `(name, values, iterations, ranks)` that change the lists of a
            window of all ranks, on rank 0.
        after_trace: Functions `(name, values, iterations, ranks)` that change the results, at the
            end.
        into: `"memory"`: `trace.results`. `"run"`: the run of the watch of this model, from every
            rank, without any communication. A path that ends in `.h5`, or `sonde.tracing.HDF5(...)`
            with options: a file. `"auto"`: the run if the model is watched, else memory.
        always: Keep a value in every call, also when it has not changed since the last one.
        step: Number of the first iteration; 0, or the watch's if the model is watched.
        budget_bytes: Memory for values at a time; values beyond it are refused, with a warning.
        timeout_s: How long rank 0 waits for a rank that sends nothing.
        strict: Raise errors of tracing instead of going on without the variable that failed.

    Raises:
        SondeError: If something in the arguments is wrong, or a path cannot match; nothing has been
            changed then.
    """
    if os.environ.get("SONDE", "").lower() in ("off", "0", "false", "no"):
        return Trace.inert()
    if "torch" not in sys.modules:
        raise SondeError("`model` must be a torch.nn.Module; torch has not been imported.")
    from sonde.tracing.torch import internals, modules
    from sonde.tracing.torch.framework import TorchFramework, TorchSynchronization

    framework = TorchFramework(model)
    compiled = list(modules.compiled_modules(model))
    if compiled and modules.is_whole(model):
        raise SondeError(_about_whole(compiled))
    wanted = [paths] if isinstance(paths, str) else list(paths)
    places = resolve(wanted, framework.tree)
    hooks = {
        "before_save": callbacks.checked(before_save, "before_save"),
        "before_gather": callbacks.checked(before_gather, "before_gather"),
        "after_gather": callbacks.checked(after_gather, "after_gather"),
        "after_trace": callbacks.checked(after_trace, "after_trace"),
    }
    _check_numbers(gather_every, budget_bytes, timeout_s, step)
    schedule, phases = schedule_of(every), _phases(phase)
    watch = _watch_of(model)
    if into in ("auto", "run") and watch is None and _is_unrecorded(model):
        return Trace.inert()
    troubles = TraceTroubles(strict=strict)
    budget = ByteBudget(budget_bytes)
    destination, writer = _destination(into, watch)
    ranks = None
    if not destination.is_shared and gather_every is not None:
        ranks = _ranks(wanted, troubles, timeout_s, budget_bytes)
    rank = ranks.rank if ranks is not None else _own_rank(writer)
    if isinstance(destination, HDF5) and rank == 0:
        destination.open()
    if writer is not None:
        troubles.tell = writer.event
    pipeline = Pipeline(
        destination,
        ranks,
        TorchSynchronization(),
        budget,
        troubles,
        before_gather=hooks["before_gather"],
        after_gather=hooks["after_gather"],
        rank=rank,
    )
    clock = _clock(framework, watch if step is None else None, step or 0)
    tracer = Tracer(
        places,
        framework,
        clock,
        schedule=schedule,
        phases=phases,
        gather_every=gather_every or 1,
        before_save=hooks["before_save"],
        always=always,
        budget=budget,
        troubles=troubles,
        hand_over=pipeline.put,
        is_patient=pipeline.is_patient,
    )
    # Before the probes are there: the compiler knows code by its object.
    undo = [modules.compile_again(model)] if compiled else []
    probes = Probes(tracer, places, internals.keep_whole, undo)
    if writer is not None:
        destination.sources(probes.sources())  # type: ignore[attr-defined]  # a run's
    if compiled:
        troubles.warn(_about_compiled(compiled))
    results = destination.results if isinstance(destination, InMemory) else Results()
    results.refresh = tracer.release
    closing_s = _CLOSE_S + (2 * timeout_s if ranks is not None else 0)
    made = Trace(tracer, probes, pipeline, results, hooks["after_trace"], troubles, closing_s)
    _join(made, watch, writer)
    return made


def _join(made: Trace, watch: Watch | None, writer: Writer | None) -> None:
    """Let `watch.flush` settle the trace, if that writes into the run of the watch."""
    if watch is not None and writer is not None:
        TRACES.setdefault(watch, weakref.WeakSet()).add(made)


def trace_once(
    model: Callable[..., T], paths: str | Iterable[str], /, *args: object, **kwargs: object
) -> tuple[T, Results]:
    """Call the model once and follow variables inside it. Returns its output and the results.

        output, results = sonde.trace_once(model, ["layers.*.attn.forward.q"], x)
        results["layers.0.attn.forward.q"].values

    `paths` are those of `trace`; `args` and `kwargs` go to the model.
    """
    with trace(model, paths, phase=("train", "eval"), into="memory") as traced:
        output = model(*args, **kwargs)
    return output, traced.results


class Trace:
    """Variables being followed, from the moment it is made until it is closed.

    Closes itself at the end of a `with` block, or of the process.
    """

    def __init__(
        self,
        tracer: Tracer | None,
        probes: Probes | None,
        pipeline: Pipeline | None,
        results: Results,
        after_trace: Sequence[OnWindow],
        troubles: TraceTroubles,
        closing_s: float,
    ) -> None:
        self.results = results
        """By name: `iterations`, `ranks`, `values`. On rank 0 those of all ranks."""
        self._tracer = tracer
        self._probes = probes
        self._pipeline = pipeline
        self._after_trace = after_trace
        self._troubles = troubles
        self._closing_s = closing_s
        self._is_closed = tracer is None
        if tracer is not None:
            _OPEN.add(self)

    @classmethod
    def inert(cls) -> Trace:
        """A trace that does nothing: `SONDE=off`."""
        return cls(None, None, None, Results(), (), TraceTroubles(strict=False), 0.0)

    @property
    def iteration(self) -> int:
        """The number of the current iteration."""
        return self._tracer.iteration if self._tracer is not None else 0

    @property
    def refused(self) -> dict[str, int]:
        """How many values were not kept, by name: too large, or without values."""
        return dict(self._troubles.refused)

    def step(self) -> None:
        """End the iteration by hand: for a model of which only other methods are called."""
        if self._tracer is not None:
            self._tracer.step()

    def flush(self, timeout_s: float = _CLOSE_S) -> bool:
        """Wait until all full windows have arrived where they are kept; false if it took longer."""
        has_arrived = self.settle(timeout_s)
        self._troubles.say()
        return has_arrived

    def settle(self, timeout_s: float) -> bool:
        """As `flush`, without warnings: `watch.flush` calls it for traces into its run."""
        if self._tracer is not None:
            self._tracer.release()
        return self._pipeline is None or self._pipeline.wait(timeout_s)

    def close(self, *, quiet: bool = False) -> None:
        """Take everything off the model, gather what is left, run `after_trace`. May be repeated.

        Says which paths were never seen, unless `quiet`.
        """
        if self._is_closed:
            return
        self._is_closed = True
        _OPEN.discard(self)
        assert self._tracer is not None
        assert self._probes is not None
        assert self._pipeline is not None
        self._probes.close()
        unseen = [] if quiet else self._tracer.never_seen()
        self._tracer.close()
        if not self._pipeline.close(self._closing_s):
            self._troubles.warn("The last traced values did not arrive in time, and are lost.")
        for name, result in self.results.items():
            callbacks.run(self._after_trace, name, result, self._troubles, with_ranks=True)
        for text in unseen:
            self._troubles.tell(Event("trace_unseen", text, level="warning"))
            self._troubles.warn(text)
        self._troubles.say()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close(quiet=kind is not None)

    def forked(self) -> None:
        """Trace nothing more: the process is a fork of the one that traces."""
        if self._tracer is not None:
            self._tracer.forget()
        self._is_closed = True

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"iteration {self.iteration}"
        return f"Trace({state}, {self.results!r})"


_OPEN: weakref.WeakSet[Trace] = weakref.WeakSet()
"""Traces to close when the process ends."""


def _close_all() -> None:
    for each in list(_OPEN):
        each.close(quiet=True)


def _forget_all() -> None:
    """In a forked child nothing is traced: its threads did not come along."""
    for each in list(_OPEN):
        each.forked()
    _OPEN.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class PassClock:
    """Iterations are passes of the model, counted apart in each mode."""

    def __init__(self, framework: TorchFramework, first: int) -> None:
        self._framework = framework
        self._first = first
        self._passes: dict[str, int] = {}

    def now(self) -> tuple[int, str]:
        return self._first, "train" if self._framework.is_training else "eval"

    def begin(self) -> tuple[int, str]:
        phase = "train" if self._framework.is_training else "eval"
        n = self._passes.get(phase, 0)
        self._passes[phase] = n + 1
        return self._first + n, phase

    def is_over(self, iteration: int) -> bool:
        """A pass is over when the next begins: until then there may be a backward."""
        return iteration < self._first


class WatchClock:
    """Iterations are the steps of the watch of the same model, for as long as it lasts."""

    def __init__(self, framework: TorchFramework, session: Session) -> None:
        self._framework = framework
        self._session = session
        self._after = 0

    def now(self) -> tuple[int, str]:
        mode = "train" if self._framework.is_training else "eval"
        return self._session.step + self._after, self._session.forced_phase or mode

    def begin(self) -> tuple[int, str]:
        if self._session.is_closed:
            self._after += 1
        return self.now()

    def is_over(self, iteration: int) -> bool:
        """Whether the step has ended."""
        return self._session.step + self._after != iteration


def _clock(framework: TorchFramework, watch: Watch | None, first: int) -> PassClock | WatchClock:
    session = None if watch is None else PARTS[watch].session
    return PassClock(framework, first) if session is None else WatchClock(framework, session)


def _watch_of(model: object) -> Watch | None:
    return next((w for w in list(OPEN) if w.watches(model)), None)


def _is_unrecorded(model: object) -> bool:
    """Whether the watch of the model records nothing: another process writes its rank."""
    return any(r() is model for r in UNRECORDED)


def _destination(into: object, watch: Watch | None) -> tuple[Destination, Writer | None]:
    """Where values go, and the writer of the run if it is one."""
    if isinstance(into, HDF5):
        return into, None
    if isinstance(into, str | os.PathLike):
        text = os.fspath(into)
        if text == "memory" or (text == "auto" and watch is None):
            return InMemory(), None
        if text in ("auto", "run"):
            writer = None if watch is None else PARTS[watch].writer
            if writer is None:
                raise SondeError(
                    '`into="run"` needs a watch of this model: `sonde.watch(model, ...)` first, '
                    'or `into="memory"`, or a file such as `into="values.h5"`.'
                )
            from sonde.store import packing
            from sonde.store.tensors import TracedValue
            from sonde.tracing.torch.runs import RunDestination

            return RunDestination(writer, packing, TracedValue), writer
        if Path(text).suffix.lower() in _HDF5_ENDINGS:
            return HDF5(text), None
    raise SondeError(
        f'`into` must be "auto", "memory", "run", a file that ends in `.h5`, or '
        f"`sonde.tracing.HDF5(...)`, got {into!r}."
    )


def _ranks(
    paths: Sequence[str], troubles: TraceTroubles, timeout_s: float, limit_bytes: int
) -> Ranks | None:
    from sonde.store import packing, safetensors
    from sonde.tracing.gathering import Gathering
    from sonde.tracing.torch import distributed

    found = distributed.rank_and_world()
    if found is None or found[1] == 1:
        return None
    rank, world_size = found
    return Gathering(
        distributed.SharedStore(distributed.prefix_of(paths, next(_ordinals))),
        distributed.TensorCodec(packing, safetensors),
        troubles,
        rank=rank,
        world_size=world_size,
        timeout_s=timeout_s,
        limit_bytes=limit_bytes,
    )


def _own_rank(writer: Writer | None) -> int:
    if writer is not None:
        rank: int = writer.attempt.rank
        return rank
    from sonde.tracing.torch import distributed

    found = distributed.rank_and_world()
    if found is not None:
        return found[0]
    return rank_and_world()[0]


def _phases(phase: str | Iterable[str]) -> frozenset[str]:
    found = frozenset([phase] if isinstance(phase, str) else phase)
    if not found or not all(isinstance(p, str) and p for p in found):
        raise SondeError(f'`phase` must name phases such as "train" or "eval", got {phase!r}.')
    return found


def _check_numbers(
    gather_every: int | None, budget_bytes: int, timeout_s: float, step: int | None
) -> None:
    if gather_every is not None and (not isinstance(gather_every, int) or gather_every < 1):
        raise SondeError(
            f"`gather_every` must be at least 1 iteration, or None, got {gather_every!r}."
        )
    if not isinstance(budget_bytes, int) or budget_bytes < 1:
        raise SondeError(f"`budget_bytes` must be at least 1, got {budget_bytes!r}.")
    if not timeout_s > 0:
        raise SondeError(f"`timeout_s` must be above 0 seconds, got {timeout_s!r}.")
    if step is not None and (not isinstance(step, int) or step < 0):
        raise SondeError(f"`step` must be 0 or more, got {step!r}.")


def _about_compiled(modules: Sequence[str]) -> str:
    return (
        f"Compiled by `torch.compile`: {_shown(modules)}. While they are traced, methods run as "
        "plain Python, and what is compiled around them is compiled again, now and at the end. "
        "Nothing is seen inside a function that was compiled by itself, such as a whole "
        'training step: call that within `torch.compiler.set_stance("force_eager")`.'
    )


def _about_whole(modules: Sequence[str]) -> str:
    return (
        f"Compiled in one piece (`fullgraph=True`): {_shown(modules)}. A method that is traced has "
        "to be left to Python. Begin the trace and call the model within "
        '`torch.compiler.set_stance("force_eager")`, or compile without `fullgraph`.'
    )


def _shown(modules: Sequence[str]) -> str:
    more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
    return ", ".join(f"`{path}`" if path else "the model itself" for path in modules[:3]) + more
