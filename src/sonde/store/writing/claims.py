"""Claims: which process writes a rank of a run. At most one at a time.

A claim is the file `ranks/.claim-r00000.a0003`. It gets its name by `link()`, which fails if the
name is taken, so exactly one process gets each attempt number. A process claims the next number
only when the holder of the last one writes no more. A holder on this machine is looked up by its
process id; one elsewhere must have been silent for `STALE_S`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sonde._errors import RunError
from sonde._signals import IGNORING_OS, pass_on
from sonde.store import attempts, documents
from sonde.store.attempts import STALE_S, AttemptReader, AttemptRecord
from sonde.store.documents import DamagedError, Document
from sonde.store.files import NO_HARD_LINKS, Files, publish, temporary_name, write_new
from sonde.store.segments import Attempt, rank_folder

_LOG: Final = logging.getLogger("sonde")
_MARK: Final = re.compile(r"\.claim-(r\d{5,9})\.a(\d{4,9})")
_POLL_S: Final = 0.5
_TRIES: Final = 50

_OPEN: Final[set[tuple[int, str, str]]] = set()
"""Process id, run id and stem of each attempt that a writer of this process has open."""

_sleep = time.sleep


class RankTakenError(RunError):
    """Another writer writes this rank of the run now."""


@dataclass(frozen=True, slots=True)
class _Holder:
    """The process behind an attempt number, and when it last gave a sign of life."""

    record: AttemptRecord
    has_begun: bool
    sign_ns: int


def claim(files: Files, root: str, rank: int, facts: Mapping[str, object]) -> Attempt:
    """Begin a new attempt of the rank. `facts` go into its start file.

    Raises `RankTakenError` if a writer is at work there, `RunError` if the rank has been written
    and `facts` name no `resume_from_step`, and OSError if the disk does not take the files.
    """
    folder = os.path.join(root, attempts.FOLDER)
    run_id, resume = str(facts["run_id"]), facts["resume_from_step"] is not None
    for _ in range(_TRIES):
        holders = _holders(root, rank)
        _refuse_live(files, root, rank, run_id, holders, resume=resume)
        if not resume and any(holder.has_begun for holder in holders.values()):
            raise RunError(
                f"There is already a run of rank {rank} in `{root}`. "
                "Choose another `name`, or continue that run with `resume=True`."
            )
        attempt = Attempt(rank, max(holders, default=-1) + 1, os.urandom(2).hex())
        start = attempts.start_of(attempt, **facts)
        if _take(files, folder, attempt, documents.dump(start)):
            publish(files, folder, f"{attempt.stem}.json", documents.dump(start))
            _OPEN.add((os.getpid(), run_id, attempt.stem))
            return attempt
    raise RankTakenError(_taken(root, rank, "another process", resume=resume))


def release(run_id: str, attempt: Attempt) -> None:
    """This process writes the attempt no more."""
    _OPEN.discard((os.getpid(), run_id, attempt.stem))


def _take(files: Files, folder: str, attempt: Attempt, data: bytes) -> bool:
    """Claim the attempt's number; false if another process has it."""
    name = f".claim-{rank_folder(attempt.rank)}.a{attempt.number:04d}"
    temporary, mark = temporary_name(folder, name), os.path.join(folder, name)
    try:
        write_new(files, temporary, data)
        files.link(temporary, mark)
    except FileExistsError:
        return _read(mark) == data  # a repeated request on a network mount: it was ours
    except OSError as error:
        pass_on(error)
        if _read(mark) == data:
            return True
        if error.errno not in NO_HARD_LINKS:
            raise
        with contextlib.suppress(FileExistsError):
            write_new(files, mark, data)
        return _read(mark) == data
    finally:
        with IGNORING_OS:
            files.unlink(temporary)
    return True


def _read(path: str) -> bytes | None:
    try:
        return documents.read_regular(path, limit_bytes=documents.MAX_BYTES)
    except (OSError, DamagedError) as error:
        pass_on(error)
        return None


