"""Attempts: who wrote a run, when, whether they still do, and how it ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any, Final, Literal

from sonde.store import documents, limits, provenance
from sonde.store.documents import DamagedError, Document
from sonde.store.segments import Attempt

FOLDER: Final = "ranks"
STALE_S: Final = 30.0
"""A heartbeat older than this, of a process that cannot be looked at, counts as dead."""

_OVER_S: Final = 3600.0
_CLOCKS_DIFFER_NS: Final = 60 * 10**9
"""How far the clocks of two machines may be apart."""

Status = Literal["live", "finished", "failed", "crashed"]

FILE_NAME: Final = re.compile(r"r(\d{5,9})\.a(\d{4,9})-([0-9a-f]{4})(\.hb|\.end)?\.json")
_PARTS: Final = {None: "start", ".hb": "heartbeat", ".end": "end"}


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """What is known of an attempt. A part that is missing or damaged is an empty document."""

    attempt: Attempt
    start: Document = field(default_factory=dict)
    heartbeat: Document = field(default_factory=dict)
    end: Document = field(default_factory=dict)
    heartbeat_ns: int = 0
    """When the heartbeat was written, by the clock of the file system."""

    @property
    def resume_from_step(self) -> int | None:
        return _integer(self.start.get("resume_from_step"))

    @property
    def latest(self) -> Document:
        """The end if there is one, else the last heartbeat."""
        return self.end or self.heartbeat

    @property
    def reason(self) -> str | None:
        found = self.end.get("reason")
        return found if isinstance(found, str) else None

    def last_seq(self, table: str) -> int:
        """The last segment of the table that is known to have been published; -1 if none."""
        found = self.latest.get("last_seq")
        last = _integer(found.get(table)) if isinstance(found, dict) else None
        return -1 if last is None else last

    def status(self, now_ns: int | None = None) -> Status:
        """Whether it still writes, and if not, how it ended."""
        if self.end:
            return "failed" if (self.reason or "").startswith("failed") else "finished"
        alive = self.is_process_alive()
        if alive is not None:
            return "live" if alive else "crashed"
        return "live" if self._silent_s(now_ns) < STALE_S else "crashed"

    def is_over(self, now_ns: int | None = None) -> bool:
        """Whether it surely writes no more. Stricter than `status`, for those who act on it."""
        alive = None if self.end else self.is_process_alive()
        if self.end or alive is not None:
            return not alive
        return self._silent_s(now_ns) > _OVER_S

    def _silent_s(self, now_ns: int | None) -> float:
        """Seconds since it last gave a sign of life."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        wall = _integer(self.heartbeat.get("wall_ns") or self.start.get("wall_ns")) or 0
        return (now_ns - max(wall, self.heartbeat_ns)) / 1e9

    def is_process_alive(self) -> bool | None:
        """Whether its process lives; None when it runs where process ids say nothing here."""
        pid, space = _integer(self.start.get("pid")), self.start.get("process_space")
        here = provenance.process_space()
        if pid is None or pid <= 0 or not here or space != here:
            return None
        began = provenance.process_start(pid)
        if began == "":
            return None
        return began is not None and began == self.start.get("process_start")


def start_of(attempt: Attempt, **facts: object) -> Document:
    """What the start file of an attempt of this process says."""
    pid = os.getpid()
    return {
        **facts,
        **identity(attempt),
        "pid": pid,
        "process_start": provenance.process_start(pid),
        "process_space": provenance.process_space(),
        "host": provenance.hostname(),
        "wall_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
    }


def identity(attempt: Attempt) -> dict[str, object]:
    """The fields by which each of its files says whose it is."""
    return {"rank": attempt.rank, "attempt": attempt.number, "token": attempt.token}


