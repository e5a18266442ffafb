"""A segment: a Parquet file, written once, whose name says what it holds and its checksum."""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from sonde.store import arrays, limits
from sonde.store.documents import DamagedError, open_regular, read_regular
from sonde.store.schemas import FORMAT_VERSION, Table

_NAME: Final = re.compile(r"a(\d{4,9})-([0-9a-f]{4})-(\d{8,18})-(\d{8,18})-([0-9a-f]{8})\.parquet")
_RANK: Final = re.compile(r"r(\d{5,9})")

LIVE_LEVEL: Final = 1
COMPACTED_LEVEL: Final = 3
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One start of one rank. Later attempts compare greater."""

    rank: int
    number: int
    token: str

    @property
    def stem(self) -> str:
        """How its files in `ranks/` begin."""
        return f"{rank_folder(self.rank)}.a{self.number:04d}-{self.token}"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """What a file name says."""

    attempt: Attempt
    first: int
    last: int
    crc32: str

    def __str__(self) -> str:
        a = self.attempt
        return f"a{a.number:04d}-{a.token}-{self.first:08d}-{self.last:08d}-{self.crc32}.parquet"


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment whose bytes were checked: safe to read."""

    path: str
    name: SegmentName
    table: str
    size_bytes: int
    rows: int
    steps: tuple[int, int] | None
    repeats: bool
    resume_from_step: int | None
    columns: frozenset[str]
    parts: int = 0
    """More than 1: tensors are cut into parts; 1: other ranks may hold the same; 0: neither."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What goes into a segment's footer besides its rows."""

    run_id: str
    attempt: Attempt
    first: int
    last: int
    resume_from_step: int | None
    repeats: bool


class _Bounds:
    """The lowest and the highest step seen, and into how many parts tensors are cut."""

    def __init__(self) -> None:
        self.bounds: tuple[int, int] | None = None
        self.parts = 0

    def see(self, rows: pa.Table) -> None:
        if "step" not in rows.schema.names or rows.num_rows == 0:
            return
        if "parts" in rows.schema.names and rows["parts"].null_count == 0:
            highest = (arrays.bounds(rows["part"])[1] + 1, arrays.bounds(rows["parts"])[1])
            self.parts = max(self.parts, *highest)
        low, high = arrays.bounds(rows["step"])
        if self.bounds is not None:
            low, high = min(low, self.bounds[0]), max(high, self.bounds[1])
        self.bounds = (low, high)


def rank_folder(rank: int) -> str:
    return f"r{rank:05d}"


def parse_rank_folder(name: str) -> int | None:
    found = _RANK.fullmatch(name)
    return int(found[1]) if found else None


def parse_name(name: str, rank: int) -> SegmentName | None:
    """What the file name says, or None if it is not a segment's."""
    found = _NAME.fullmatch(name)
    if not found:
        return None
    attempt = Attempt(rank, int(found[1]), found[2])
    parsed = SegmentName(attempt, int(found[3]), int(found[4]), found[5])
    return parsed if parsed.first <= parsed.last and str(parsed) == name else None


