"""The drain: a thread that turns full rows into batches and hands them to the sinks.

The training thread puts jobs into a short queue and never waits for it: when the drain cannot keep
up, a whole step is dropped, counted and shown. A sink that raises is switched off with a word about
it; the others go on.

While the drain works, the training thread may have to wait for the interpreter, and each time it
does it loses more than that. So the drain does the work of several steps in one go, and not just
when one ends: it rests first, where rows have room to wait in.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde._signals import Bell, Gate, pass_on
from sonde.capture.norms import Norms
from sonde.capture.voice import Place, say
from sonde.capture.window import NATIVE_PHASE, FilledRows, Window
from sonde.record import Event, GraphPart, NumberBatch, RecordSink, SiteInfo, SketchBatch, Sketches
from sonde.sketch import concatenate, cut, merge_groups

_LOG = logging.getLogger("sonde")

_REST_S: Final = 0.1
"""The longest rest: how old a record may get besides."""

_BREATH_S: Final = 1e-4
"""A pause after each window. A thread that computes in Python gives the interpreter to another only
after 5 ms; one that sleeps, at once: what training waits for is one window, not all that came."""

_MOST_LAYOUTS: Final = 512
"""Windows of a step of which the layout is kept."""

Number = Callable[[], float]
"""A number that may not have arrived from its device yet; calling it waits."""


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Rows of one window: some or all of the sketches of a step, in each phase of which step."""

    steps: Mapping[str, int]
    filled: FilledRows
    window: Window
    sites: Sequence[SiteInfo] = ()


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A step is complete in a phase: what is held for it goes out, or is dropped."""

    step: int
    phase: str
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class DeferredEvent:
    """An event that is told if a number, which may not have arrived yet, is not zero."""

    number: Number
    event: Event


@dataclass(frozen=True, slots=True)
class Numbers:
    """Scalars and metrics of a step; values that are callables, or one that gives all of them, are
    waited for here."""

    step: int
    phase: str
    names: Sequence[str]
    modules: Sequence[str | None]
    values: Sequence[float | Number] | Callable[[], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class DeferredWarning:
    """A warning. It is given here, because code of the user's may show it, or make it an error."""

    text: str
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class NewSink:
    """One more sink to feed from now on, or one in place of another; it is given the sites declared
    so far."""

    sink: RecordSink
    old: RecordSink | None = None


@dataclass(frozen=True, slots=True)
class _Barrier:
    reached: Gate = field(default_factory=Gate)


Job = (
    WindowRows
    | StepEnd
    | Numbers
    | DeferredEvent
    | Event
    | GraphPart
    | DeferredWarning
    | NewSink
    | _Barrier
)


