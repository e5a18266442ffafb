"""The writer: takes records without ever making the training wait, and keeps them on disk.

    writer = Writer("runs/first", config={"lr": 3e-4})
    writer.sites(infos)
    writer.sketches(batch)          # returns at once, never raises
    writer.close("finished")

Records go into a queue that is bounded by bytes. A thread encodes and publishes them as segments,
so that each is durable within `flush_s` of being handed over. What cannot be kept is counted,
never
hidden: see `Writer.counts`, the heartbeat and the end file.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

from sonde import _endings
from sonde._errors import RunError
from sonde._signals import Gate, pass_on
from sonde.record import Event, GraphPart, NumberBatch, SiteInfo, SketchBatch
from sonde.store import attempts, home, locations
from sonde.store.files import Files, LocalFiles
from sonde.store.remote.upload import Uploader, UploadState
from sonde.store.row_builder import graph_rows, size_bytes
from sonde.store.segments import Attempt
from sonde.store.tensors import TracedValue
from sonde.store.writing import claims
from sonde.store.writing.inbox import FLUSH_BYTES, Inbox
from sonde.store.writing.publisher import Publisher, Taken
from sonde.store.writing.spooling import run_id_at

_FLUSH_AT: Final = 0.75
"""Share of `flush_s` after which a flush begins, so that it has ended when `flush_s` is over."""

_EXIT_TIMEOUT_S: Final = 4.0
_LIVES: Final = 2


@dataclass(frozen=True, slots=True)
class Counts:
    """Records so far: `handed == written + pending + sum(dropped.values())`."""

    handed: int
    written: int
    pending: int
    dropped: Mapping[str, int]
    errors: int


class _Flush:
    """A flush that was asked for."""

    __slots__ = ("gate", "is_kept")

    def __init__(self) -> None:
        self.gate = Gate()
        self.is_kept = False


class Writer:
    """Writes one attempt of one rank of a run. A sink: see `sonde.record.RecordSink`.

    Handing over never blocks, never raises and costs about a microsecond per batch. Arrays that
    were handed over belong to the writer: do not change them afterwards. In a forked child every
    method does nothing.
    """

    name = "run"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        world_size: int = 1,
        launch: str | None = None,
        config: Mapping[str, object] | None = None,
        upload_to: str | None = None,
        resume_from_step: int | None = None,
        flush_s: float = 2.0,
        heartbeat_s: float = 5.0,
        max_pending_bytes: int = 128 << 20,
        compact: bool = True,
        on_problem: Callable[[str], None] | None = None,
        files: Files | None = None,
    ) -> None:
        """Make the directory a run, or go on in the run that it is, and start the writing thread.

        Args:
            path: The run directory. Made if need be; must be new, empty, or a run.
            rank: Of this process, from 0.
            world_size: How many ranks write this run.
            launch: What all ranks that were started together are known by; another one after a
                restart.
            config: Kept in `run.json` by whoever comes first. What JSON cannot hold is kept as
            repr.
            upload_to: The URL in an object store to which the run is copied while it is written.
            resume_from_step: Required to go on in a run that this rank has written before: from
            this
                step on the new records replace the older ones at reading. 0 replaces all.
            flush_s: A record is durable within this time of being handed over.
            heartbeat_s: How often the writer says that it is alive.
            max_pending_bytes: Of records that wait for the disk. Beyond it the newest are dropped.
            compact: Whether to start a helper process now and then that compacts the segments.
            on_problem: Called from the writing thread with a sentence, once per kind of problem.
            files: The file system, for tests.

        Raises:
            RunError: The directory cannot be written, is not a run, or is one that must be resumed.
            RankTakenError: Another writer writes this rank of the run now.
        """
        _check_arguments(rank, world_size, flush_s, resume_from_step)
        self._files = files or LocalFiles()
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        run_id = None if upload_to is None else run_id_at(upload_to)
        about = locations.create(self._files, self.path, config or {}, run_id)
        self.run_id = str(about["run_id"])
        facts: dict[str, object] = {
            "run_id": self.run_id,
            "world_size": world_size,
            "launch": launch,
            "resume_from_step": resume_from_step,
        }
        self.attempt = _begin(self._files, self.path, rank, facts)
        self._pid = os.getpid()
        self._flush_s = flush_s
        self._heartbeat_s = heartbeat_s
        self._limit_bytes = max_pending_bytes
        self._inbox = Inbox(max_pending_bytes)
        self._flushes: deque[_Flush] = deque()
        self._is_off = False
        self._reason: str | None = None
        self._done = Gate()
        self._keeper = Publisher(
            files=self._files,
            root=self.path,
            run_id=self.run_id,
            attempt=self.attempt,
            resume_from_step=resume_from_step,
            compact=compact,
            on_problem=on_problem,
        )
        self._thread = threading.Thread(target=self._run, name="sonde-writer", daemon=True)
        self._thread.start()
        self._uploader: Uploader | None = None
        if upload_to is not None:
            self._uploader = Uploader(
                self.path, upload_to, rank=rank, tell=self.report, on_state=self._note_upload
            )
            self._note_upload(self._uploader.state)
            self._uploader.start()
        atexit.register(self._at_exit)

    # -- taking records: called by the training side --------------------------------------------

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """Declare sites; their ids are used by the batches that follow."""
        try:
            size = 200 * len(infos)
        except Exception as error:
            pass_on(error)
            size = 0  # the writing thread looks at it, counts it and says why
        self._take("sites", infos, size, 0)

    def sketches(self, batch: SketchBatch) -> None:
        """Take the sketches of a step."""
        try:
            size, records = size_bytes(batch), len(batch.ids)
        except Exception as error:
            pass_on(error)
            size, records = 0, 1
        self._take("sketches", batch, size, records)

    def numbers(self, batch: NumberBatch) -> None:
        """Take scalars and metrics of a step."""
        try:
            size, records = size_bytes(batch), len(batch.names)
        except Exception as error:
            pass_on(error)
            size, records = 0, 1
        self._take("numbers", batch, size, records)

    def event(self, event: Event) -> None:
        """Take an event."""
        self._take("events", event, 500, 1)

    def graph(self, part: GraphPart) -> None:
        """Take what was newly seen of the graph."""
        try:
            records = graph_rows(part)
        except Exception as error:
            pass_on(error)
            records = 1
        self._take("graph", part, 200 * records, records)

    def tensors(self, values: Sequence[TracedValue], *, wait_s: float = 0.0) -> bool:
        """Take whole values; false if there was no room for them, which is counted.

        Unlike all else that is taken, these may be worth waiting for: `wait_s` is how long, in a
        thread that can. Values that are larger than the queue are taken when nothing else waits.
        """
        try:
            size = min(sum(v.size_bytes for v in values), self._limit_bytes)
            records = sum(v.rows for v in values)
        except Exception as error:
            pass_on(error)
            size, records = 0, 1
        if wait_s > 0 and self._is_ours():
            self._inbox.wait_for_room(size, wait_s)
        return self._take("tensors", values, size, records)

    def set_info(self, **info: object) -> None:
        """Facts for the heartbeat and the end file, shown in `run.info`: cost and so on."""
        if self._is_ours():
            self._keeper.set_info(info)

    def report(self, code: str, message: str) -> None:
        """Note a problem, once per code: in the run, and to its owner."""
        if self._is_ours():
            self._keeper.report(code, message)

    # -- control --------------------------------------------------------------------------------

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Make everything handed over so far durable; false if that did not succeed in time."""
        if not self._is_ours():
            return False
        flush = _Flush()
        self._flushes.append(flush)
        self._inbox.bell.ring()
        if self._done.is_open or not flush.gate.wait(timeout_s):
            return False
        return flush.is_kept and not self._keeper.is_holding

    def close(self, reason: str = "finished", timeout_s: float = 10.0) -> None:
        """Flush, say how the run ended, and stop. Waits at most `timeout_s`. May be called again.

        A reason that begins with `failed` marks the run as failed.
        """
        if not self._is_ours():
            return
        if self._reason is None:
            self._reason = reason
        self._inbox.refuse("closed")
        self._inbox.bell.ring()
        if not self._done.wait(timeout_s):
            self._keeper.report(
                "close_timeout", f"The disk did not take the last records within {timeout_s:.0f} s."
            )
        if self._uploader is not None:
            self._uploader.close(timeout_s)
        atexit.unregister(self._at_exit)

    @property
    def counts(self) -> Counts:
        """What became of the records so far, the writer's own events among them."""
        if not self._is_ours():
            return Counts(0, 0, 0, {}, 0)
        kept = self._keeper
        handed, dropped = self._inbox.counts()
        handed += kept.own_records
        for cause, n in dict(kept.dropped).items():
            dropped[cause] = dropped.get(cause, 0) + n
        pending = handed - kept.written - sum(dropped.values())
        return Counts(handed, kept.written, pending, dropped, kept.errors)

    @property
    def problems(self) -> list[str]:
        """One sentence per kind of problem met so far."""
        return list(self._keeper.problems)

    @property
    def is_off(self) -> bool:
        """Whether the writer has switched itself off after failing twice."""
        return self._is_off

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self.close(_endings.of_error(error))

    # -- inside ---------------------------------------------------------------------------------

    def _note_upload(self, state: UploadState) -> None:
        self._keeper.set_info({"upload": asdict(state)})

    def _is_ours(self) -> bool:
        """False in a forked child: the thread, the files and the run belong to the parent."""
        return os.getpid() == self._pid

    def _take(self, what: str, item: object, size: int, records: int) -> bool:
        return self._is_ours() and self._inbox.put(what, item, size, records)

    def _run(self) -> None:
        """The thread. Started anew once if it fails, in place; after that the writer is off."""
        try:
            for _ in range(_LIVES):
                try:
                    self._keeper.warm_up()
                    self._work()
                except BaseException as error:
                    self._keeper.give_up(error)
                else:
                    return
            self._switch_off()
        finally:
            claims.release(self.run_id, self.attempt)
            self._done.open()
            self._end_flushes(kept=False)

    def _work(self) -> None:
        next_beat_s = 0.0
        while True:
            self._wait_until_due(next_beat_s)
            is_closing = self._reason is not None
            asked = len(self._flushes)
            taken = Taken.of(self._inbox.take())
            self._keeper.keep(taken, self._inbox.counts()[1].get("queue_full", 0))
            if is_closing:
                self._keeper.release()
            self._end_flushes(kept=True, n=asked)
            if is_closing and not self._inbox:
                self._keeper.end(self._reason or "", self.counts)
                return
            if time.monotonic() >= next_beat_s:
                self._keeper.beat(self.counts)
                next_beat_s = time.monotonic() + self._heartbeat_s

    def _end_flushes(self, *, kept: bool, n: int | None = None) -> None:
        """Let those go on who wait for a flush."""
        for _ in range(len(self._flushes) if n is None else n):
            flush = self._flushes.popleft()
            flush.is_kept = kept
            flush.gate.open()

    def _wait_until_due(self, next_beat_s: float) -> None:
        """Wait until a flush is due: by age, size, request, or for another try."""
        inbox = self._inbox
        while self._reason is None and not self._flushes:
            due_s = next_beat_s
            if inbox:
                if inbox.size_bytes > FLUSH_BYTES:
                    return
                due_s = min(due_s, inbox.oldest_s + _FLUSH_AT * self._flush_s)
            if self._keeper.is_holding:
                due_s = min(due_s, self._keeper.held_since_s + _FLUSH_AT * self._flush_s)
            rest_s = due_s - time.monotonic()
            if rest_s <= 0:
                return
            inbox.bell.wait(rest_s)

    def _switch_off(self) -> None:
        self._is_off = True
        self._inbox.refuse("failed" if self._reason is None else "closed")
        lost = self._inbox.take()
        self._keeper.lose("failed", sum(entry.records for entry in lost))
        self._keeper.abandon()
        self._end_flushes(kept=False)
        self._keeper.report("writer_off", "The writer failed twice and has switched itself off.")
        while self._reason is None:
            self._end_flushes(kept=False)
            self._inbox.bell.wait(1.0)
        self._keeper.end(self._reason, self.counts)

    def _at_exit(self) -> None:
        self.close(_endings.of_process(), _EXIT_TIMEOUT_S)


def _check_arguments(
    rank: int, world_size: int, flush_s: float, resume_from_step: int | None
) -> None:
    if not 0 <= rank < world_size:
        raise RunError(f"`rank` must lie in 0..world_size-1, got {rank} of {world_size}.")
    if not flush_s > 0:
        raise RunError(f"`flush_s` must be above 0 seconds, got {flush_s}.")
    if resume_from_step is not None and resume_from_step < 0:
        raise RunError(f"`resume_from_step` must be a step, 0 or more, got {resume_from_step}.")


def _begin(files: Files, root: str, rank: int, facts: Mapping[str, object]) -> Attempt:
    home.refuse_links(root, rank, "written")
    try:
        files.mkdir(os.path.join(root, attempts.FOLDER))
        return claims.claim(files, root, rank, facts)
    except OSError as error:
        pass_on(error)
        raise RunError(f"Cannot write to `{root}`: {error.strerror or error}.") from error
