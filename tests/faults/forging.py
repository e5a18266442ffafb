"""Forged files: wrong inside, with every checksum right, so that only their content can give them
away."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sonde.store import documents, segments
from sonde.store.schemas import TABLES, Table

FOLDERS = {folder: table for table in TABLES for folder in table.folders}


def table_of(file: str | os.PathLike[str]) -> Table:
    """The table that a segment belongs to, by the folder it lies in."""
    return FOLDERS[Path(file).parent.parent.name]


def renamed(file: str | os.PathLike[str], data: bytes) -> Path:
    """Put `data` in place of a file, under the name that its checksum asks for."""
    old = Path(file)
    stem, _, ending = old.name.rpartition(".")
    new = old.with_name(f"{stem[:-8]}{zlib.crc32(data):08x}.{ending}")
    old.unlink()
    new.write_bytes(data)
    return new


def rewritten(file: str | os.PathLike[str], change=None, *, footer=None, **options) -> Path:
    """The same segment with rows that `change` made of its own and with other words in its footer,
    encoded by `options` of Arrow's writer."""
    table = table_of(file)
    source = pq.ParquetFile(file)
    known = json.loads(source.metadata.metadata[b"sonde"])
    rows = source.read().cast(table.schema)
    source.close()
    rows = change(rows) if change is not None else rows
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, store_schema=False, **options) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"sonde": json.dumps({**known, **(footer or {})})})
    return renamed(file, sink.getvalue().to_pybytes())


def set_column(rows: pa.Table, name: str, values) -> pa.Table:
    at = rows.schema.get_field_index(name)
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        values = pa.array(values, rows.schema.field(name).type)
    return rows.set_column(at, name, values)


def document(file: str | os.PathLike[str], **changes) -> None:
    """The same JSON file with other fields and the right checksum."""
    found = json.loads(Path(file).read_bytes())
    found.pop("crc32", None)
    Path(file).write_bytes(signed({**found, **changes}))


def signed(plain: dict) -> bytes:
    """Any JSON object with the right checksum, also one that `documents.dump` would not write."""
    return json.dumps({"crc32": documents._checksum(plain), **plain}).encode()


def name_of(file: str | os.PathLike[str]) -> segments.SegmentName:
    found = segments.parse_name(Path(file).name, int(Path(file).parent.name[1:]))
    assert found is not None
    return found
