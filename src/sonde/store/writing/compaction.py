"""Compaction: many small segments become few large sorted ones, without a lock and without a gap.

Sequence numbers are cut into aligned blocks. A block whose segments are all there and sound becomes
one segment with the same rows; only when that one is durable and was read back are the others
removed. So ranges are always nested or disjoint, a reader needs no more than the rule that a
segment inside another is hidden, and a crash at any point leaves a run that reads the same. Two
compactors at once write the same bytes under the same name.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde._errors import RunError
from sonde.store import limits, locations, segments
from sonde.store.attempts import AttemptReader
from sonde.store.documents import DamagedError
from sonde.store.files import Files, LocalFiles, publish
from sonde.store.home import Home, refuse_links
from sonde.store.listing import Candidate, Damage, list_segments
from sonde.store.schemas import TABLES, Table
from sonde.store.segments import Attempt, Contents, Segment
from sonde.store.sql import soundness
from sonde.store.writing.compactor import BLOCK

LEVELS: Final = (BLOCK, 16 * BLOCK, 256 * BLOCK)
"""Lengths of blocks: the larger ones keep the number of files low in runs of days."""

_ROWS_PER_GROUP: Final = 16_384
# Sorted by (name, step) over the whole segment, so that a site lies in one group of each segment: a
# series is found in a third and its bins in a fifth of the time that groups cut at steps take. In
# groups of 50,000 rows a histogram takes 2.5 times, in groups of 6,000 half the time, and a
# heatmap 0.8 and 1.0 times (650,000 records, two cores, 2026-11).

_LIMITS_BYTES: Final = (128 << 20, 64 << 20, 64 << 20)
"""Segments that are larger together stay apart; a compactor needs about 8 times this in memory."""

_LEFT_OVER_S: Final = 3600.0
_RETRIES: Final = 50


@dataclass(slots=True)
class Report:
    """What a compaction has done. `damages` are segments that it could not use."""

    segments_before: int = 0
    segments_after: int = 0
    rows: int = 0
    removed: int = 0
    damages: list[Damage] = field(default_factory=list)


def compact(path: str, *, rank: int | None = None, files: Files | None = None) -> Report:
    """Compact what can be compacted in the run at `path`, of one rank or of all.

    Raises RunError if it is not a run and OSError if the disk does not take the new segments; what
    was there before is then still there.
    """
    try:
        about = locations.read_run_file(path)
    except (DamagedError, FileNotFoundError) as error:
        raise RunError(f"`{path}` cannot be compacted: `{locations.RUN_FILE}` {error}.") from error
    run_id = str(about.get("run_id"))
    refuse_links(path, rank, "compacted")
    home = Home(path, run_id)
    work = _Compaction(home, files or LocalFiles(), AttemptReader(path), Report())
    for table in TABLES:
        if table.compacted:
            for level, limit_bytes in zip(LEVELS, _LIMITS_BYTES, strict=True):
                work.compact(table, level, limit_bytes, rank)
            work.clean(table, rank)
    return work.report


@dataclass(frozen=True, slots=True)
class _Compaction:
    home: Home
    files: Files
    attempts: AttemptReader
    report: Report

    @property
    def root(self) -> str:
        return self.home.root

    @property
    def run_id(self) -> str:
        return self.home.run_id

    def compact(self, table: Table, level: int, limit_bytes: int, rank: int | None) -> None:
        for attempt, candidates in self._listed(table, rank).items():
            has_ended = self._has_ended(attempt)
            for block in _blocks(_outermost(candidates), level, has_ended=has_ended):
                for part in _of_size(block, level, limit_bytes):
                    # Another compactor may be at it too: whoever comes second finds nothing.
                    with contextlib.suppress(FileNotFoundError):
                        self._merge(table, attempt, part)

    def clean(self, table: Table, rank: int | None) -> None:
        """Remove what a crash has left: segments hidden by a sound one, and old temporaries."""
        for candidates in self._listed(table, rank).values():
            outer = _outermost(candidates)
            for candidate in candidates:
                cover = next((o for o in outer if _is_inside(candidate, o)), None)
                if cover is not None and self._is_sound(table, cover):
                    self._remove(candidate)
        for folder in table.folders:
            self._clean_temporaries(os.path.join(self.root, folder), rank)

    def _merge(self, table: Table, attempt: Attempt, block: Sequence[Candidate]) -> None:
        pieces: list[Segment] = []
        parts: list[pa.Table] = []
        for candidate in block:
            try:
                piece, rows = segments.load(candidate.path, candidate.name, table, self.run_id)
                soundness.check(rows, table, piece)  # what is odd must not spread to its neighbours
            except DamagedError as error:
                self._damaged(candidate, error)
                return
            pieces.append(piece)
            parts.append(rows)
        if sum(piece.rows for piece in pieces) > limits.SEGMENT_ROWS // 4:
            return
        contents = Contents(
            run_id=self.run_id,
            attempt=attempt,
            first=block[0].name.first,
            last=block[-1].name.last,
            resume_from_step=pieces[0].resume_from_step,
            repeats=any(piece.repeats for piece in pieces),
        )
        groups = _row_groups(table, parts)
        name, data = segments.encode(table, groups, contents, is_compacted=True)
        self._publish(table, attempt, name, data)
        for candidate in block:
            self._remove(candidate)
        self.report.segments_before += len(block)
        self.report.segments_after += 1
        self.report.rows += sum(piece.rows for piece in pieces)

    def _publish(self, table: Table, attempt: Attempt, name: str, data: bytes) -> None:
        folder = self.home.folder(str(table.compacted), segments.rank_folder(attempt.rank))
        self.files.mkdir(os.path.dirname(folder))
        self.files.mkdir(folder)
        unsafe = publish(self.files, folder, name, data)
        if unsafe is not None:
            raise unsafe  # it may not survive a power cut: its parts must stay
        parsed = segments.parse_name(name, attempt.rank)
        assert parsed is not None
        try:
            segments.check(os.path.join(folder, name), parsed, table, self.run_id)
        except DamagedError as error:
            raise OSError(f"`{name}` {error} after it was written") from error

    def _listed(self, table: Table, rank: int | None) -> dict[Attempt, list[Candidate]]:
        for _ in range(_RETRIES):
            with contextlib.suppress(FileNotFoundError):
                found = list_segments(self.root, table, [])
                return {a: c for a, c in found.items() if rank is None or a.rank == rank}
        return {}  # others are at work here: leave it to them

    def _has_ended(self, attempt: Attempt) -> bool:
        record = self.attempts.read()[0].get(attempt)
        return record is not None and record.is_over()

    def _is_sound(self, table: Table, candidate: Candidate) -> bool:
        try:
            segments.check(candidate.path, candidate.name, table, self.run_id)
        except DamagedError as error:
            self._damaged(candidate, error)
            return False
        except OSError:
            return False
        return True

    def _remove(self, candidate: Candidate) -> None:
        with contextlib.suppress(OSError):  # it is hidden; the next compaction tries again
            self.files.unlink(candidate.path)
            self.report.removed += 1

    def _damaged(self, candidate: Candidate, error: DamagedError) -> None:
        damage = Damage(os.path.relpath(candidate.path, self.root), str(error))
        if damage not in self.report.damages:
            self.report.damages.append(damage)

    def _clean_temporaries(self, folder: str, rank: int | None) -> None:
        oldest = time.time() - _LEFT_OVER_S
        for above, _, names in os.walk(folder):
            if rank is not None and os.path.basename(above) != segments.rank_folder(rank):
                continue
            for name in names:
                path = os.path.join(above, name)
                with contextlib.suppress(OSError):
                    if name.startswith(".tmp-") and os.lstat(path).st_mtime < oldest:
                        self.files.unlink(path)


def _outermost(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that lie inside no other, by their names alone."""
    outer: list[Candidate] = []
    for candidate in candidates:
        if not outer or candidate.name.last > outer[-1].name.last:
            outer.append(candidate)
    return outer


