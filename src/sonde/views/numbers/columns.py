"""Columns: how steps are put into buckets that stay where they are while a run grows.

Buckets are the stretches `[k * stride, (k + 1) * stride)` for a stride that is a power of two. A
cursor remembers which segments an answer was made from; what came since lies at or after a step
that is known without reading a row, so only buckets from there on have to be made again.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.store.reading.progress import Progress
from sonde.views.specs import Columns

_MAX_MARKS: Final = 64
"""Attempts that a cursor remembers; runs with more are always answered whole."""

_MAX_CURSOR: Final = 8192


@dataclass(frozen=True, slots=True)
class Grid:
    """The buckets of an answer: for each recorded step, ascending, the index of its column."""

    stride: int
    steps: NDArray[np.int64]
    """Recorded steps that the answer covers."""
    keys: NDArray[np.int64]
    """Bucket number of each column, rising."""
    from_step: int | None
    cursor: str
    recorded: int
    """Recorded steps in the window, also those that a delta leaves out."""

    def __len__(self) -> int:
        return len(self.keys)

    def column_of(self, buckets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Index of the column of each bucket number; -1 if there is none."""
        at = np.searchsorted(self.keys, buckets)
        at = np.minimum(at, max(len(self.keys) - 1, 0))
        if len(self.keys) == 0:
            return np.full(len(buckets), -1, np.int64)
        return np.where(self.keys[at] == buckets, at, -1)

    def columns(self) -> Columns:
        """The x axis as it is sent."""
        buckets = self.steps // self.stride
        starts = np.searchsorted(buckets, self.keys, side="left")
        ends = np.searchsorted(buckets, self.keys, side="right")
        first = self.steps[starts] if len(self.keys) else np.empty(0)
        last = self.steps[ends - 1] if len(self.keys) else np.empty(0)
        return Columns(
            stride=self.stride,
            first=first.astype(np.float64),
            last=last.astype(np.float64),
            steps=(ends - starts).astype(np.int32),
            from_step=self.from_step,
            cursor=self.cursor,
        )


def grid(
    steps: Sequence[int] | NDArray[np.int64],
    limit: int,
    progress: Progress,
    tables: Sequence[str],
    *,
    after: str | None = None,
    tag: str = "",
) -> Grid:
    """Buckets for these recorded steps (ascending), at most `limit`; only the new ones if that is
    what `after` allows.

    `tag` is whatever else the answer depends on: a delta is made only where it is still the same.
    """
    all_steps = np.asarray(steps, dtype=np.int64)
    stride = stride_for(all_steps, limit)
    told = _told(progress, tables, stride, tag)
    from_step = _from_step(after, told, progress, stride)
    kept = all_steps if from_step is None else all_steps[all_steps >= from_step]
    keys = np.unique(kept // stride)
    return Grid(stride, kept, keys, from_step, _cursor(told), len(all_steps))


def stride_for(steps: NDArray[np.int64], limit: int) -> int:
    """The smallest power of two such that the steps lie in at most `limit` buckets."""
    stride = 1
    while len(steps) > limit and len(np.unique(steps // stride)) > limit:
        stride *= 2
    return stride


def bucket_sql(stride: int) -> str:
    """The bucket of `step` in SQL, the same as `steps // stride` here."""
    return "step" if stride == 1 else f"cast(floor(step / {float(stride)}) as bigint)"


def _told(progress: Progress, tables: Sequence[str], stride: int, tag: str) -> dict[str, object]:
    marks = progress.marks(*tables)
    is_small = len(marks) <= _MAX_MARKS
    for table in tables:  # a table without segments yet is remembered, too
        marks.setdefault(f"{table}.", -1)
    return {
        "e": progress.epoch,
        "s": stride,
        "t": f"{zlib.crc32(tag.encode('utf-8', 'replace')):08x}",
        "m": marks if is_small else None,
    }


def _cursor(told: Mapping[str, object]) -> str:
    text = json.dumps(told, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(zlib.compress(text.encode())).decode().rstrip("=")


def _from_step(
    after: str | None, told: Mapping[str, object], progress: Progress, stride: int
) -> int | None:
    """From where on the asker has to be told; None for everything."""
    known = _read(after)
    if known is None or any(known.get(key) != told[key] for key in ("e", "s", "t")):
        return None
    marks = known.get("m")
    if not isinstance(marks, dict) or not all(isinstance(n, int) for n in marks.values()):
        return None
    first = progress.first_new_step(marks)
    if first is None:
        first = 1 << 53  # nothing came: an empty delta
    return first // stride * stride


def _read(after: str | None) -> dict[str, object] | None:
    if not after or len(after) > _MAX_CURSOR:
        return None
    try:
        packed = base64.urlsafe_b64decode(after + "=" * (-len(after) % 4))
        found = json.loads(zlib.decompressobj().decompress(packed, 1 << 16))
    except (ValueError, zlib.error, RecursionError):
        return None
    return found if isinstance(found, dict) else None
