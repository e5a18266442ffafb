"""The drain: a thread that turns full rows into batches and hands them to the sinks.

The training thread puts jobs into a short queue and never waits for it: when the drain cannot keep
up, a whole step is dropped, counted and shown. A sink that raises is switched off with a word about
it; the others go on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sonde.capture.rows import Filled, Window
from sonde.record import Event, NumberBatch, Sink, SiteInfo, SketchBatch, Sketches
from sonde.sketch import concatenate, merge_groups, take

_LOG = logging.getLogger("sonde")

Number = Callable[[], float]
"""A number that may not have arrived from its device yet; calling it waits."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one window: some or all of a step's sketches in one phase."""

    step: int
    phase: str
    filled: Filled
    window: Window
    sites: Sequence[SiteInfo] = ()


@dataclass(frozen=True, slots=True)
class End:
    """A step is complete: everything held for it and before it can go out."""

    step: int
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """Scalars and metrics of a step; values that are callables are waited for here."""

    step: int
    phase: str
    names: Sequence[str]
    modules: Sequence[str | None]
    values: Sequence[float | Number]


@dataclass(frozen=True, slots=True)
class _Barrier:
    reached: threading.Event = field(default_factory=threading.Event)


Job = Part | End | Numbers | Event | _Barrier


class Drain:
    """Takes jobs from the training thread; feeds the sinks from its own."""

    def __init__(self, sinks: Sequence[Sink], *, capacity_bytes: int = 512 << 20) -> None:
        self._sinks = list(sinks)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._capacity_bytes = capacity_bytes
        self._waiting_bytes = 0
        self._held: dict[tuple[int, str], list[tuple[NDArray[np.int32], Sketches]]] = {}
        self._lock = threading.Lock()
        self._declared: list[SiteInfo] = []
        self._thread = threading.Thread(target=self._run, name="sonde-drain", daemon=True)
        self._thread.start()

    @property
    def has_room(self) -> bool:
        """Whether another window may be handed over now; when not, the step is to be dropped."""
        return self._waiting_bytes < self._capacity_bytes

    def put(self, job: Part | End | Numbers | Event) -> None:
        """Hand over a job. Never blocks. Ask `has_room` first for windows; the rest is small."""
        if isinstance(job, Part):
            with self._lock:
                self._waiting_bytes += job.filled.size_bytes
        self._jobs.put(job)

    def add_sink(self, sink: Sink) -> None:
        """Feed one more sink from now on; it is told the sites declared so far."""
        with self._lock:
            self._sinks.append(sink)
            if self._declared:
                self._guard(sink, lambda s: s.sites(list(self._declared)))

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was put before has gone to the sinks."""
        if not self._thread.is_alive():
            return False
        barrier = _Barrier()
        self._jobs.put(barrier)
        return barrier.reached.wait(timeout_s)

    def close(self, reason: str, timeout_s: float) -> None:
        """Pass on what is left, close the sinks, end the thread."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _LOG.warning("the drain did not finish within %.1f s; what it held is lost", timeout_s)
        for sink in list(self._sinks):
            self._guard(sink, lambda s: s.close(reason))

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                self._do(job)
            except Exception as error:
                _LOG.warning("a record was lost: %r", error, exc_info=True)
                lost = Event("record_lost", repr(error), level="error")
                self._each(lambda s, e=lost: s.event(e))  # type: ignore[misc]
            if isinstance(job, Part):
                with self._lock:
                    self._waiting_bytes -= job.filled.size_bytes
        self._release(dropped=-1)

    def _do(self, job: Job) -> None:
        match job:
            case Part():
                self._hold(job)
            case End():
                self._release(job.step if job.dropped else -1)
            case Numbers():
                values = [v() if callable(v) else v for v in job.values]
                batch = NumberBatch(
                    job.step, job.phase, job.names, job.modules, np.array(values, dtype=np.float64)
                )
                self._each(lambda s: s.numbers(batch))
            case Event():
                self._each(lambda s: s.event(job))
            case _Barrier():
                job.reached.set()

    def _hold(self, part: Part) -> None:
        if part.sites:
            with self._lock:
                self._declared.extend(part.sites)
            self._each(lambda s: s.sites(part.sites))
        for phase, touched in part.window.touched.items():
            ids, sketches = _assemble(part.filled, touched)
            self._held.setdefault((part.step, phase), []).append((ids, sketches))

    def _release(self, dropped: int) -> None:
        held, self._held = self._held, {}
        for (step, phase), parts in held.items():
            if step == dropped and phase == "train":
                continue
            ids, sketches = parts[0] if len(parts) == 1 else _merge(parts)
            if len(ids):
                batch = SketchBatch(step, phase, ids, sketches)
                self._each(lambda s, b=batch: s.sketches(b))  # type: ignore[misc]

    def _each(self, act: Callable[[Sink], None]) -> None:
        with self._lock:
            sinks = list(self._sinks)
        for sink in sinks:
            self._guard(sink, act)

    def _guard(self, sink: Sink, act: Callable[[Sink], None]) -> None:
        try:
            act(sink)
        except Exception as error:
            _LOG.warning("sink %s failed and is switched off: %r", sink.name, error)
            if sink in self._sinks:
                self._sinks.remove(sink)
            told = Event("sink_failed", repr(error), where=sink.name, level="error")
            for other in list(self._sinks):
                self._guard(other, lambda s: s.event(told))


def _assemble(
    filled: Filled, touched: Sequence[tuple[int, list[int]]]
) -> tuple[NDArray[np.int32], Sketches]:
    """One sketch per touched site: its only row, or the merge of the rows it points to."""
    ids = np.fromiter((i for i, _ in touched), dtype=np.int32, count=len(touched))
    lengths = np.fromiter((len(p) for _, p in touched), dtype=np.int64, count=len(touched))
    pointed = np.fromiter((r for _, p in touched for r in p), dtype=np.int64)
    rows, where = np.unique(pointed, return_inverse=True)
    sketches = filled.sketches(rows)
    alone = len(lengths) == 0 or bool((lengths == 1).all())
    if alone and len(np.unique(ids)) == len(ids):
        return ids, take(sketches, where)
    groups = np.repeat(np.arange(len(ids)), lengths)
    return _merge([(ids[groups], take(sketches, where)), (ids[lengths == 0], _nothing(lengths))])


def _nothing(lengths: NDArray[np.int64]) -> Sketches:
    """Empty sketches for the sites that were touched without a value."""
    n = int((lengths == 0).sum())
    return merge_groups(concatenate([]), np.zeros(0, np.int64), n)


def _merge(
    parts: Sequence[tuple[NDArray[np.int32], Sketches]],
) -> tuple[NDArray[np.int32], Sketches]:
    ids, groups = np.unique(np.concatenate([i for i, _ in parts]), return_inverse=True)
    return ids, merge_groups(concatenate([s for _, s in parts]), groups, len(ids))
