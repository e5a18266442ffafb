"""The wiring for writers: a model, a capture, a drain and a run directory make a `Watch`."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import ref

from sonde import _endings
from sonde._errors import SondeError
from sonde._memory import give_back
from sonde._signals import is_from_handler
from sonde.capture.backend import Session, backend_of
from sonde.capture.budget import Budget
from sonde.capture.drain import DeferredWarning, Drain
from sonde.capture.launch import launched, run_name, together
from sonde.capture.open_watches import OPEN as _OPEN
from sonde.capture.open_watches import PARTS as _PARTS
from sonde.capture.open_watches import UNRECORDED as _UNRECORDED
from sonde.capture.open_watches import WatchParts, settle_traces
from sonde.capture.plan import Every, Phases, plan_of, schedule_of
from sonde.capture.voice import WarnOnce, users_place
from sonde.capture.watches.by_hand import ByHandWatch
from sonde.capture.watches.functional import end_step
from sonde.record import RecordSink
from sonde.sinks.feed import Feeds
from sonde.sinks.request import check_sinks
from sonde.sinks.sink import Sink, WatchedRun
from sonde.store.writing.claims import RankTakenError
from sonde.store.writing.placement import new_name, place_run, step_of
from sonde.store.writing.writer import Writer

_CLOSE_TIMEOUT_S, _EXIT_TIMEOUT_S = 10.0, 4.0


def watch(
    model: object,
    optimizer: object = None,
    *,
    every: Every = 10,
    log: str | Iterable[str] = "default",
    dir: str | os.PathLike[str] = "runs",
    name: str | None = None,
    include: object = None,
    exclude: object = None,
    phases: Phases = ("train",),
    resume: bool = False,
    step: int | None = None,
    config: dict[str, object] | None = None,
    sinks: Sequence[Sink | RecordSink | str] = (),
    max_calls: int = 16,
    strict: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    flush_s: float = 2.0,
    reference: object = None,
    overhead_budget: float | None = None,
    hyperparameters: bool = True,
    final_parameters: bool = True,
) -> Watch:
    """Record what happens inside a model while it trains, into a run directory.

    Args:
        model: A `torch.nn.Module`, wrapped or not, or a module of Flax. Nothing of it is replaced.
        optimizer: The optimizer that trains it, or several; the last one of the list ends a step.
            Without one, call `watch.step()` after each update.
        every: Record every n-th step; or a function of the step; or windows
            `[(0, 100), (1000, 2000, 10)]`. May be changed later through `watch.every`.
        log: Kinds, or a preset: `default`, `activations`, `gradients`, `parameters` or `all`.
        dir: Folder of runs, or its URL in an object store: see docs/ranks.md.
        name: Of the run, a folder in `dir`; by default `SONDE_RUN`, or time and random characters.
        include: What to record: globs on paths, `re:` regular expressions, module types, a function
            `(path, module) -> bool`, or several of these. Parameters follow their module, or go by
            their own full name.
        exclude: What to leave out, in the same forms; or by kind: `{"output_grad": nn.ReLU}`.
        phases: Which of `train`, `eval` and `no_grad` are recorded, at the steps that `every` says;
            or a schedule for each, `{"train": 10, "eval": 1}`. See docs/steps.md.
        resume: Continue the run `name` (or the latest one) from `step`.
        step: Number of the first step; 0 by default. When resuming, by default what the optimizer
            has counted, if it does; else one after the last recorded, with a warning.
        config: Anything about the training to keep with the run.
        sinks: Further destinations: instances of `sonde.Sink`, or names of trackers (`"wandb"`).
        max_calls: Calls of a module in one pass that are recorded; more are skipped and counted.
        strict: Raise errors of the recording instead of going on without the part that failed.
        rank: Rank of this process; by default what the launcher (torchrun, srun, mpirun) says, or
            0. A rank is written by one process at a time; any other records nothing and warns.
        world_size: How many processes train together; by default what the launcher says, or 1.
        flush_s: What is recorded is safe on disk after this many seconds.
        reference: A model to compare with, or `"init"`: see `Watch.set_reference`.
        overhead_budget: Leave out due steps, so that hooks take at most this share of the time.
        hyperparameters: Record settings of each parameter group (learning rate, betas, ...), the
            norm of all gradients and a gradient scaler's scale, as scalars.
        final_parameters: Record the parameters once more at the end, as phase `final`.

    Raises:
        SondeError: If something in the arguments is wrong, or another process still writes the run
            to resume; nothing has been changed then.
    """
    if os.environ.get("SONDE", "").lower() in ("off", "0", "false", "no"):
        return Watch.inert()
    launch, voice = launched(rank, world_size), WarnOnce()
    plan, every, described = plan_of(
        log=log,
        include=include,
        exclude=exclude,
        phases=phases,
        every=every,
        max_calls=max_calls,
        strict=strict,
        hyperparameters=hyperparameters,
        final_parameters=final_parameters,
        world_size=launch.world_size,
    )
    schedule, (named, others) = schedule_of(every), check_sinks(sinks)
    budget = None if overhead_budget is None else Budget(schedule, overhead_budget)
    prepared = backend_of(model).prepare(model, optimizer, plan)
    described |= {
        "model": prepared.model_type,
        "optimizers": list(prepared.optimizer_types),
        "overhead_budget": overhead_budget,
    }
    if name is None and not resume:
        name = run_name(launch, new_name, prepared.agree, voice.warn)
    updates = prepared.updates
    place = place_run(
        dir, name, launch.restarts, voice.warn, resume=resume, step=step, updates=updates
    )
    described["began"] = {"step": place.step, "updates": updates or 0}
    drain = Drain()
    session = prepared.start(budget or schedule, drain, place.step)
    writer: Writer | None = None
    try:
        if reference is not None:
            session.set_reference(reference)
        # Last: a watch that fails leaves no run behind.
        new_writer = partial(
            Writer,
            place.path,
            rank=launch.rank,
            world_size=launch.world_size,
            launch=together(launch, prepared.agree, new_name),
            config={"watch": described, "user": config},
            upload_to=place.url,
            flush_s=flush_s,
            on_problem=voice.warn,
        )
        writer = new_writer(resume_from_step=place.step if place.is_resumed else None)
        feeds = Feeds(named, WatchedRun(place.path, launch.rank, config or {}), drain.tell)
        drain.start([feeds, writer, *session.sinks, *others])  # feeds first: they tell of losses
        runs = [w.path.name for w in _OPEN if w.watches(model) and w.path is not None]
        made = Watch(session, drain, writer, voice, every, budget, new_writer, feeds)
        session.tell_concerns(sorted(runs), is_guess=place.is_guess)
    except BaseException as error:
        session.close()
        if writer is not None:  # a signal handler has raised
            drain.close("failed", _CLOSE_TIMEOUT_S)
            writer.close("failed")
        if not isinstance(error, RankTakenError) or place.is_resumed or strict:
            raise
        voice.warn(f"This process records nothing. {error}")
        _UNRECORDED.append(ref(model))
        return Watch.inert()
    return made


def unwatch(model: object) -> None:
    """Close every watch of this model and remove all hooks. Without a watch, do nothing."""
    for open_watch in list(_OPEN):
        if open_watch.watches(model):
            open_watch.close()


class Watch(ByHandWatch):
    """A model being recorded. Closes itself at the end of a `with` block, or of the process."""

    def __init__(
        self,
        session: Session | None,
        drain: Drain | None,
        writer: Writer | None,
        voice: WarnOnce,
        every: Every | None,
        budget: Budget | None = None,
        new_writer: Callable[..., Writer] | None = None,
        feeds: Feeds | None = None,
    ) -> None:
        self._session = session
        self._budget = budget
        self._drain = drain
        self._writer = writer
        self._new_writer = new_writer
        self._feeds = feeds
        self._voice = voice
        self._every = every
        self._pid = os.getpid()
        self._began_s = time.monotonic()
        self._lock = threading.RLock()
        self._closed = session is None
        self._is_shut = False
        self._reason: str | None = None
        if session is not None and drain is not None:
            session.troubles.warn = self._warn_later
            if budget is not None:
                budget.spent_s = lambda: session.spent_s
            drain.after_step = self._tell_cost
            _OPEN.add(self)
            _PARTS[self] = WatchParts(session, writer)
            # Registered after the writer's own, so that it runs before it.
            atexit.register(self._at_exit)

    @classmethod
    def inert(cls) -> Watch:
        """A watch that does nothing: `SONDE=off`."""
        return cls(None, None, None, WarnOnce(), None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(_endings.of_error(error))

    def __repr__(self) -> str:
        if self._session is None:
            return "Watch(off)"
        return f"Watch(path={str(self.path)!r}, step={self._session.step})"

    @property
    def path(self) -> Path | None:
        """The run directory, on this machine; None when Sonde is off."""
        return None if self._writer is None else Path(self._writer.path)

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded."""
        return self._session is not None and self._session.is_recording

    @property
    def every(self) -> Every | None:
        """The schedule. Assign a new one at any time."""
        return self._every

    @every.setter
    def every(self, value: Every) -> None:
        if self._session is not None:
            schedule = schedule_of(value)
            if self._budget is not None:
                self._budget.schedule = schedule
                schedule = self._budget
            self._session.reschedule(schedule)
            self._every = value

    @property
    def current_step(self) -> int | None:
        """The step under way, or the next one. Assign a higher one between steps."""
        return None if self._session is None else self._session.step

    @current_step.setter
    def current_step(self, value: int) -> None:
        if not self._is_off():
            assert self._session is not None
            self._session.renumber(value, self._refuse)

    def record(self, name: str, tensor: object) -> None:
        """Record a tensor that is no part of a forward, such as the loss of each token, as
        `./attach/name`, if the current step is recorded. Metrics of the kind `attach` see it too.

        Between steps, the current step is the next one.
        """
        if not self._is_off():
            assert self._session is not None
            self._session.record(name, tensor, self._refuse)

    def log(
        self,
        values: dict[str, object] | None = None,
        /,
        *,
        step: int | None = None,
        reduce: str = "last",
        **more: object,
    ) -> None:
        """Record numbers (or tensors of one number, which nothing waits for) for a step.

        The step is the current one; between an optimizer step and the next forward, the one that
        just ended; or the one that is given. Of a name that is logged several times in a step, the
        `last` value counts, or the `mean`, `sum`, `min` or `max` of all. A `note="..."` marks it.
        """
        if self._is_off():
            return
        assert self._session is not None
        try:
            given = {**(values or {}), **more}
            self._session.log(given, step=step, reduce=reduce, refuse=self._refuse)
        except Exception as error:
            if isinstance(error, SondeError) or is_from_handler(error):
                raise  # as a strict watch wants it, or a handler of the user's
            self._refuse(f"Numbers were not logged: {type(error).__name__}: {error}")

    def step(self, *trees: object, **scalars: object) -> None:
        """Log the scalars and end the step. Only for a watch without an optimizer.

        In JAX, `trees` (parameters, optimizer state, gradients) are recorded first.
        """
        if not self._is_off():
            assert self._session is not None
            end_step(self._session, trees, scalars, self.log, self._voice.warn, self._refuse)

    def paused(self) -> AbstractContextManager[None]:
        """Record nothing in this block."""
        return nullcontext() if self._session is None else self._session.paused()

    def phase(self, name: str, *, step: int | None = None) -> AbstractContextManager[None]:
        """Record all passes inside this block under this phase, unless `phases` has a schedule for
        it. The step is the last one that ended, or the one that is given."""
        return nullcontext() if self._session is None else self._session.phase(name, step)

    def branch(self, name: str) -> AbstractContextManager[None]:
        """Keep the training passes inside this block apart, as phase `train/name`: for a model that
        is called several times per step, such as the discriminator of a GAN. Parameters and their
        gradients stay in `train`."""
        return nullcontext() if self._session is None else self._session.branch(name)

    def add_metric(
        self,
        name: str | Callable[..., object],
        fn: Callable[..., object] | None = None,
        *,
        kind: str | tuple[str, ...] | None = None,
        where: object = None,
        reduce: object = None,
        every: Every | None = None,
        against: str | None = None,
    ) -> None:
        """Record `fn(tensor)` at every recorded step, for every selected tensor.

        Args:
            name: What the metric is called; or a function decorated with `sonde.metric`; or the
                name of one that Sonde or an installed package brings along.
            fn: Takes a tensor and returns a number, a tensor, or a dict of these. A tensor is not
                waited for, and each of its elements counts the same.
            kind: Which tensors, `output` by default. Several kinds of one parameter or of one call
                (`("update", "param")`) make a function of several tensors.
            where: A glob or regular expression on paths, or anything that `include` takes.
            reduce: `mean`, `sum`, `min`, `max`, or a function of all values of a step.
            every: Ask only in some of the recorded steps.
            against: `"reference"` for `fn(tensor, tensor_of_the_reference)`.

        Raises:
            SondeError: If something in the arguments is wrong.
        """
        if self._is_off():
            return
        assert self._session is not None
        self._session.add_metric(
            name, fn, kind=kind, where=where, reduce=reduce, every=every, against=against
        )

    def set_reference(self, model: object, *, device: object = None, run: bool = True) -> None:
        """Compare with another model of the same structure; `"init"` is a copy of this one as it is
        now; `None` removes it.

        Run its forward before that of the watched model, on the same inputs; where you do not,
        Sonde does, unless `run=False`. With `device="cpu"` it needs no memory of the GPU, and
        training waits for its inputs to come over.
        """
        if self._is_off():
            return
        assert self._session is not None
        self._session.set_reference(model, device=device, run=run)

    def metrics(
        self,
        step: int | None = None,
        *,
        stats: str | Sequence[str] | None = None,
        kinds: str | Iterable[str] | None = None,
        include: object = None,
        prefix: str = "",
    ) -> dict[str, float]:
        """Metrics and scalars of a step that has ended, the last one by default, as a flat dict for
        any logger: `activation/h.0.mlp/rms`, `gradient/h.0.mlp.weight/norm`, `loss`.

        Waits for numbers that come from a device. Only the last few steps are kept.

        Args:
            step: Of which step; with `stats`, the last recorded one by default.
            stats: Add these statistics (`rms`, `norm`, ...) of every tensor of that step.
            kinds: Add them only for these kinds or presets, as in `watch(log=...)`.
            include: Only for these modules and parameters, as in `watch(include=...)`.
            prefix: Put `prefix/` in front of every key.
        """
        if self._session is None:
            return {}
        return self._session.metrics(step, stats=stats, kinds=kinds, include=include, prefix=prefix)

    def state_dict(self) -> dict[str, object]:
        """State for a checkpoint: the next step. Empty when Sonde is off."""
        if self._session is None:
            return {}
        return {"step": self._session.step, "run": self.path.name if self.path else None}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue at the step of a checkpoint. Records from that step on are replaced."""
        if self._is_off() or not state:
            return
        step = step_of(state)
        assert self._session is not None
        assert self._drain is not None
        assert self._writer is not None
        before = self._session.go_to(step)
        if step < before and self._new_writer is not None:
            self._drain.wait(_CLOSE_TIMEOUT_S)
            self._writer.close("resumed at an earlier step")
            old, self._writer = self._writer, self._new_writer(resume_from_step=step)
            self._drain.replace(old, self._writer)
            _PARTS[self] = WatchParts(self._session, self._writer)

    def watches(self, model: object) -> bool:
        """Whether this is the watch of that model."""
        return self._session is not None and self._session.watches(model)

    def flush(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> bool:
        """Wait until everything recorded so far is safe on disk; False if that took too long."""
        if self._is_off() or self._drain is None or self._writer is None:
            return True
        is_settled = settle_traces(self, timeout_s) and self._drain.wait(timeout_s)
        return is_settled and self._writer.flush(timeout_s)

    def close(self, reason: str = "finished", timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Remove all hooks, write what is left, and end the run. Safe to call twice.

        Waits at most `timeout_s` (4 at the end of the process) for the drain and twice that for the
        sinks; what is lost then is counted. If it is interrupted, call it or `unwatch` again.
        """
        self._closed = True
        _PARTS.pop(self, None)
        if self._drain is None or self._feeds is None or os.getpid() != self._pid:
            return
        assert self._session is not None
        with self._lock:
            if self._is_shut:
                return
            self._reason = self._reason or reason
            self._feeds.limit_s = timeout_s
            try:
                self._session.close()
                self._tell_cost()
            finally:
                self._drain.close(self._reason, timeout_s)
            give_back()
            self._is_shut = True
        _OPEN.discard(self)
        atexit.unregister(self._at_exit)

    def forked(self) -> None:
        """Record nothing any more: the process is a fork of the one that records."""
        if self._session is not None:
            self._session.forked()

    def _at_exit(self) -> None:
        self.close(_endings.of_process(), _EXIT_TIMEOUT_S)

    def _is_off(self) -> bool:
        return self._closed or os.getpid() != self._pid

    def _warn_later(self, text: str) -> None:
        """Warn from the drain: this is called in hooks."""
        if self._drain is not None and self._voice.is_new(text):
            self._drain.put(DeferredWarning(text, users_place()))

    def _refuse(self, text: str) -> None:
        assert self._session is not None
        if self._session.plan.strict:
            raise SondeError(text)
        self._voice.warn(text)

    def _tell_cost(self) -> None:
        """What the recording has cost the training thread so far, for `run.info`."""
        assert self._session is not None
        assert self._writer is not None
        costs = self._session.costs(time.monotonic() - self._began_s, self._budget)
        self._writer.set_info(**costs)