class AttemptReader:
    """Reads the attempts of a run, or of one rank, again and again; opens only what changed."""

    def __init__(self, root: str, rank: int | None = None, run_id: str | None = None) -> None:
        self._root = root
        self._run_id = run_id
        self._rank = rank
        self._cache: dict[str, tuple[tuple[int, int, int], Document | DamagedError, int]] = {}

    def read(self) -> tuple[dict[Attempt, AttemptRecord], dict[str, str]]:
        """Attempts, and what is wrong with which file (relative to the run)."""
        parts: dict[Attempt, dict[str, Any]] = {}  # fields of `AttemptRecord`
        problems: dict[str, str] = {}
        held = 0
        for name, (attempt, part) in _listed(self._root, problems).items():
            if self._rank is not None and attempt.rank != self._rank:
                continue
            kept = parts.setdefault(attempt, {})
            try:
                if held > limits.RANKS_BYTES:
                    raise DamagedError("is not read: the files of ranks would take too much memory")
                document, written_ns, memory = self._load(name)
                held += memory
                _agree(document, attempt, self._run_id)
                kept[part] = document
            except FileNotFoundError:
                continue
            except (DamagedError, OSError) as error:
                problems[f"{FOLDER}/{name}"] = str(error)
                continue
            if part == "heartbeat":
                kept["heartbeat_ns"] = written_ns
        records = {a: AttemptRecord(a, **kept) for a, kept in sorted(parts.items())}
        return records, {**problems, **_overlaps(records)}

    def _load(self, name: str) -> tuple[Document, int, int]:
        """The document, when it was written, and about how much memory it takes."""
        path = os.path.join(self._root, FOLDER, name)
        status = os.lstat(path)
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        known = self._cache.get(name)
        if known is None or known[0] != stamp:
            found: Document | DamagedError
            memory = 0
            try:
                data = documents.read_regular(path, limit_bytes=limits.RANK_FILE_BYTES)
                memory = documents.memory_of(data)
                found = documents.parse(data)
            except DamagedError as error:
                found = error
            known = self._cache[name] = (stamp, found, memory)
        if isinstance(known[1], DamagedError):
            raise known[1]
        return known[1], status.st_mtime_ns, known[2]


def run_status(records: Mapping[Attempt, AttemptRecord]) -> Status:
    """The status of the whole run, from the last attempt of each rank."""
    last = last_of_ranks(records)
    found = {record.status() for record in last.values()}
    order: tuple[Status, ...] = ("live", "crashed", "failed", "finished")
    return next((status for status in order if status in found), "crashed")


def last_of_ranks(records: Mapping[Attempt, AttemptRecord]) -> dict[int, AttemptRecord]:
    """The last attempt of each rank. A run that was resumed with fewer ranks has that many, and
    those that still write: the lowest rank may have been started alone."""
    last = {a.rank: record for a, record in sorted(records.items())}
    world = world_size(last)
    if world is None:
        return last
    return {r: record for r, record in last.items() if r < world or record.status() == "live"}


def world_size(last: Mapping[int, AttemptRecord]) -> int | None:
    """How many ranks there are, as the lowest one says."""
    for _, record in sorted(last.items()):
        found = _integer(record.start.get("world_size"))
        if found is not None and found > 0:
            return found
    return None


def _listed(root: str, problems: dict[str, str]) -> dict[str, tuple[Attempt, str]]:
    """The files of attempts by name; what cannot be listed goes to `problems`."""
    try:
        listed = os.listdir(os.path.join(root, FOLDER))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        problems[FOLDER] = f"cannot be listed ({error.strerror or error})"
        return {}
    found: dict[str, tuple[Attempt, str]] = {}
    for name in sorted(listed):
        if len(found) >= limits.RANK_FILES:
            problems[FOLDER] = f"has more than {limits.RANK_FILES} files; the rest is not read"
            break
        match = FILE_NAME.fullmatch(name)
        if match:
            attempt = Attempt(int(match[1]), int(match[2]), match[3])
            found[name] = (attempt, _PARTS[match[4]])
    return found


def _overlaps(records: Mapping[Attempt, AttemptRecord]) -> dict[str, str]:
    """Attempts that began while an earlier one of the same rank was still writing."""
    found = {}
    for rank, several in groupby(records.values(), key=lambda record: record.attempt.rank):
        for earlier, later in combinations(several, 2):
            if not _wrote_after(earlier, later):
                continue
            resume = later.resume_from_step
            counts = (
                "both count" if resume is None else f"from step {resume} on only this one counts"
            )
            found[f"{FOLDER}/{later.attempt.stem}.json"] = (
                f"was written at the same time as attempt {earlier.attempt.number} of rank {rank}; "
                f"{counts}"
            )
    return found


def _wrote_after(earlier: AttemptRecord, later: AttemptRecord) -> bool:
    """Whether the earlier attempt gave a sign of life after the later one had begun."""
    space = earlier.start.get("process_space")
    is_same_clock = bool(space) and space == later.start.get("process_space")
    clock = "monotonic_ns" if is_same_clock else "wall_ns"
    began = _integer(later.start.get(clock))
    last = _integer(earlier.latest.get(clock))
    if began is None or last is None:
        return False
    return last - began > (0 if is_same_clock else _CLOCKS_DIFFER_NS)


def _agree(document: Document, attempt: Attempt, run_id: str | None) -> None:
    if run_id is not None and document.get("run_id", run_id) != run_id:
        raise DamagedError("belongs to another run")
    said = (document.get("rank"), document.get("attempt"), document.get("token"))
    if said != (attempt.rank, attempt.number, attempt.token):
        raise DamagedError("names another attempt in its contents")


def _integer(value: object) -> int | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < 1 << 63 else None
