"""Keeping: what the writing thread does with the records it has taken.

A `Publisher` belongs to one writer and is driven by its thread: it encodes, publishes, tries again
once, counts what is lost, beats, and starts the compactor. It knows nothing of queues and timing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeVar

import numpy as np

from sonde.record import Event, GraphPart, NumberBatch, SiteInfo, SketchBatch
from sonde.store import attempts, documents, segments
from sonde.store.files import Files, publish, replace
from sonde.store.home import Home, ReplacedError
from sonde.store.row_builder import RowBuilder, SegmentRows, graph_rows
from sonde.store.schemas import EVENTS, GRAPH, NUMBERS, SITES, SKETCHES, TABLES, TRACES, Table
from sonde.store.segments import Attempt
from sonde.store.tensors import PlacedValue, TensorFiles, TracedValue, groups
from sonde.store.writing.compactor import Compactor
from sonde.store.writing.streams import Stream

_BREATH_S: Final = 1e-4
_BATCHES_PER_BREATH: Final = 16
"""A pause after so many batches: a thread that computes gives up the interpreter only after 5 ms,
and training would wait for it."""

_MAX_PROBLEMS: Final = 50

T = TypeVar("T")
Timed = tuple[T, int]
"""Something, and the wall clock in ns when it was handed over."""


class TakenItem(NamedTuple):
    """Something that was handed over: which of the lists of `Taken` it belongs to, and when."""

    what: str
    item: object
    t_ns: int
    size_bytes: int
    records: int


@dataclass(slots=True)
class Taken:
    """Records that were handed over and not looked at yet, sorted by what they are."""

    sites: list[Timed[Sequence[SiteInfo]]] = field(default_factory=list)
    sketches: list[Timed[SketchBatch]] = field(default_factory=list)
    numbers: list[Timed[NumberBatch]] = field(default_factory=list)
    events: list[Timed[Event]] = field(default_factory=list)
    graph: list[Timed[GraphPart]] = field(default_factory=list)
    tensors: list[Timed[Sequence[TracedValue]]] = field(default_factory=list)
    records: int = 0

    @classmethod
    def of(cls, entries: Sequence[TakenItem]) -> Taken:
        made = cls()
        for entry in entries:
            getattr(made, entry.what).append((entry.item, entry.t_ns))
            made.records += entry.records
        return made


class HeartbeatCounts(Protocol):
    """The counts that go into heartbeats."""

    @property
    def handed(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def pending(self) -> int: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def errors(self) -> int: ...


class Publisher:
    """Puts records into segments. All methods but `set_info` and `report` are for one thread."""

    def __init__(
        self,
        *,
        files: Files,
        root: str,
        run_id: str,
        attempt: Attempt,
        resume_from_step: int | None,
        compact: bool,
        on_problem: Callable[[str], None] | None,
    ) -> None:
        self.written = 0
        self.own_records = 0
        """Events of the writer itself that were written."""
        self.errors = 0
        self.dropped: dict[str, int] = {}
        self.problems: list[str] = []
        self.held_since_s = 0.0
        self._files = files
        self._home = Home(root, run_id)
        self._attempt = attempt
        self._on_problem = on_problem
        self._builder = RowBuilder(attempt)
        self._streams = {
            table.name: Stream(
                table,
                files=files,
                home=self._home,
                attempt=attempt,
                resume_from_step=resume_from_step,
            )
            for table in TABLES
        }
        self._tensors = TensorFiles(files, self._home, attempt)
        self._unplaced: list[Timed[TracedValue]] = []
        self._undeclared: list[Timed[SiteInfo]] = []
        self._own_events: list[Timed[Event]] = []
        self._in_hand = 0
        self._last_step: int | None = None
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._info: dict[str, object] = {}
        self._compactor = Compactor(root, attempt.rank) if compact else None

    @property
    def is_holding(self) -> bool:
        """Whether something waits for another try."""
        waits = bool(self._undeclared) or bool(self._unplaced)
        return waits or any(s.is_holding for s in self._streams.values())

    def warm_up(self) -> None:
        """Load what the first encoding would load: 0.6 s that should not delay the first flush."""
        rows = RowBuilder(self._attempt).events([(Event("warm_up", ""), 0)])
        contents = segments.Contents("", self._attempt, 0, 0, None, repeats=False)
        segments.encode(EVENTS, [rows.data], contents)
        np.unique(np.zeros(1))

    def set_info(self, info: dict[str, object]) -> None:
        with self._lock:
            self._info.update(info)

    def report(self, code: str, message: str, *, level: str = "warning") -> None:
        """Note a problem: once per code as a sentence for the owner and as an event in the run."""
        with self._lock:
            if code in self._reported or len(self.problems) >= _MAX_PROBLEMS:
                return
            self._reported.add(code)
            self.problems.append(message)
            event = Event(code, message, level="error" if level == "error" else "warning")
            self._own_events.append((event, time.time_ns()))
        if self._on_problem is not None:
            try:
                self._on_problem(message)
            except Exception as error:
                self.problems.append(f"`on_problem` raised {type(error).__name__}: {error}")

    def keep(self, taken: Taken, queue_drops: int) -> None:
        """Publish records. What fails is held for one more try and then lost, and counted."""
        if queue_drops:
            self.report("queue_full", "The disk does not keep up: records were dropped.")
        self._in_hand = taken.records
        are_sites_kept = self._keep_sites(taken.sites)
        sketches = self._checked(taken.sketches)
        self._keep(
            SKETCHES, self._builder.sketches, sketches, len_of=_sketch_count, go=are_sites_kept
        )
        self._keep(NUMBERS, self._builder.numbers, taken.numbers, len_of=_number_count)
        self._keep(GRAPH, self._builder.graph, taken.graph, len_of=graph_rows)
        placed = self._place(taken.tensors)
        self._keep(TRACES, self._tensors.rows, placed, len_of=lambda p: p.value.rows)
        self._keep(EVENTS, self._builder.events, taken.events, len_of=lambda _: 1)
        self._keep_own_events()
        self._in_hand = 0
        if self._compactor is not None:
            self._compactor.consider({s.table.name: s.next_seq for s in self._streams.values()})

    def release(self) -> None:
        """Try once more to publish what is held."""
        self.keep(Taken(), 0)

    def give_up(self, error: BaseException) -> None:
        """The thread has failed: count what it had in hand, and start from there."""
        self.lose("failed", self._in_hand)
        self._in_hand = 0
        self.errors += 1
        self.report("writer_failed", f"The writer failed with {type(error).__name__}: {error}.")

    def abandon(self) -> None:
        """Let go of everything that waits for another try, and count it."""
        for stream in self._streams.values():
            self.lose("failed", stream.drop())
        self.lose("failed", sum(value.rows for value, _ in self._unplaced))
        self._unplaced = []
        self._undeclared = []

    def beat(self, tally: HeartbeatCounts) -> None:
        """Say that the writer is alive."""
        data = self._dump(tally)
        try:
            replace(self._files, self._ranks_folder(), f"{self._attempt.stem}.hb.json", data)
        except OSError as error:
            self._failed(error)

    def end(self, reason: str, tally: HeartbeatCounts) -> None:
        """Say that the writer has ended, and how."""
        data = self._dump(tally, reason=reason)
        for _ in range(2):
            try:
                publish(self._files, self._ranks_folder(), f"{self._attempt.stem}.end.json", data)
                break
            except OSError as error:
                self._failed(error)
        if self._compactor is not None:
            self._compactor.leave()
        self._builder = RowBuilder(self._attempt)  # what it knows of sites is large

    # -- inside ---------------------------------------------------------------------------------

    def _keep_sites(self, declared: Sequence[Timed[Sequence[SiteInfo]]]) -> bool:
        """Publish sites. They are few and everything names them, so they are never given up."""
        for infos, t_ns in declared:
            try:
                self._undeclared += [(info, t_ns) for info in infos]
            except Exception as error:
                self._refuse(error, 0)
        if not self._undeclared:
            return True
        rows = self._build(self._builder.sites, self._undeclared, lambda _: 0)
        if rows is None:
            self._undeclared = []
            return True
        stream = self._streams[SITES.name]
        try:
            stream.hold(rows)
            stream.release()
        except OSError as error:
            self._failed(error)
            stream.drop()
            self.held_since_s = time.monotonic()
            return False
        self._undeclared = []
        return True

    def _place(self, batches: Sequence[Timed[Sequence[TracedValue]]]) -> list[Timed[PlacedValue]]:
        """Put the arrays of traced values into files; those that failed wait for one more try."""
        again, self._unplaced = self._unplaced, []
        fresh = [(value, t_ns) for values, t_ns in batches for value in values]
        placed: list[Timed[PlacedValue]] = []
        for values, is_last_try in ((again, True), (fresh, False)):
            for group in groups(values):
                try:
                    found = self._tensors.write([value for value, _ in group])
                    placed += zip(found, [t_ns for _, t_ns in group], strict=True)
                except OSError as error:
                    self._failed(error)
                    rows = sum(value.rows for value, _ in group)
                    if is_last_try:
                        self.lose("disk", rows)
                    else:
                        self._in_hand -= rows
                        self._unplaced += group
                        self.held_since_s = time.monotonic()
                except Exception as error:
                    self._refuse(error, sum(value.rows for value, _ in group))
        return placed

    def _keep_own_events(self) -> None:
        """Publish what the writer has to say. It is little, and kept until the disk takes it."""
        with self._lock:
            own = list(self._own_events)
        stream = self._streams[EVENTS.name]
        if not own or stream.is_holding:
            return
        try:
            stream.hold(self._builder.events(own))
            n = stream.release()
        except OSError as error:
            self._failed(error)
            stream.drop()
            return
        self.own_records += n
        self.written += n
        with self._lock:
            del self._own_events[: len(own)]

    def _keep(
        self,
        table: Table,
        build: Callable[[Sequence[Timed[T]]], SegmentRows],
        items: Sequence[Timed[T]],
        *,
        len_of: Callable[[T], int],
        go: bool = True,
    ) -> None:
        stream = self._streams[table.name]
        if stream.is_holding and not (go and self._release(stream)):
            self.lose("disk", stream.drop())
        rows = self._build(build, items, len_of) if items else None
        if rows is None or rows.data.num_rows == 0:
            return
        stream.hold(rows)
        self._in_hand -= rows.data.num_rows
        if go:
            self._release(stream)
        if stream.is_holding:
            self.held_since_s = time.monotonic()
        if rows.last_step is not None:
            self._last_step = max(rows.last_step, self._last_step or rows.last_step)

    def _release(self, stream: Stream) -> bool:
        held = stream.held_records
        try:
            self.written += stream.release()
        except OSError as error:
            self._failed(error)
            if not stream.is_holding:  # may or may not be on disk: not counted as written
                self.lose("disk", held)
                return True
            return False
        return True

    def _build(
        self,
        build: Callable[[Sequence[Timed[T]]], SegmentRows],
        items: Sequence[Timed[T]],
        len_of: Callable[[T], int],
    ) -> SegmentRows | None:
        """Rows of all items; if one of them cannot be made into rows, of all others."""
        try:
            return build(items)
        except Exception:
            sound = [item for item in items if self._is_sound(build, item, len_of)]
            return build(sound) if sound else None

    def _is_sound(
        self,
        build: Callable[[Sequence[Timed[T]]], SegmentRows],
        item: Timed[T],
        len_of: Callable[[T], int],
    ) -> bool:
        try:
            build([item])
        except Exception as error:
            self._refuse(error, _at_least(len_of, item[0]))
            return False
        return True

    def _checked(self, batches: Sequence[Timed[SketchBatch]]) -> list[Timed[SketchBatch]]:
        sound = []
        for n, (batch, t_ns) in enumerate(batches):
            if n % _BATCHES_PER_BREATH == _BATCHES_PER_BREATH - 1:
                time.sleep(_BREATH_S)
            try:
                self._builder.check(batch)
                sound.append((batch, t_ns))
            except Exception as error:
                self._refuse(error, _at_least(_sketch_count, batch))
        return sound

    def _refuse(self, error: Exception, records: int) -> None:
        self.lose("invalid", records)
        self._in_hand -= records
        self.errors += 1
        self.report("invalid", f"Records were refused: {error}.", level="error")

    def lose(self, cause: str, records: int) -> None:
        """Count records that are lost."""
        if records:
            self.dropped[cause] = self.dropped.get(cause, 0) + records

    def _failed(self, error: OSError) -> None:
        self.errors += 1
        what = error.strerror or str(error)
        code = "run_replaced" if isinstance(error, ReplacedError) else "disk"
        self.report(
            code, f"Cannot write to the run: {what}. Training continues; lost records are counted."
        )

    def _ranks_folder(self) -> str:
        return self._home.folder(attempts.FOLDER)

    def _dump(self, tally: HeartbeatCounts, **more: object) -> bytes:
        state = {**self._state(tally), **more}
        with self._lock:
            info = dict(self._info)
        try:
            return documents.dump({**state, "info": info})
        except Exception as error:  # the owner's objects may do anything, or change meanwhile
            return documents.dump({**state, "info": {"error": f"{type(error).__name__}: {error}"}})

    def _state(self, tally: HeartbeatCounts) -> dict[str, object]:
        return {
            "run_id": self._home.run_id,
            **attempts.identity(self._attempt),
            "wall_ns": time.time_ns(),
            "monotonic_ns": time.monotonic_ns(),
            "last_seq": {s.table.name: s.next_seq - 1 for s in self._streams.values()},
            "step": self._last_step,
            "handed": tally.handed,
            "written": tally.written,
            "pending": tally.pending,
            "dropped": dict(tally.dropped),
            "errors": tally.errors + sum(s.soft_errors for s in self._streams.values()),
            "problems": list(self.problems),
        }


def _sketch_count(batch: SketchBatch) -> int:
    return len(batch.ids)


def _number_count(batch: NumberBatch) -> int:
    return len(batch.names)


def _at_least(len_of: Callable[[T], int], item: T) -> int:
    try:
        return len_of(item)
    except Exception:
        return 1  # as it was counted when it was handed over
