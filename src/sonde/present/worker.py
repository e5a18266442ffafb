"""A worker: reads runs and answers questions about them, one at a time, in a process of its own.

    python -m sonde.present.worker FOLDER [SOFT_LIMIT]

A run may be a stranger's, damaged or huge. Whatever reading it does to this process (memory, a
crash in a parser, a query that takes for ever), the server sees a worker that died, says so, and
starts another. A worker that holds more than `SOFT_LIMIT` bytes, or has run out of memory, says so
in its answer (`is_full`) and is replaced before it reaches a limit that would end it.

Requests come on standard input, answers leave on the original standard output: a length of four
bytes (little-endian), a JSON object, and for answers the bytes that its `size` promises.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
import warnings
from collections import OrderedDict
from typing import BinaryIO, Final

import duckdb
import pyarrow as pa

from sonde._errors import RunError, SondeError
from sonde.present.messages import ReplyHead, WorkerRequest
from sonde.store.limits import Limits
from sonde.store.reading.run import Run, open_run
from sonde.store.sql.queries import connect
from sonde.views import envelope
from sonde.views.answers import ANSWERS, ANSWERS_OF_SEVERAL
from sonde.views.questions import QuestionError, parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import NotFoundError, OpenedRun
from sonde.views.runs.run_list import ListedRun, RunList
from sonde.views.runs.several import SeveralRuns
from sonde.views.specs import RunState

MAX_ANSWER_BYTES: Final = 128 << 20
_OPEN_RUNS: Final = 4
_LIMITS: Final = Limits(memory_bytes=384 << 20, threads=2)
_DATA_BYTES: Final = 3 << 30
"""Memory that a worker may ask for: twice of what the runs of `benchmarks/views.py` make it."""

SOFT_LIMIT: Final = _DATA_BYTES * 3 // 4
"""What a worker may hold after an answer before another takes its place."""

_ADDRESS_BYTES: Final = 16 << 30
_THREADS: Final = 2


class OpenRuns:
    """The runs that a worker has open, the least recently used closed first."""

    def __init__(self, folder: str) -> None:
        self.shelf = RunList(folder)
        self._open: OrderedDict[str, OpenedRun] = OrderedDict()

    def subject(self, id: str) -> OpenedRun:
        """The run with that id, opened."""
        found = self.shelf.find(id)
        if found is None:
            self._close(id)
            raise NotFoundError("no_such_run", "There is no such run here (any more).")
        if found.problem is not None:
            raise RunError(f"The run `{found.name}` cannot be read: {found.problem}.")
        if id not in self._open:
            self._open[id] = OpenedRun(_opened(found), id)
        self._open.move_to_end(id)
        while len(self._open) > _OPEN_RUNS:
            self._close(next(iter(self._open)))
        return self._open[id]

    def _close(self, id: str) -> None:
        subject = self._open.pop(id, None)
        if subject is not None:
            subject.run.close()


def answer(desk: OpenRuns, request: WorkerRequest) -> tuple[ReplyHead, bytes]:
    """The answer to a request: its head and its body. Raises whatever goes wrong."""
    view = request["view"]
    if view == "runs":
        kind, body = envelope.pack(view, desk.shelf.table())
        return {"type": kind}, body
    if view == "stamps":
        found = {run.id: run for run in desk.shelf.runs()}
        asked = [str(one) for one in request["runs"]]
        stamps = {one: desk.shelf.stamp(found[one]) for one in asked if one in found}
        return {"list_version": desk.shelf.version(), "stamps": stamps}, b""
    if view == "warm_up":
        connect(desk.shelf.folder, limits=_LIMITS).close()  # loads what the first question needs
        return {}, b""
    if view == "progress":
        return {"state": envelope.to_plain(_state(desk, request["run"]), [], [])}, b""
    subject = desk.subject(request["run"])
    question: object = parse(
        ROUTES[view].question, [(str(k), str(v)) for k, v in request["question"]]
    )
    state = subject.state()
    if ROUTES[view].of_several:
        spec = ANSWERS_OF_SEVERAL[view](SeveralRuns(desk.subject), question)
    else:
        spec = ANSWERS[view](subject, question)
    kind, body = envelope.pack(view, spec, state)
    if len(body) > MAX_ANSWER_BYTES:
        raise MemoryError(f"an answer of {len(body)} bytes")
    return {"type": kind}, body


def refusal(error: BaseException) -> tuple[int, str, str]:
    """Status, code and sentence for an error. What is not meant for users stays here."""
    match error:
        case NotFoundError():
            return 404, error.code, str(error)
        case QuestionError():
            return 400, "bad_request", str(error)
        case RunError():
            return 422, "damaged", str(error)
        case SondeError():
            if isinstance(error.__cause__, duckdb.Error):
                return _query_refusal(error.__cause__)
            return 400, "bad_request", str(error)
        case MemoryError() | duckdb.OutOfMemoryException():
            return 413, "too_much", "This question needs too much memory. Ask for less at a time."
        case _:
            return 500, "failed", "This question could not be answered. The server's log says why."


def main(folder: str, source: BinaryIO, sink: BinaryIO, soft_limit: int = SOFT_LIMIT) -> None:
    """Answer requests until there are no more."""
    desk = OpenRuns(folder)
    while (request := _read(source)) is not None:
        try:
            head, body = answer(desk, request)
            head["status"] = 200
        except Exception as error:
            status, code, message = refusal(error)
            if status >= 500:
                traceback.print_exc()
            head, body = {"status": status, "code": code, "message": message}, b""
        head["is_full"] = head["status"] == 413 or _held_bytes() > soft_limit
        _write(sink, {**head, "size": len(body)}, body)


def _state(desk: OpenRuns, id: str) -> RunState:
    return desk.subject(id).state()


def _opened(found: ListedRun) -> Run:
    try:
        return open_run(found.path, frame="arrow", locked=True, limits=_LIMITS)
    except RunError as error:
        raise RunError(f"The run `{found.name}` cannot be read: {error}") from None


def _query_refusal(error: duckdb.Error) -> tuple[int, str, str]:
    if isinstance(error, duckdb.OutOfMemoryException):
        return refusal(MemoryError())
    print(f"query failed: {error}", file=sys.stderr)
    return 500, "failed", "A query of this run failed. The server's log says why."


def _read(source: BinaryIO) -> WorkerRequest | None:
    size = source.read(4)
    if len(size) < 4:
        return None
    found: WorkerRequest = json.loads(source.read(int.from_bytes(size, "little")))
    return found


def _write(sink: BinaryIO, head: ReplyHead, body: bytes) -> None:
    text = json.dumps(head).encode("ascii")
    sink.write(len(text).to_bytes(4, "little") + text)
    sink.write(body)
    sink.flush()


def _held_bytes() -> int:
    """Memory as the limit counts it; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _limit() -> None:
    """Keep a run from taking the machine's memory. Not everywhere is there a way to say so.

    Threads are few whatever the machine has: each takes memory before it does anything.
    """
    pa.set_cpu_count(_THREADS)
    pa.set_io_thread_count(_THREADS)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_DATA_BYTES, _DATA_BYTES))
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # what is damaged is told in answers
    _limit()
    # Graphs are hundreds of thousands of objects without a cycle: looking for one among them takes
    # a quarter of the time to read them (78,754 modules, 2026-11).
    gc.set_threshold(100_000, 20, 100)
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        main(sys.argv[1], sys.stdin.buffer, answers, *(int(n) for n in sys.argv[2:]))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(0)
