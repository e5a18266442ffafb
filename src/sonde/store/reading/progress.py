"""How far a run has come: told from the names and footers of its segments, without reading rows."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from sonde.store import attempts
from sonde.store.attempts import Status
from sonde.store.segments import Segment
from sonde.store.snapshots import Snapshot
from sonde.store.sql import counting


@dataclass(frozen=True, slots=True)
class Progress:
    """What there is of a run at a moment.

    `version` changes whenever any answer about the run may change. `epoch` changes when rows that
    were there may have been replaced; while it stays the same, rows are only ever added.
    """

    status: Status
    last_step: int | None
    last_seen_ns: int | None
    version: str
    epoch: str
    segments: tuple[Segment, ...]

    def marks(self, *tables: str) -> dict[str, int]:
        """For each attempt and table the last segment: what to remember for `first_new_step`."""
        found: dict[str, int] = {}
        for s in self.segments:
            if s.table in tables:
                key = f"{s.table}.{s.name.attempt.stem}"
                found[key] = max(found.get(key, -1), s.name.last)
        return found

    def first_new_step(self, marks: Mapping[str, int]) -> int | None:
        """The lowest step of any row that came after `marks` were taken; None if none came.

        Rows of a step may come late (another rank, a number logged for an earlier step), so this
        can be any step.
        """
        tables = {key.partition(".")[0] for key in marks}
        steps = [
            s.steps[0]
            for s in self.segments
            if s.table in tables
            and s.steps is not None
            and s.name.last > marks.get(f"{s.table}.{s.name.attempt.stem}", -1)
        ]
        return min(steps, default=None)


def of_snapshot(snapshot: Snapshot) -> Progress:
    """The progress that a snapshot shows."""
    segments = tuple(s for table in snapshot.segments.values() for s in table)
    status = attempts.run_status(snapshot.attempts)
    last = max((s.steps[1] for s in segments if s.steps is not None), default=None)
    seen = [record.heartbeat_ns for record in snapshot.attempts.values() if record.heartbeat_ns]
    ends = sorted(counting.replaced_from(snapshot).items())
    epoch = f"{zlib.crc32(repr((ends, snapshot.damages)).encode('utf-8', 'replace')):08x}"
    paths = sorted(s.path for s in segments)
    state = repr((status, paths, epoch)).encode("utf-8", "replace")
    return Progress(
        status=status,
        last_step=last,
        last_seen_ns=max(seen, default=None),
        version=f"{zlib.crc32(state):08x}-{len(paths)}",
        epoch=epoch,
        segments=segments,
    )
