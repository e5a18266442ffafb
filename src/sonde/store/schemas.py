"""The tables of a run: what each holds, how it is sorted, and in which folders it lies.

Everything that writes, compacts or reads a run goes through a `Table`; a new kind of record needs
one more of these and no other change to segments, snapshots or compaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sonde.record import COUNTS, EXTREMA, SUMS

FORMAT_VERSION: Final = "1.0"


@dataclass(frozen=True, slots=True)
class Table:
    """One kind of row. `compacted` is None for tables that stay as they were flushed.

    `key` are the columns without which a row means nothing; every other column may be missing from
    an older segment and then reads as null.
    """

    name: str
    schema: pa.Schema
    live: str
    compacted: str | None
    key: tuple[str, ...]
    sort_by: tuple[str, ...] = ()
    split_columns: tuple[str, ...] = ()
    """Columns (by Parquet path) in BYTE_STREAM_SPLIT."""
    delta_columns: tuple[str, ...] = ()
    """Columns in DELTA_BINARY_PACKED; all others are dictionary-encoded."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Where its segments lie, in the order in which a reader must list them."""
        return (self.live, self.compacted) if self.compacted else (self.live,)


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns.items()])


_WHO: Final = {"rank": pa.int32(), "attempt": pa.int32()}
_SITE: Final = {
    "name": pa.string(),
    "module": pa.string(),
    "kind": pa.string(),
    "call": pa.int32(),
    "slot": pa.string(),
    "dtype": pa.string(),
}

SKETCHES: Final = Table(
    name="stats",
    schema=_schema(
        **_WHO,
        step=pa.int64(),
        phase=pa.string(),
        **_SITE,
        **dict.fromkeys(COUNTS, pa.int64()),
        **dict.fromkeys((*SUMS, *EXTREMA), pa.float64()),
        bin_ids=pa.list_(pa.int16()),
        bin_counts=pa.list_(pa.int64()),
        t_ns=pa.int64(),
        part=pa.int32(),
        parts=pa.int32(),
    ),
    live="live",
    compacted="stats",
    key=("rank", "attempt", "step", "phase", "name", "module", "kind", "call", "slot"),
    sort_by=("name", "step"),
    # Bins split by byte: 147 instead of 193 bytes per record (benchmarks/store.py).
    split_columns=(*SUMS, *EXTREMA, "bin_ids.list.element", "bin_counts.list.element"),
)

NUMBERS: Final = Table(
    name="numbers",
    schema=_schema(
        **_WHO,
        step=pa.int64(),
        phase=pa.string(),
        module=pa.string(),
        name=pa.string(),
        value=pa.float64(),
        ordinal=pa.int64(),
        t_ns=pa.int64(),
    ),
    live="live_numbers",
    compacted="numbers",
    key=("rank", "attempt", "step", "phase", "module", "name", "value", "ordinal"),
    sort_by=("name", "module", "step"),
    split_columns=("value",),
    delta_columns=("ordinal",),
)

SITES: Final = Table(
    name="sites",
    schema=_schema(
        **_WHO,
        ordinal=pa.int64(),
        **_SITE,
        shape=pa.list_(pa.int64()),
        module_type=pa.string(),
        t_ns=pa.int64(),
        requires_grad=pa.bool_(),
        dropout_p=pa.float64(),
        part=pa.int32(),
        parts=pa.int32(),
    ),
    live="sites",
    compacted=None,
    key=("rank", "attempt", "ordinal", "name", "module", "kind", "call", "slot"),
)

EVENTS: Final = Table(
    name="events",
    schema=_schema(
        **_WHO,
        ordinal=pa.int64(),
        step=pa.int64(),
        level=pa.string(),
        code=pa.string(),
        place=pa.string(),
        message=pa.string(),
        count=pa.int64(),
        data=pa.string(),
        t_ns=pa.int64(),
    ),
    live="events",
    compacted=None,
    key=("rank", "attempt", "ordinal", "code", "message"),
)

GRAPH: Final = Table(
    name="graph",
    schema=_schema(
        **_WHO,
        ordinal=pa.int64(),
        step=pa.int64(),
        what=pa.string(),
        id=pa.string(),
        target=pa.string(),
        module=pa.string(),
        call=pa.int32(),
        kind=pa.string(),
        parent=pa.string(),
        type=pa.string(),
        inputs=pa.string(),
        outputs=pa.string(),
        text=pa.string(),
        count=pa.int64(),
        t_ns=pa.int64(),
    ),
    live="graph",
    compacted=None,
    key=("rank", "attempt", "ordinal", "what", "id"),
)

TRACES: Final = Table(
    name="traces",
    schema=_schema(
        **_WHO,
        ordinal=pa.int64(),
        step=pa.int64(),
        phase=pa.string(),
        call=pa.int32(),
        name=pa.string(),
        module=pa.string(),
        slot=pa.string(),
        line=pa.int32(),
        kind=pa.string(),
        part=pa.int32(),
        dtype=pa.string(),
        shape=pa.list_(pa.int64()),
        nbytes=pa.int64(),
        file=pa.int64(),
        offset=pa.int64(),
        crc=pa.int64(),
        value=pa.string(),
        t_ns=pa.int64(),
    ),
    live="live_traces",
    compacted="traces",
    key=("rank", "attempt", "ordinal", "step", "phase", "call", "name", "kind", "part"),
    sort_by=("name", "step", "ordinal", "part"),
    delta_columns=("ordinal",),
)

TABLES: Final = (SITES, SKETCHES, NUMBERS, EVENTS, GRAPH, TRACES)
"""In the order in which a flush publishes them: a site before the first row that names it."""
