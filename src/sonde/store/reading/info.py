"""What is known about a run as a whole: the dictionary behind `run.info`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

from sonde.store import attempts
from sonde.store.attempts import AttemptRecord, Status
from sonde.store.reading import rank_states, replicas
from sonde.store.reading.rank_states import RankInfo
from sonde.store.reading.replicas import DriftInfo, RankDrift
from sonde.store.reading.stat_queries import ask
from sonde.store.schemas import NUMBERS, SKETCHES

if TYPE_CHECKING:
    from sonde.store.documents import Document
    from sonde.store.reading.run import Run
    from sonde.store.snapshots import Snapshot


class StepsInfo(TypedDict):
    """The first and the last step of a run, and of how many something is known."""

    first: int | None
    last: int | None
    recorded: int
    known: int


class EventInfo(TypedDict):
    """An event, with how often it happened."""

    code: str
    level: str
    place: str | None
    message: str
    count: int
    step: int | None


class DamageInfo(TypedDict):
    """A file that cannot be read, and why."""

    file: str
    problem: str


class AttemptInfo(TypedDict):
    """One process that wrote the run. What comes from its files is as they have it."""

    rank: int
    attempt: int
    status: Status
    reason: str | None
    resume_from_step: int | None
    host: object
    pid: object
    step: object
    handed: object
    written: object
    dropped: Document
    errors: object
    problems: list[str]


class RunInfo(TypedDict):
    """All that is known about a run: `run.info`. What comes from its files is as they have it.

    `Any`: what a user gave as `config`, and what a watch said of its costs.
    """

    name: str
    path: str
    run_id: object
    format_version: object
    created: object
    status: Status
    reason: str | None
    world_size: int | None
    ranks: RankInfo
    drift: list[DriftInfo]
    steps: StepsInfo
    records: int
    numbers: int
    size_bytes: int
    config: dict[str, Any]
    versions: dict[str, Any]
    command: list[str]
    git: dict[str, Any] | None
    host: dict[str, Any]
    watch: dict[str, Any]
    overhead: Any
    memory: Any
    dropped: dict[str, int]
    skipped: list[EventInfo]
    warnings: list[EventInfo]
    damaged: list[DamageInfo]
    attempts: list[AttemptInfo]


def describe(run: Run, snapshot: Snapshot, about: Document) -> RunInfo:
    """Plain values only, ready for JSON. Whatever a damaged file does not tell is None or empty."""
    last = {a.rank: record for a, record in sorted(snapshot.attempts.items())}
    first_rank = last[min(last)] if last else None
    events = _events(run)
    watch = _mapping(first_rank.latest.get("info")) if first_rank else {}
    ranks = rank_states.describe(snapshot)
    return {
        "name": run.name,
        "path": run.path,
        "run_id": about.get("run_id"),
        "format_version": about.get("format_version"),
        "created": about.get("created"),
        "status": attempts.run_status(snapshot.attempts),
        "reason": first_rank.reason if first_rank else None,
        "world_size": ranks["world_size"],
        "ranks": ranks,
        "drift": [_told(drift) for drift in _drift(run, snapshot)],
        "steps": _steps(run),
        "records": sum(s.rows for s in snapshot.segments[SKETCHES.name]),
        "numbers": sum(s.rows for s in snapshot.segments[NUMBERS.name]),
        "size_bytes": sum(s.size_bytes for table in snapshot.segments.values() for s in table),
        "config": _mapping(about.get("config")),
        "versions": _mapping(about.get("versions")),
        "command": [str(a) for a in _sequence(about.get("command"))],
        "git": _mapping(about.get("git")) or None,
        "host": _mapping(about.get("host")),
        "watch": watch,
        "overhead": watch.get("overhead"),
        "memory": watch.get("memory"),
        "dropped": _dropped(snapshot.attempts.values()),
        "skipped": [e for e in events if e["code"] == "skipped"],
        "warnings": [
            e for e in events if e["level"] in {"warning", "error"} and e["code"] != "skipped"
        ],
        "damaged": [{"file": d.file, "problem": d.problem} for d in run.damaged],
        "attempts": [_attempt(record) for record in snapshot.attempts.values()],
    }


def _steps(run: Run) -> StepsInfo:
    """The first and the last step of which anything is known, and of how many something is; and how
    many were recorded: those with sketches of more than the weights at the end, or all that are
    known where there is none."""
    rows = ask(
        run,
        "with steps as (select distinct step, phase <> 'final' as sketched from records "
        "where not replaced "
        "union all select distinct step, false from numbers where not replaced), "
        "known as (select step, bool_or(sketched) as sketched from steps group by step) "
        "select min(step) as first, max(step) as last, "
        "coalesce(nullif(count(*) filter (sketched), 0), count(*)) as recorded, "
        "count(*) as known from known",
    )
    found: StepsInfo = rows.to_pylist()[0]
    return found


def _events(run: Run) -> list[EventInfo]:
    """Events, those with the same code, place and message told once with how often."""
    rows = ask(
        run,
        "select code, level, place, message, sum(count)::bigint as count, "
        "min(step) filter (step >= 0) as step from events "
        "group by code, level, place, message order by min(t_ns), min(ordinal) limit 1000",
    )
    found: list[EventInfo] = rows.to_pylist()
    return found


def _dropped(records: Iterable[AttemptRecord]) -> dict[str, int]:
    """Records that were handed over and are not on disk, by cause."""
    total: dict[str, int] = {}
    for record in records:
        for cause, n in _mapping(record.latest.get("dropped")).items():
            if isinstance(n, int):
                total[str(cause)] = total.get(str(cause), 0) + n
    return total


def _drift(run: Run, snapshot: Snapshot) -> list[RankDrift]:
    """What ranks hold that they should not, by all of a sketch but its bins."""
    ranks = {s.name.attempt.rank for s in snapshot.segments[SKETCHES.name]}
    return replicas.find(run, with_bins=False) if len(ranks) > 1 else []


def _told(drift: RankDrift) -> DriftInfo:
    return {
        "what": drift.what,
        "name": drift.name,
        "ranks": list(drift.ranks),
        "step": drift.step,
        "steps": drift.steps,
        "message": drift.message,
    }


def _attempt(record: AttemptRecord) -> AttemptInfo:
    start, latest = record.start, record.latest
    return {
        "rank": record.attempt.rank,
        "attempt": record.attempt.number,
        "status": record.status(),
        "reason": record.reason,
        "resume_from_step": record.resume_from_step,
        "host": start.get("host"),
        "pid": start.get("pid"),
        "step": latest.get("step"),
        "handed": latest.get("handed"),
        "written": latest.get("written"),
        "dropped": _mapping(latest.get("dropped")),
        "errors": latest.get("errors"),
        "problems": [str(p) for p in _sequence(latest.get("problems"))],
    }


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _sequence(value: object) -> list[object]:
    return value if isinstance(value, list) else []
