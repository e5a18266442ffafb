"""The ranks of a run: which write, which are behind, which died or never came."""

from __future__ import annotations

from typing import Final, TypedDict

from sonde.store import attempts
from sonde.store.attempts import AttemptRecord
from sonde.store.segments import Attempt
from sonde.store.snapshots import Snapshot

_SHOWN: Final = 8


class RankState(TypedDict):
    """A rank: the status of its last attempt, the last step known, and how many steps it is
    `behind` the furthest rank."""

    rank: int
    status: attempts.Status
    host: object
    pid: object
    step: int | None
    behind: int | None


class RankInfo(TypedDict):
    """The ranks of a run: how many there are, which recorded nothing, which died, and each."""

    world_size: int | None
    missing: list[int]
    crashed: list[int]
    states: list[RankState]


def describe(snapshot: Snapshot) -> RankInfo:
    """What is known of the ranks: plain values only."""
    last = attempts.last_of_ranks(snapshot.attempts)
    reached = _reached(snapshot)
    steps = {rank: _last_step(record, reached) for rank, record in last.items()}
    furthest = max((s for s in steps.values() if s is not None), default=None)
    states = [_state(record, steps[rank], furthest) for rank, record in sorted(last.items())]
    world = attempts.world_size(last)
    return {
        "world_size": world,
        "missing": [rank for rank in range(world or 0) if rank not in last],
        "crashed": [state["rank"] for state in states if state["status"] == "crashed"],
        "states": states,
    }


def problems(ranks: RankInfo) -> list[str]:
    """Sentences about ranks that died, never came or are behind; none when all is well."""
    found = []
    if ranks["crashed"]:
        found.append(f"{_named(ranks['crashed'])} died without closing the run")
    if ranks["missing"]:
        found.append(f"{_named(ranks['missing'])} recorded nothing")
    live = [state for state in ranks["states"] if state["status"] == "live"]
    late = {state["rank"]: behind for state in live if (behind := state["behind"] or 0) > 0}
    if late:
        found.append(f"{_named(list(late))} up to {max(late.values())} steps behind")
    return found


def _named(ranks: list[int]) -> str:
    shown = ", ".join(str(r) for r in ranks[:_SHOWN])
    more = f" and {len(ranks) - _SHOWN} more" if len(ranks) > _SHOWN else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _last_step(record: AttemptRecord, reached: dict[Attempt, int]) -> int | None:
    """By what is on disk, which the last heartbeat of a rank that died may not know."""
    found = [record.latest.get("step"), reached.get(record.attempt)]
    return max((n for n in found if isinstance(n, int)), default=None)


def _reached(snapshot: Snapshot) -> dict[Attempt, int]:
    """The highest step that each attempt has on disk."""
    found: dict[Attempt, int] = {}
    for segments in snapshot.segments.values():
        for segment in segments:
            if segment.steps is not None:
                attempt = segment.name.attempt
                found[attempt] = max(segment.steps[1], found.get(attempt, segment.steps[1]))
    return found


def _state(record: AttemptRecord, step: int | None, furthest: int | None) -> RankState:
    behind = None if step is None or furthest is None else furthest - step
    return {
        "rank": record.attempt.rank,
        "status": record.status(),
        "host": record.start.get("host"),
        "pid": record.start.get("pid"),
        "step": step,
        "behind": behind,
    }