def encode(
    table: Table, row_groups: Iterable[pa.Table], contents: Contents, *, is_compacted: bool = False
) -> tuple[str, bytes]:
    """File name and bytes of a segment. The same rows give the same bytes."""
    data = pa.BufferOutputStream()  # a file of Python's would need the interpreter for every page
    paths = _parquet_types(table)
    encoded_otherwise = {*table.split_columns, *table.delta_columns}
    groups = iter(row_groups)
    first = next(groups)
    steps = _Bounds()
    with pq.ParquetWriter(
        data,
        first.schema,
        compression="zstd",
        compression_level=COMPACTED_LEVEL if is_compacted else LIVE_LEVEL,
        use_dictionary=[path for path in paths if path not in encoded_otherwise],
        use_byte_stream_split=False,
        column_encoding=dict.fromkeys(table.split_columns, "BYTE_STREAM_SPLIT")
        | dict.fromkeys(table.delta_columns, "DELTA_BINARY_PACKED"),
        write_statistics=[path for path in paths if path not in table.split_columns],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for rows in chain([first], groups):
            steps.see(rows)
            writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        writer.add_key_value_metadata({"sonde": _footer(table, contents, steps)})
    encoded = data.getvalue().to_pybytes()
    crc = f"{zlib.crc32(encoded):08x}"
    return str(SegmentName(contents.attempt, contents.first, contents.last, crc)), encoded


def check(path: str, name: SegmentName, table: Table, run_id: str | None) -> Segment:
    """Read the file and make sure that it is what its name and place say.

    Raises FileNotFoundError when it is gone and `DamagedError` when anything about it is wrong.
    """
    with open_regular(path, limit_bytes=limits.SEGMENT_BYTES) as file:
        return _checked(path, file, name, table, run_id)


def load(
    path: str,
    name: SegmentName,
    table: Table,
    run_id: str | None,
    columns: Sequence[str] | None = None,
) -> tuple[Segment, pa.Table]:
    """A checked segment and its rows, strings dictionary-encoded; a column it lacks is null."""
    data = read_regular(path, limit_bytes=limits.SEGMENT_BYTES)
    segment = _checked(path, io.BytesIO(data), name, table, run_id)
    fields = [f for f in table.schema if columns is None or f.name in columns]
    strings = [f.name for f in fields if pa.types.is_string(f.type)]
    try:
        rows = pq.read_table(
            pa.BufferReader(data),
            columns=[f.name for f in fields if f.name in segment.columns],
            read_dictionary=[c for c in strings if c in segment.columns],
            page_checksum_verification=True,
            use_threads=False,
        )
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(f"cannot be read ({type(error).__name__}: {error})"[:200]) from None
    for at, field in enumerate(fields):
        if field.name not in segment.columns:
            rows = rows.add_column(at, field.name, pa.nulls(rows.num_rows, field.type))
    encoded = pa.dictionary(pa.int32(), pa.string())
    kinds = [f.with_type(encoded) if f.name in strings else f for f in fields]
    return segment, rows.cast(pa.schema(kinds))


def _checked(
    path: str, file: BinaryIO, name: SegmentName, table: Table, run_id: str | None
) -> Segment:
    """All of the file goes through the checksum before any of it is believed."""
    crc = size_bytes = 0
    while piece := file.read(_PIECE_BYTES):
        crc = zlib.crc32(piece, crc)
        size_bytes += len(piece)
    if size_bytes == 0:
        raise DamagedError("is empty")
    if f"{crc:08x}" != name.crc32:
        raise DamagedError(f"has a wrong checksum ({size_bytes} bytes)")
    file.seek(0)
    try:
        metadata = pq.read_metadata(file)
        footer = json.loads((metadata.metadata or {})[b"sonde"])
        return _segment(path, name, table, run_id, metadata, footer, size_bytes)
    except DamagedError:
        raise
    except Exception as error:  # a stranger's file may be wrong in any way
        raise DamagedError(f"cannot be read ({type(error).__name__}: {error})"[:200]) from None


def _footer(table: Table, contents: Contents, seen: _Bounds) -> str:
    return json.dumps(
        {
            "format_version": FORMAT_VERSION,
            "run_id": contents.run_id,
            "table": table.name,
            "rank": contents.attempt.rank,
            "attempt": contents.attempt.number,
            "token": contents.attempt.token,
            "first_seq": contents.first,
            "last_seq": contents.last,
            "resume_from_step": contents.resume_from_step,
            "steps": seen.bounds,
            "repeats": contents.repeats,
            "parts": seen.parts,
        }
    )


def _segment(
    path: str,
    name: SegmentName,
    table: Table,
    run_id: str | None,
    metadata: pq.FileMetaData,
    footer: Mapping[str, Any],
    size_bytes: int,
) -> Segment:
    said = (footer["rank"], footer["attempt"], footer["token"], footer["first_seq"])
    a = name.attempt
    if (*said, footer["last_seq"]) != (a.rank, a.number, a.token, name.first, name.last):
        raise DamagedError("names another segment in its contents")
    if footer["table"] != table.name:
        raise DamagedError(f"holds rows of `{footer['table']}`, not of `{table.name}`")
    if run_id is not None and footer["run_id"] != run_id:
        raise DamagedError("belongs to another run")
    resume, steps, parts = footer["resume_from_step"], footer["steps"], footer.get("parts", 0)
    _bound(metadata)
    for number in (resume, parts, *(steps or ())):
        if number is not None and not (type(number) is int and abs(number) < 1 << 63):
            raise DamagedError(f"has an impossible step ({number!r})"[:100])
    return Segment(
        path=path,
        name=name,
        table=table.name,
        size_bytes=size_bytes,
        rows=metadata.num_rows,
        steps=(int(steps[0]), int(steps[1])) if steps is not None else None,
        repeats=bool(footer["repeats"]),
        resume_from_step=None if resume is None else int(resume),
        columns=_columns(metadata, table),
        parts=int(parts),
    )


def _bound(metadata: pq.FileMetaData) -> None:
    """Refuse what would take too much to read, by what the file says of itself."""
    if not 0 <= metadata.num_rows <= limits.SEGMENT_ROWS:
        raise DamagedError(
            f"declares {metadata.num_rows} rows; at most {limits.SEGMENT_ROWS} are read"
        )
    if metadata.num_columns > limits.SEGMENT_COLUMNS:
        raise DamagedError(f"has {metadata.num_columns} columns")
    if metadata.num_row_groups > limits.SEGMENT_GROUPS:
        raise DamagedError(f"has {metadata.num_row_groups} row groups")
    rows = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        rows += group.num_rows
        if not 0 <= group.total_byte_size <= limits.GROUP_BYTES:
            raise DamagedError(
                f"has a row group of {group.total_byte_size} bytes; at most {limits.GROUP_BYTES} "
                "are read"
            )
    if rows != metadata.num_rows:
        raise DamagedError(f"declares {metadata.num_rows} rows and has {rows}")


def _columns(metadata: pq.FileMetaData, table: Table) -> frozenset[str]:
    """Columns of the table that the file has. Types are compared as Parquet states them."""
    expected = _parquet_types(table)
    found = {}
    for i in range(metadata.num_columns):
        column = metadata.schema.column(i)
        found[column.path] = (column.physical_type, str(column.logical_type))
    for path, kind in found.items():
        if path not in expected and path.split(".")[0] in table.schema.names:
            raise DamagedError(f"has a column `{path}` of another shape"[:200])
        if path in expected and kind != expected[path]:
            raise DamagedError(f"has a column `{path}` of type {kind}, expected {expected[path]}")
    present = frozenset(path.split(".")[0] for path in found if path in expected)
    missing = [c for c in table.key if c not in present]
    if missing:
        raise DamagedError(f"lacks the column `{missing[0]}`")
    return present


def _parquet_types(table: Table) -> dict[str, tuple[str, str]]:
    kinds = {
        pa.bool_(): ("BOOLEAN", "None"),
        pa.int32(): ("INT32", "None"),
        pa.int64(): ("INT64", "None"),
        pa.float64(): ("DOUBLE", "None"),
        pa.string(): ("BYTE_ARRAY", "String"),
        pa.int16(): ("INT32", "Int(bitWidth=16, isSigned=true)"),
    }
    types = {}
    for field in table.schema:
        if pa.types.is_list(field.type):
            types[f"{field.name}.list.element"] = kinds[field.type.value_type]
        else:
            types[field.name] = kinds[field.type]
    return types
