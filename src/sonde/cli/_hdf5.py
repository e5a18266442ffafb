"""HDF5: a table as a group of datasets, one per column, all of the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sonde._errors import SondeError
from sonde._require import require
from sonde.cli import _cells

if TYPE_CHECKING:
    import h5py


@contextmanager
def hdf5(path: str, table: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Numbers as numbers (null as NaN), text as UTF-8 (null as empty)."""
    try:
        h5py = require("h5py", extra="hdf5")
    except ImportError as error:
        raise SondeError(str(error)) from None
    with h5py.File(path, "w") as file:
        group = file.create_group(table)
        text = h5py.string_dtype("utf-8")
        columns = {name: _dataset(group, schema.field(name), text) for name in schema.names}

        def append(rows: pa.Table) -> None:
            for name, dataset in columns.items():
                _extend(dataset, _cells.without_lists(rows[name]))

        yield append


def _dataset(group: h5py.Group, field: pa.Field, text: np.dtype[np.object_]) -> h5py.Dataset:
    is_number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
    kind = field.type.to_pandas_dtype() if is_number else text
    return group.create_dataset(
        field.name,
        shape=(0,),
        maxshape=(None,),
        dtype=kind,
        chunks=True,
        compression="gzip",
        compression_opts=1,
    )


def _extend(dataset: h5py.Dataset, column: pa.ChunkedArray) -> None:
    start = dataset.shape[0]
    dataset.resize((start + len(column),))
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.string())  # HDF5 has no null: `true`, `false` or nothing
    if pa.types.is_string(column.type):
        # HDF5 ends text at a NUL, so it is shown instead.
        values: object = [(v or "").replace("\0", "\\0") for v in column.to_pylist()]
    else:
        values = column.to_numpy()
    if len(column):
        dataset[start:] = values
