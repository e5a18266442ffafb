"""A snapshot: which segments of a run count now, each checked, and what is wrong with others.

Listing the live folders before the compacted ones is what makes it right while a writer and a
compactor
work: a row is in a live segment until a compacted one that holds it has its name. Whatever looks
like a hole may be a listing that raced with a compactor, so it is believed only when it is seen
again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from sonde._errors import RunError
from sonde.store import segments
from sonde.store.attempts import AttemptReader, AttemptRecord
from sonde.store.documents import DamagedError
from sonde.store.listing import Candidate, Damage, Stamp, list_segments
from sonde.store.locations import RUN_FILE
from sonde.store.remote.mirror import mirror_of
from sonde.store.schemas import TABLES, Table
from sonde.store.segments import Attempt, Segment

_RETAKES: Final = 50
_PAUSE_S: Final = 0.01
_CONFIRMATIONS: Final = 3
_CHECKERS: Final = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The sound segments that count, by table, and everything else there is to say."""

    segments: Mapping[str, tuple[Segment, ...]]
    attempts: Mapping[Attempt, AttemptRecord]
    damages: tuple[Damage, ...]

    def paths(self) -> tuple[str, ...]:
        return tuple(s.path for table in self.segments.values() for s in table)

    @property
    def has_vanished(self) -> bool:
        """Whether a segment is gone since."""
        return not all(os.path.exists(path) for path in self.paths())


class _UnreadableError(DamagedError):
    """The file could not be read this time: it is looked at again the next time."""


@dataclass(slots=True)
class _Findings:
    damages: list[Damage] = field(default_factory=list)
    holes: list[Damage] = field(default_factory=list)