class Drain:
    """Takes jobs from the training thread; feeds the sinks from its own.

    Without sinks, jobs wait until `start`. `after_step` is called in the drain's thread when a step
    has gone out. With `norms`, the norms of a step's gradients go out with it.
    """

    def __init__(
        self,
        sinks: Sequence[RecordSink] | None = None,
        *,
        capacity_bytes: int = 512 << 20,
        most_waiting: int = 100_000,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.after_step = after_step
        self.norms: Norms | None = None
        self._sinks: list[RecordSink] = []
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._capacity_bytes = capacity_bytes
        self._most_waiting = most_waiting
        self._lost = self._told_lost = 0
        self._lock = threading.Lock()
        self._given_bytes = 0
        self._done_bytes = 0
        self._held: dict[tuple[int, str], list[tuple[NDArray[np.int32], Sketches]]] = {}
        self._declared: list[SiteInfo] = []
        self._layouts: deque[_Layout] = deque(maxlen=_MOST_LAYOUTS)
        self._hurry = Bell()
        self._has_started = False
        self._drained = Gate()
        self._ended = Gate()
        self._reason: str | None = None
        if sinks is not None:
            self.start(sinks)

    def start(self, sinks: Sequence[RecordSink]) -> None:
        """Feed these sinks from now on, with the jobs that wait first."""
        self._sinks = list(sinks)
        self._has_started = True
        threading.Thread(target=self._run, name="sonde-drain", daemon=True).start()

    @property
    def has_room(self) -> bool:
        """Whether another window may be handed over now; when not, the step is to be dropped."""
        return self._given_bytes - self._done_bytes < self._capacity_bytes

    def put(
        self,
        job: WindowRows
        | StepEnd
        | Numbers
        | DeferredEvent
        | Event
        | GraphPart
        | DeferredWarning
        | NewSink,
    ) -> None:
        """Hand over a job. Never blocks. Ask `has_room` first for windows; the rest is small.

        Windows come from one thread at a time. Numbers that are too many are dropped and counted.
        """
        if isinstance(job, Numbers) and (self._reason or self.waiting >= self._most_waiting):
            self._lose(len(job.names))
            return
        self._jobs.put(job)  # first: an interrupt after it changes nothing that matters
        if isinstance(job, WindowRows):
            # Each counter is written by one thread only, so there is no lock to wait for.
            self._given_bytes += job.filled.size_bytes
        if isinstance(job, WindowRows) and not job.filled.can_wait:
            self._hurry.ring()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return self._jobs.qsize()

    @property
    def lost_since_close(self) -> int:
        """Numbers that came too late to be counted in the run."""
        self._lose_waiting()
        return self._lost - self._told_lost

    def replace(self, old: RecordSink, new: RecordSink) -> None:
        """Feed the new sink in place of the old one from now on."""
        self.put(NewSink(new, old))

    def wait(self, timeout_s: float) -> bool:
        """Wait until all that was put before has gone to the sinks."""
        if not self._has_started or self._ended.is_open:
            return False
        barrier = _Barrier()
        self._jobs.put(barrier)
        self._hurry.ring()
        return barrier.reached.wait(timeout_s)

    def close(self, reason: str, timeout_s: float) -> None:
        """Pass on what is left, close the sinks, end the thread.

        The thread closes the sinks: if the wait for it is interrupted, nothing is lost, and this
        can be called again. If it does not come to an end in time, they are closed here.
        """
        self._reason = self._reason or reason
        if not self._has_started:
            return
        self._jobs.put(None)
        self._hurry.ring()
        if self._drained.wait(timeout_s):
            self._ended.wait(2 * timeout_s)
        else:
            _LOG.warning("the drain did not finish within %.1f s; what it held is lost", timeout_s)
            self._lose_waiting()
            self._jobs.put(None)
            self._tell_lost()
            self._close_sinks()

    def _run(self) -> None:
        try:
            for job in self._coming():
                self._try(job)
            while not self._jobs.empty():  # events that the last jobs gave rise to
                if (left := self._jobs.get()) is not None:
                    self._try(left)
            for key in list(self._held):
                self._release(*key, dropped=False)
            self._tell_lost()
            self._drained.open()
            self._layouts.clear()
            self._declared.clear()
            self._close_sinks()
        finally:
            self._drained.open()
            self._ended.open()

    def _lose(self, numbers: int) -> None:
        with self._lock:
            self._lost += numbers

    def _lose_waiting(self) -> None:
        """Let go of the jobs that wait, and count their numbers."""
        while not self._jobs.empty():
            with contextlib.suppress(queue.Empty):
                job = self._jobs.get_nowait()
                if isinstance(job, Numbers):
                    self._lose(len(job.names))

    def _tell_lost(self) -> None:
        """Put into the run how many numbers were dropped since the last time."""
        with self._lock:
            lost, self._told_lost = self._lost - self._told_lost, self._lost
        if lost:
            text = "numbers came faster than they could be kept, or while the watch was closing"
            self.tell(Event("numbers_dropped", text, level="warning", count=lost))

    def _close_sinks(self) -> None:
        for sink in list(self._sinks):
            self._guard(sink, lambda s: s.close(self._reason or ""))
            self._forget(sink)

    def _try(self, job: Job) -> None:
        try:
            self._do(job)
        except Exception as error:
            _LOG.warning("a record was lost: %r", error, exc_info=True)
            self.tell(Event("record_lost", repr(error), level="error"))
        if isinstance(job, WindowRows):
            self._done_bytes += job.filled.size_bytes
            if 4 * (self._given_bytes - self._done_bytes) < self._capacity_bytes:
                time.sleep(_BREATH_S)

    def _coming(self) -> Iterator[Job]:
        """Jobs until the last: after the first that comes a rest, in which others join it."""
        job = self._jobs.get()
        while job is not None:
            self._hurry.wait(_REST_S)
            yield job
            while not self._jobs.empty():
                if (job := self._jobs.get()) is None:
                    return
                yield job
            job = self._jobs.get()

    def _do(self, job: Job) -> None:
        match job:
            case WindowRows():
                self._hold(job)
            case StepEnd():
                self._release(job.step, job.phase, dropped=job.dropped)
                self._tell_lost()
                self.after_step()
            case Numbers():
                batch = _batch_of(job)
                self._each(lambda s: s.numbers(batch))
            case DeferredEvent() | Event():
                self._tell_if(job)
            case GraphPart():
                self._each(lambda s: _tell_graph(s, job))
            case DeferredWarning():
                say(job.text, job.place)
            case NewSink():
                self._take_sink(job)
            case _Barrier():
                job.reached.open()

    def _tell_if(self, job: DeferredEvent | Event) -> None:
        """Tell all sinks of an event; of a deferred one, if it happened."""
        if isinstance(job, Event):
            self.tell(job)
        elif job.number():
            self.tell(job.event)

    def _take_sink(self, job: NewSink) -> None:
        """Use another sink, in place of the old one if there is one; tell it all sites."""
        self._sinks = [s for s in self._sinks if s is not job.old]
        self._sinks.append(job.sink)
        if self._declared:
            self._guard(job.sink, lambda s: s.sites(list(self._declared)))

    def _hold(self, part: WindowRows) -> None:
        if part.sites:
            self._declared.extend(part.sites)
            if self.norms is not None:
                self.norms.declare(part.sites)
            self._each(lambda s: s.sites(part.sites))
        layout = self._layout_of(part.window)
        for phase, ids, sketches in layout.assemble(part.filled):
            self._held.setdefault((part.steps[phase], phase), []).append((ids, sketches))

    def _layout_of(self, window: Window) -> _Layout:
        """The layout of a window: windows of a step follow each other as in the step before, so
        most of the time it is the first that is tried."""
        sign = _sign(window)
        for _ in range(len(self._layouts)):
            self._layouts.rotate(-1)
            if self._layouts[-1].sign == sign:
                return self._layouts[-1]
        layout = _Layout(window, sign)
        self._layouts.append(layout)
        return layout

    def _release(self, step: int, phase: str, *, dropped: bool) -> None:
        parts = self._held.pop((step, phase), None)
        if parts is None or dropped:
            return
        ids, sketches = parts[0] if len(parts) == 1 else _merge(parts)
        if len(ids):
            batch = SketchBatch(step, phase, ids, sketches)
            self._each(lambda s: s.sketches(batch))
            norms = None if self.norms is None else self.norms.of(batch)
            if norms is not None:
                self._each(lambda s: s.numbers(norms))

    def tell(self, event: Event) -> None:
        """Pass an event to the sinks now. For the drain's thread; others `put` it."""
        self._each(lambda s: s.event(event))

    def _each(self, act: Callable[[RecordSink], None]) -> None:
        for sink in list(self._sinks):
            self._guard(sink, act)

    def _guard(self, sink: RecordSink, act: Callable[[RecordSink], None]) -> None:
        try:
            act(sink)
        except Exception as error:
            pass_on(error)
            _LOG.warning("sink %s failed and is switched off: %r", sink.name, error)
            self._forget(sink)
            told = Event("sink_failed", repr(error), where=sink.name, level="error")
            self._each(lambda s: s.event(told))

    def _forget(self, sink: RecordSink) -> None:
        self._sinks = [s for s in self._sinks if s is not sink]


def _batch_of(job: Numbers) -> NumberBatch:
    """The numbers of a job; this may wait for a device."""
    if callable(job.values):
        values = job.values()
    else:
        found = [v() if callable(v) else v for v in job.values]
        values = np.array(found, dtype=np.float64)
    return NumberBatch(job.step, job.phase, job.names, job.modules, values)


def _tell_graph(sink: RecordSink, part: GraphPart) -> None:
    """Not every sink has a use for the graph."""
    take_graph = getattr(sink, "graph", None)
    if take_graph is not None:
        take_graph(part)


_Sign = tuple[object, ...]


class _Layout:
    """Whose rows a window has, and where: most of the time the same as in the step before.

    Runs while training runs: so without a loop in Python, which would keep it waiting.
    """

    def __init__(self, window: Window, sign: _Sign) -> None:
        pieces = [_piece(phase, touched) for phase, touched in window.touched.items()]
        pieces += [
            _Piece(group.phase, group.ids[sites], first + group.offsets[sites], None)
            for group, sites, first in window.groups
        ]
        if window.booked:
            pieces.append(_booked(window.booked))
        self.sign = sign
        self._pieces = pieces
        self._rows = np.concatenate([p.rows for p in pieces])
        ids = np.concatenate([p.ids for p in pieces])
        self._ids = ids if len(np.unique(ids)) == len(ids) else None
        if len({p.phase for p in pieces}) > 1 or any(p.groups is not None for p in pieces):
            self._ids = None

    def assemble(self, filled: FilledRows) -> list[tuple[str, NDArray[np.int32], Sketches]]:
        """Per phase, one sketch for each touched site: its only row, or the merge of its rows."""
        sketches = filled.sketches(self._rows)
        if self._ids is not None:  # as most of the time: nothing to move
            return [(self._pieces[0].phase, self._ids, sketches)]
        found, first = [], 0
        for piece in self._pieces:
            last = first + len(piece.rows)
            own = cut(sketches, first, last)
            first = last
            if piece.groups is not None:
                own = merge_groups(own, piece.groups, len(piece.ids))
            found.append((piece.phase, piece.ids, own))
        return found


def _sign(window: Window) -> _Sign:
    """What a layout depends on, to be compared. (A group keeps its sites.)"""
    groups = [(group, sites.tobytes(), first) for group, sites, first in window.groups]
    return window.booked, window.touched, groups


class _Piece(NamedTuple):
    """Sites with the rows they point to; `groups[i]` is the site of row i, if not the i-th."""

    phase: str
    ids: NDArray[np.int32]
    rows: NDArray[np.int64]
    groups: NDArray[np.int64] | None


def _booked(pairs: bytes) -> _Piece:
    ids, rows = np.frombuffer(pairs, dtype=np.int64).reshape(-1, 2).T
    sites, groups = np.unique(ids, return_inverse=True)
    if len(sites) == len(ids):
        return _Piece(NATIVE_PHASE, ids.astype(np.int32), rows, None)
    return _Piece(NATIVE_PHASE, sites.astype(np.int32), rows, groups)


def _piece(phase: str, touched: Sequence[tuple[int, list[int]]]) -> _Piece:
    n = len(touched)
    ids, parts = zip(*touched, strict=True)
    lengths = np.fromiter(map(len, parts), dtype=np.int64, count=n)
    rows = np.fromiter(chain.from_iterable(parts), dtype=np.int64, count=int(lengths.sum()))
    groups = None if (lengths == 1).all() else np.repeat(np.arange(n), lengths)
    return _Piece(phase, np.array(ids, dtype=np.int32), rows, groups)


def _merge(
    parts: Sequence[tuple[NDArray[np.int32], Sketches]],
) -> tuple[NDArray[np.int32], Sketches]:
    all_ids = np.concatenate([i for i, _ in parts])
    all_sketches = concatenate([s for _, s in parts])
    ids, groups = np.unique(all_ids, return_inverse=True)
    if len(ids) == len(all_ids):  # windows of one step, without a site in two of them
        return all_ids, all_sketches
    return ids, merge_groups(all_sketches, groups, len(ids))