def _holders(root: str, rank: int) -> dict[int, _Holder]:
    """Who has, or had, which attempt number of the rank."""
    folder = os.path.join(root, attempts.FOLDER)
    found: dict[int, _Holder] = {}
    for number in _marked(folder, rank):
        mark = os.path.join(folder, f".claim-{rank_folder(rank)}.a{number:04d}")
        start = _start_in(mark)
        token = start.get("token")
        attempt = Attempt(rank, number, token if isinstance(token, str) else "")
        found[number] = _Holder(
            AttemptRecord(attempt, start), has_begun=False, sign_ns=_modified_ns(mark)
        )
    for attempt, record in AttemptReader(root, rank).read()[0].items():
        stem = os.path.join(folder, attempt.stem)
        sign_ns = max(_modified_ns(f"{stem}.json"), _modified_ns(f"{stem}.hb.json"))
        found[attempt.number] = _Holder(record, has_begun=True, sign_ns=sign_ns)
    return dict(sorted(found.items()))


def _marked(folder: str, rank: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        parsed = [_MARK.fullmatch(name) for name in os.listdir(folder)]
        return [int(m[2]) for m in parsed if m and m[1] == rank_folder(rank)]
    return []


def _start_in(mark: str) -> Document:
    try:
        return documents.load(mark)
    except (OSError, DamagedError) as error:
        pass_on(error)
        return {}  # on its way, or made by an older Sonde


def _refuse_live(
    files: Files,
    root: str,
    rank: int,
    run_id: str,
    holders: Mapping[int, _Holder],
    *,
    resume: bool,
) -> None:
    """Raise `RankTakenError` if one of the holders still writes.

    Each was known to write no more when the next one claimed its number, or can be looked up; so
    only the last one is worth waiting for.
    """
    for number, holder in holders.items():
        if (os.getpid(), run_id, holder.record.attempt.stem) in _OPEN:
            raise RunError(
                f"This process is still writing rank {rank} of `{root}`. Close that watch first."
            )
        alive = _is_alive(holder.record)
        if alive is None and number == max(holders):
            alive = _goes_on(files, root, rank, number, holder, patient=resume)
        if alive:
            who = _named(holder.record.start)
            raise RankTakenError(_taken(root, rank, who, resume=resume))


def _is_alive(record: AttemptRecord) -> bool | None:
    """Whether a process other than this one still writes; None if that cannot be looked up."""
    if record.end:
        return False
    alive = record.is_process_alive()
    return False if alive and record.start.get("pid") == os.getpid() else alive


def _goes_on(
    files: Files, root: str, rank: int, number: int, holder: _Holder, *, patient: bool
) -> bool:
    """Whether a process that cannot be looked up gives signs of life, by the file system's clock.

    Who is `patient` waits for the next one: its last may be young because it has just died.
    """
    silent_s = (_now_ns(files, os.path.join(root, attempts.FOLDER)) - holder.sign_ns) / 1e9
    if silent_s >= STALE_S or not patient:
        return silent_s < STALE_S
    wait_s = STALE_S - max(silent_s, 0.0)
    who = _named(holder.record.start)
    _LOG.warning("Waiting up to %.0f s to see whether %s still writes `%s`.", wait_s, who, root)
    deadline_s = time.monotonic() + wait_s
    while (rest_s := deadline_s - time.monotonic()) > 0:
        _sleep(min(_POLL_S, rest_s))
        now = _holders(root, rank).get(number)
        if now is None or now.record.end:
            return False
        if now.sign_ns != holder.sign_ns:
            return True
    return False


def _now_ns(files: Files, folder: str) -> int:
    """The time of day as the file system has it, which may be another machine's."""
    probe = temporary_name(folder, "now")
    write_new(files, probe, b"")
    try:
        return os.lstat(probe).st_mtime_ns
    finally:
        with IGNORING_OS:
            files.unlink(probe)


def _modified_ns(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError as error:
        pass_on(error)
        return 0


def _named(start: Document) -> str:
    pid, host = start.get("pid"), start.get("host")
    return f"process {pid} on {host}" if isinstance(pid, int) else "another process"


def _taken(root: str, rank: int, who: str, *, resume: bool) -> str:
    if resume:
        return (
            f"`{root}` cannot be resumed: {who} is still writing rank {rank} of it. Close that "
            "watch or stop that process first. Processes that train together need ranks of their "
            "own: set RANK and WORLD_SIZE."
        )
    return (
        f"Rank {rank} of `{root}` is already written by {who}. Processes that train together need "
        "ranks of their own: start them with torchrun, or set RANK and WORLD_SIZE. Trainings that "
        "are independent need a `name` of their own."
    )