class SnapshotTaker:
    """Takes snapshots of one run, checking each file once for as long as it stays the same."""

    def __init__(self, root: str, run_id: str | None, tables: Iterable[Table] = TABLES) -> None:
        self.root = root
        self._run_id = run_id
        self._tables = tuple(tables)
        self._attempts = AttemptReader(root, run_id=run_id)
        self._verdicts: dict[tuple[str, Stamp], Segment | DamagedError] = {}
        self._believed: frozenset[Damage] = frozenset()
        self._mirror = mirror_of(root)

    def take(self) -> Snapshot:
        """What is on disk now. Sees every segment that had its name when this was called.

        Of a run in an object store, the copy here is brought up to date first.
        """
        if self._mirror is not None:
            self._mirror.refresh()
        seen = 0
        for _ in range(_RETAKES):
            try:
                snapshot, holes = self._try()
            except FileNotFoundError:
                time.sleep(_PAUSE_S / 10)
                continue  # compacted away between listing and reading
            seen += 1
            if not holes - self._believed or seen >= _CONFIRMATIONS:
                self._believed = holes
                return snapshot
            time.sleep(_PAUSE_S)
        raise RunError(
            f"The files of `{self.root}` disappear while they are read. Is the run being deleted?"
        )

    def condemn(self, path: str, problem: str) -> None:
        """Take the segment for damaged for as long as its file stays the same."""
        for key in [key for key in self._verdicts if key[0] == path]:
            self._verdicts[key] = DamagedError(problem)

    def _try(self) -> tuple[Snapshot, frozenset[Damage]]:
        # Heartbeats first: every segment they speak of must then be found.
        attempts, problems = self._attempts.read()
        findings = _Findings([Damage(file, problem) for file, problem in problems.items()])
        if self._mirror is not None and self._mirror.problem:
            findings.damages.append(Damage(RUN_FILE, self._mirror.problem))
        chosen = {}
        fresh: dict[tuple[str, Stamp], Segment | DamagedError] = {}
        try:
            # Sites last: they are published before the rows that name them.
            for table in reversed(self._tables):
                candidates = list_segments(self.root, table, findings.damages)
                self._check_all(table, candidates, fresh)
                chosen[table.name] = self._choose(table, candidates, attempts, fresh, findings)
        except FileNotFoundError:
            self._verdicts.update(fresh)
            raise
        self._verdicts = {k: v for k, v in fresh.items() if not isinstance(v, _UnreadableError)}
        damages = tuple(sorted({*findings.damages, *findings.holes}))
        return Snapshot(chosen, attempts, damages), frozenset(findings.holes)

    def _check_all(
        self,
        table: Table,
        found: Mapping[Attempt, list[Candidate]],
        fresh: dict[tuple[str, Stamp], Segment | DamagedError],
    ) -> None:
        """Check the files that will count if they are sound, several at a time."""
        new = []
        for candidates in found.values():
            covered = -1
            for c in candidates:
                key = (c.path, c.stamp)
                if c.name.last > covered:
                    covered = c.name.last
                    if key in self._verdicts:
                        fresh[key] = self._verdicts[key]
                    else:
                        new.append(c)
        if len(new) < _CHECKERS:
            verdicts = [self._check(table, c) for c in new]
        else:
            with ThreadPoolExecutor(_CHECKERS) as pool:
                verdicts = list(pool.map(lambda c: self._check(table, c), new))
        fresh.update(((c.path, c.stamp), v) for c, v in zip(new, verdicts, strict=True))

    def _check(self, table: Table, candidate: Candidate) -> Segment | DamagedError:
        try:
            return segments.check(candidate.path, candidate.name, table, self._run_id)
        except DamagedError as error:
            return error
        except FileNotFoundError:
            raise
        except OSError as error:
            return _UnreadableError(f"cannot be read ({error.strerror or error})")

    def _choose(
        self,
        table: Table,
        found: Mapping[Attempt, list[Candidate]],
        attempts: Mapping[Attempt, AttemptRecord],
        fresh: dict[tuple[str, Stamp], Segment | DamagedError],
        findings: _Findings,
    ) -> tuple[Segment, ...]:
        chosen: list[Segment] = []
        for attempt in sorted({*found, *attempts}):
            covered: list[tuple[int, int]] = []
            explained: list[tuple[int, int]] = []
            end = -1
            for c in found.get(attempt, ()):
                if c.name.last <= end:
                    continue  # hidden: inside a sound one
                key = (c.path, c.stamp)
                if key not in fresh:
                    known = self._verdicts.get(key)
                    fresh[key] = known if known is not None else self._check(table, c)
                verdict = fresh[key]
                if isinstance(verdict, Segment) and c.name.first <= end:
                    verdict = DamagedError("overlaps another segment")
                if isinstance(verdict, DamagedError):
                    explained.append((c.name.first, c.name.last))
                    where = os.path.relpath(c.path, self.root)
                    findings.damages.append(Damage(where, str(verdict)))
                else:
                    chosen.append(verdict)
                    covered.append((c.name.first, c.name.last))
                    end = c.name.last
            known_last = attempts[attempt].last_seq(table.name) if attempt in attempts else -1
            _find_holes(table, attempt, covered, explained, known_last, findings)
        return tuple(chosen)


def _find_holes(
    table: Table,
    attempt: Attempt,
    covered: list[tuple[int, int]],
    explained: list[tuple[int, int]],
    known_last: int,
    findings: _Findings,
) -> None:
    """Note sequence numbers that must have been there and belong to no file that was found."""
    accounted = sorted([*covered, *explained])
    next_seq = 0
    for first, last in [*accounted, (known_last + 1, known_last)]:
        if first > next_seq:
            folder = f"{table.live}/{segments.rank_folder(attempt.rank)}"
            span = f"{next_seq}" if first == next_seq + 1 else f"{next_seq} to {first - 1}"
            stem = f"a{attempt.number:04d}-{attempt.token}"
            findings.holes.append(Damage(f"{folder}/{stem}", f"lacks segment {span}"))
        next_seq = max(next_seq, last + 1)
