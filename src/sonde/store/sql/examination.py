"""Examination: whether every row of a segment can be read and can be meant.

A segment counts when its checksum and its footer are right; its rows are not looked at then. A
forged one may still hold pages that one reader takes and another does not, or rows that no writer
of ours makes. When a question fails, all segments are examined, and those that are at fault are
named as damaged and left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from sonde.store.documents import DamagedError
from sonde.store.schemas import TABLES, Table
from sonde.store.segments import Segment
from sonde.store.sql import queries, soundness

_ROWS_AT_ONCE: Final = 8192

_BY_NAME: Final = {table.name: table for table in TABLES}


def problem_of(segment: Segment, cursor: queries.Connection) -> str | None:
    """What is wrong with the segment, or None. The cursor is one of a connection to its run."""
    table = _BY_NAME[segment.table]
    try:
        for rows in _batches(segment, table):
            soundness.check(rows, table, segment)
        _ask_engine(segment, cursor)
    except FileNotFoundError:
        return None
    except DamagedError as error:
        return str(error)
    except (pa.ArrowException, OSError, duckdb.Error, MemoryError) as error:
        return f"cannot be read ({type(error).__name__}: {_one_line(error)})"[:200]
    except (ValueError, TypeError, OverflowError, KeyError, IndexError) as error:
        return f"holds rows that cannot be ({type(error).__name__}: {_one_line(error)})"[:200]
    return None


def _batches(segment: Segment, table: Table) -> Iterator[pa.Table]:
    """The rows by Arrow, which compares the checksum of every page."""
    columns = [name for name in table.schema.names if name in segment.columns]
    strings = [name for name in columns if pa.types.is_string(table.schema.field(name).type)]
    with pq.ParquetFile(
        segment.path, read_dictionary=strings, page_checksum_verification=True, memory_map=False
    ) as file:
        seen = 0
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False):
            batch.validate(full=True)
            seen += batch.num_rows
            yield pa.Table.from_batches([batch])
    if seen != segment.rows:
        raise DamagedError(f"has {seen} rows and declares {segment.rows}")


def _ask_engine(segment: Segment, cursor: queries.Connection) -> None:
    """Read every value by DuckDB too: it takes other files than Arrow does."""
    columns = ", ".join(f'bit_xor(hash("{name}"))' for name in sorted(segment.columns))
    found = cursor.execute(f"select count(*), {columns} from {queries.scan([segment])}").fetchone()
    if found is None or found[0] != segment.rows:
        raise DamagedError("holds another number of rows for another reader")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:150]
