"""Files that a table can be exported to, written a piece at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from sonde.cli import _cells
from sonde.cli._hdf5 import hdf5

Append = Callable[[pa.Table], None]
"""Takes a pa.Table and adds its rows to the file."""


@contextmanager
def parquet(path: str, _table: str, schema: pa.Schema) -> Iterator[Append]:
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        yield file.write_table


@contextmanager
def comma_separated(path: str, _table: str, schema: pa.Schema) -> Iterator[Append]:
    plain = _cells.for_csv(schema.empty_table()).schema
    with csv.CSVWriter(path, plain) as file:
        yield lambda rows: file.write_table(_cells.for_csv(rows).cast(plain))


FORMATS: Final[dict[str, Callable[[str, str, pa.Schema], AbstractContextManager[Append]]]] = {
    ".parquet": parquet,
    ".csv": comma_separated,
    ".h5": hdf5,
    ".hdf5": hdf5,
}
"""By the end of the file's name."""
