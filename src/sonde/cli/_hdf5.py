"""HDF5: a table as a group of datasets, one per column, all of the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from sonde._errors import SondeError
from sonde._require import require
from sonde.cli import _cells


@contextmanager
def hdf5(path: str, table: str, schema: Any) -> Iterator[Callable[[Any], None]]:  # pa.Schema
    """Numbers as numbers (null as NaN), text as UTF-8 (null as empty)."""
    try:
        h5py = require("h5py", extra="hdf5")
    except ImportError as error:
        raise SondeError(str(error)) from None
    with h5py.File(path, "w") as file:
        group = file.create_group(table)
        columns = {name: _dataset(h5py, group, schema.field(name)) for name in schema.names}

        def append(rows: Any) -> None:  # pa.Table
            for name, dataset in columns.items():
                _extend(dataset, _cells.without_lists(rows[name]))

        yield append


def _dataset(h5py: Any, group: Any, field: Any) -> Any:  # h5py has no types; pa.Field
    is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    kind = field.type.to_pandas_dtype() if is_number else h5py.string_dtype("utf-8")
    return group.create_dataset(
        field.name,
        shape=(0,),
        maxshape=(None,),
        dtype=kind,
        chunks=True,
        compression="gzip",
        compression_opts=1,
    )


def _extend(dataset: Any, column: Any) -> None:  # h5py.Dataset, pa.ChunkedArray
    start = dataset.shape[0]
    dataset.resize((start + len(column),))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())  # HDF5 has no null: `true`, `false` or nothing
    if pa.types.is_string(column.type):
        # HDF5 ends text at a NUL, so it is shown instead.
        values: Any = [(v or "").replace("\0", "\\0") for v in column.to_pylist()]
    else:
        values = column.to_numpy()
    if len(column):
        dataset[start:] = values