def _is_inside(inner: Candidate, outer: Candidate) -> bool:
    return (
        inner is not outer
        and outer.is_compacted
        and outer.name.first <= inner.name.first
        and inner.name.last <= outer.name.last
    )


def _blocks(
    candidates: Sequence[Candidate], level: int, *, has_ended: bool
) -> Iterator[list[Candidate]]:
    """Runs of segments that fill an aligned block, and are worth making into one."""
    last = max((c.name.last for c in candidates), default=-1)
    by_block: dict[int, list[Candidate]] = {}
    for c in candidates:
        if c.name.first // level == c.name.last // level:
            by_block.setdefault(c.name.first // level, []).append(c)
    for number, block in by_block.items():
        end = number * level + level - 1
        if has_ended:
            end = min(end, last)
        if _fills(block, number * level, end) and _is_worthwhile(block):
            yield block


def _of_size(block: list[Candidate], level: int, limit_bytes: int) -> Iterator[Sequence[Candidate]]:
    """The block if it is small enough; of the lowest level else those eighths that are."""
    if sum(c.stamp[0] for c in block) <= limit_bytes:
        yield block
    elif level == LEVELS[0]:
        for _, part in groupby(block, key=lambda c: c.name.first // (level // 8)):
            found = list(part)
            if len(found) > 1 and sum(c.stamp[0] for c in found) <= limit_bytes:
                yield found


def _fills(block: Sequence[Candidate], first: int, last: int) -> bool:
    expected = first
    for candidate in block:
        if candidate.name.first != expected:
            return False
        expected = candidate.name.last + 1
    return expected == last + 1


def _is_worthwhile(block: Sequence[Candidate]) -> bool:
    return len(block) > 1 or not block[0].is_compacted


def _row_groups(table: Table, parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """The rows of all parts, sorted and cut into groups of about the same size."""
    rows = pa.concat_tables(parts).unify_dictionaries()
    keys = [_sortable(rows[column]) for column in table.sort_by]
    order = np.lexsort(keys[::-1])
    starts = np.cumsum([0, *(part.num_rows for part in parts)])
    parts = [rows.slice(a, b - a) for a, b in pairwise(starts)]
    for first, last in pairwise(_cuts(keys[0][order])):
        wanted = order[first:last]
        yield _take(parts, starts, wanted)


def _cuts(names: NDArray[np.int64]) -> list[int]:
    """Where to cut sorted names: between two of them if possible."""
    _, counts = np.unique(names, return_counts=True)
    cuts, start = [0], 0
    for end in np.cumsum(counts).tolist():
        if end - cuts[-1] >= _ROWS_PER_GROUP:
            pieces = max(1, (end - start) // _ROWS_PER_GROUP)
            cuts += [start + (end - start) * (i + 1) // pieces for i in range(pieces)]
        start = end
    return [*cuts, len(names)] if cuts[-1] < len(names) else cuts


def _take(
    parts: Sequence[pa.Table], starts: NDArray[np.int64], wanted: NDArray[np.int64]
) -> pa.Table:
    """Rows by number. Part by part: taking lists out of many chunks at once is 5 times slower."""
    at = np.sort(wanted)
    edges = np.searchsorted(at, starts)
    taken = [
        part.take(pa.array(at[a:b] - start))
        for part, start, (a, b) in zip(parts, starts[:-1], pairwise(edges), strict=True)
        if b > a
    ]
    together = pa.concat_tables(taken).combine_chunks()
    return together.take(pa.array(np.searchsorted(at, wanted)))


def _sortable(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """Integers that sort like the column; null comes first."""
    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.to_numpy(), np.int64)
    encoded = column.combine_chunks()
    words = encoded.dictionary.to_pylist()
    place = np.empty(len(words) + 1, np.int64)
    place[-1] = -1
    place[np.array(sorted(range(len(words)), key=words.__getitem__), np.int64)] = np.arange(
        len(words)
    )
    codes: NDArray[np.int64] = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return place[codes]
