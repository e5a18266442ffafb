"""Soundness: whether rows are such as a writer makes, whatever checksum they come with."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sonde.record import COUNTS, EXTREMA, N_BINS, SUMS
from sonde.store import limits
from sonde.store.documents import DamagedError
from sonde.store.schemas import NUMBERS, SKETCHES, TRACES, Table
from sonde.store.segments import Segment

_TEXTS: Final = frozenset({"value", "text", "inputs", "outputs", "message", "data"})
"""Columns that hold more than a name."""


def check(rows: pa.Table, table: Table, segment: Segment) -> None:
    """Raise DamagedError if a row of the segment is none that a writer makes."""
    _check_shapes(rows, table)
    for name in table.key:
        if rows[name].null_count and not (table is NUMBERS and name == "module"):
            raise DamagedError(f"holds a row without `{name}`")
    attempt = segment.name.attempt
    for name, right in (("rank", attempt.rank), ("attempt", attempt.number)):
        if not _all(pc.equal(rows[name], right)):
            raise DamagedError(f"holds rows of another {name}")
    for name in rows.schema.names:
        _check_texts(name, rows[name])
    if "step" in rows.schema.names and segment.steps is not None and rows.num_rows:
        low, high = (pc.min_max(rows["step"])[end].as_py() for end in ("min", "max"))
        if low is not None and not segment.steps[0] <= low <= high <= segment.steps[1]:
            raise DamagedError(f"holds steps outside its declared range ({low} to {high})")
    if table is SKETCHES:
        _check_sketches(rows)
    if table is TRACES:
        _check_traces(rows)


def _check_shapes(rows: pa.Table, table: Table) -> None:
    """Lists are lists of plain values, and no other column holds anything nested."""
    for field in rows.schema:
        is_list = pa.types.is_list(field.type)
        held = field.type.value_type if is_list else field.type
        if pa.types.is_nested(held) or is_list != pa.types.is_list(
            table.schema.field(field.name).type
        ):
            raise DamagedError(f"holds a `{field.name}` of type {field.type}")


def _check_traces(rows: pa.Table) -> None:
    """A row of an array says what it is and where it lies."""
    is_array = pc.is_in(rows["kind"].cast(pa.string()), pa.array(["tensor", "part"]))
    arrays = rows.filter(is_array)
    for name in ("dtype", "shape", "nbytes", "file", "offset", "crc"):
        if arrays.num_rows and (name not in rows.schema.names or arrays[name].null_count):
            raise DamagedError(f"holds an array without `{name}`")


def _check_texts(name: str, column: pa.ChunkedArray) -> None:
    limit = limits.TEXT_BYTES if name in _TEXTS else limits.NAME_BYTES
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            longest = pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0
            if longest > limit:
                raise DamagedError(f"holds a `{name}` of {longest} bytes")


def _check_sketches(rows: pa.Table) -> None:
    for name in (*COUNTS, *SUMS, *EXTREMA, "bin_ids", "bin_counts"):
        if name in rows.schema.names and rows[name].null_count:
            raise DamagedError(f"holds a sketch without `{name}`")
    for name in COUNTS:
        if name in rows.schema.names and not _all(pc.greater_equal(rows[name], 0)):
            raise DamagedError(f"holds a sketch with a negative `{name}`")
    if not {"bin_ids", "bin_counts"} <= set(rows.schema.names):
        return
    ids, counts = rows["bin_ids"].combine_chunks(), rows["bin_counts"].combine_chunks()
    if not ids.value_lengths().equals(counts.value_lengths()):
        raise DamagedError("holds bins without counts")
    flat, held = ids.flatten(), counts.flatten()
    if flat.null_count or held.null_count:
        raise DamagedError("holds bins that are null")
    known, n = flat.to_numpy(), held.to_numpy()
    if len(known) and not (0 <= known.min() <= known.max() < N_BINS and n.min() >= 0):
        raise DamagedError("holds bins that cannot be")
    rows_of = np.repeat(np.arange(len(ids)), ids.value_lengths().to_numpy())
    if (np.diff(rows_of * N_BINS + known.astype(np.int64)) <= 0).any():
        raise DamagedError("holds bins that do not rise")


def _all(found: pa.ChunkedArray) -> bool:
    return pc.all(found, min_count=0).as_py() is not False
