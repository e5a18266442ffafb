"""Limits: what reading a run may take, per file, per run and per question.

A run may be a stranger's, and a small file can be made to grow without end when it is read. What a
writer of ours makes stays far below every one of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SEGMENT_BYTES: Final = 1 << 30
"""Of a segment. Compaction makes none over 128 MiB."""

SEGMENT_ROWS: Final = 64_000_000
"""Of a segment; compaction leaves off at a quarter of it."""

GROUP_BYTES: Final = 1 << 30
"""Of a row group, decoded. One of 16,384 sketches with every bin in use has 340 MB."""

SEGMENT_COLUMNS: Final = 1000
SEGMENT_GROUPS: Final = 100_000

ABOUT_BYTES: Final = 16 << 20
"""Of `run.json`."""

RANK_FILE_BYTES: Final = 1 << 20
"""Of one file in `ranks/`. A start has 1 kB, a heartbeat a few."""

RANK_FILES: Final = 200_000
RANKS_BYTES: Final = 1 << 30
"""Of memory that all files in `ranks/` take together: those of 20,000 ranks."""

DOCUMENT_ITEMS: Final = 200_000
"""Lists, objects and values in a JSON file: each takes up to a hundred bytes of memory."""

NAME_BYTES: Final = 64 << 10
"""Of a name or path in a row; other texts may have `TEXT_BYTES`."""

TEXT_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What one question to a run may use.

    `memory_bytes` is what the query engine takes before it goes on in a private temporary folder,
    with at most `spill_bytes` there; a locked run has no such folder. `answer_bytes` bounds what
    comes out of it. `threads` is None for one per core; a locked run takes two.
    """

    memory_bytes: int = 1 << 30
    threads: int | None = None
    answer_bytes: int = 2 << 30
    spill_bytes: int = 16 << 30
