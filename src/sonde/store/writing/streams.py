"""A stream: the segments of one table and attempt, published in order, densely numbered."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sonde.store import segments
from sonde.store.files import Files, UnsureError, publish
from sonde.store.home import Home
from sonde.store.row_builder import SegmentRows
from sonde.store.schemas import Table
from sonde.store.segments import Attempt, Contents


@dataclass(frozen=True, slots=True)
class _Held:
    """An encoded segment that has no name yet."""

    name: str
    data: bytes
    records: int


class Stream:
    """Publishes segments one after the other and holds the one that failed, for another try.

    A sequence number is used again unless it might already be taken on disk.
    """

    def __init__(
        self,
        table: Table,
        *,
        files: Files,
        home: Home,
        attempt: Attempt,
        resume_from_step: int | None,
    ) -> None:
        self.table = table
        self.next_seq = 0
        self.soft_errors = 0
        """Errors after a segment had its name."""
        self._files = files
        self._home = home
        self._attempt = attempt
        self._resume_from_step = resume_from_step
        self._held: _Held | None = None

    @property
    def held_records(self) -> int:
        return self._held.records if self._held else 0

    @property
    def is_holding(self) -> bool:
        return self._held is not None

    def hold(self, rows: SegmentRows) -> None:
        """Encode rows as the next segment, to be published by `release`."""
        contents = Contents(
            run_id=self._home.run_id,
            attempt=self._attempt,
            first=self.next_seq,
            last=self.next_seq,
            resume_from_step=self._resume_from_step,
            repeats=rows.repeats,
        )
        name, data = segments.encode(self.table, [rows.data], contents)
        self._held = _Held(name, data, rows.data.num_rows)

    def release(self) -> int:
        """Publish what is held and say how many records that was. Raises OSError and holds on."""
        held = self._held
        if held is None:
            return 0
        try:
            self._publish(held)
        except UnsureError:
            self._held = None
            self.next_seq += 1
            raise
        self._held = None
        self.next_seq += 1
        return held.records

    def drop(self) -> int:
        """Let go of what is held and say how many records that was."""
        lost = self.held_records
        self._held = None
        return lost

    def _publish(self, held: _Held) -> None:
        rank = segments.rank_folder(self._attempt.rank)
        folder = self._home.folder(self.table.live, rank)
        above = os.path.dirname(folder)
        try:
            soft = publish(self._files, folder, held.name, held.data)
        except FileNotFoundError:
            # Not there yet, or deleted under us. Only what lies inside the run is made anew.
            self._files.mkdir(above)
            self._files.mkdir(folder)
            soft = publish(self._files, folder, held.name, held.data)
        self.soft_errors += soft is not None
