"""A callback that moves gathered values into an HDF5 file, with their iterations and ranks."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sonde._errors import SondeError
from sonde.compat.tensortrace.callbacks import GlobalVariableResult
from sonde.tracing.hdf5 import HDF5
from sonde.tracing.results import Result
from sonde.tracing.torch import distributed
from sonde.tracing.windows import TracedVariable


class SavedVariable(tuple[Any, Any]):
    """The datasets of values and of iterations. All else is asked of the first: `.shape`.

    `Any`: datasets of h5py.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> object:
        return getattr(self[0], name)


class H5PYSaverCallback:
    """Appends the values of each window to `{name}`, `{name}_iterations` and `{name}_ranks`, and
    takes them out of memory. A post-gather callback; the file is written by rank 0."""

    def __init__(
        self,
        dataset_file: str | os.PathLike[str],
        iteration_dtype: object = np.int64,
        float_dtype: object = np.float32,
        int_dtype: object = np.int32,
        compression: str | None = None,
        compression_opts: int | None = None,
        shuffle: bool = False,
        existing_ok: bool = True,
    ) -> None:
        found = distributed.rank_and_world()
        is_writer = found is None or found[0] == 0
        if is_writer and not existing_ok and os.path.exists(dataset_file):
            raise ValueError(
                f"`{dataset_file}` exists. Choose another file, or `existing_ok=True`."
            )
        self._file = HDF5(
            dataset_file,
            float_dtype=_name(float_dtype),
            int_dtype=_name(int_dtype),
            iteration_dtype=_name(iteration_dtype),
            compression=compression,
            compression_opts=compression_opts,
            shuffle=shuffle,
        )
        self._is_open = False

    @property
    def datasets(self) -> dict[str, SavedVariable]:
        """By name: the dataset of values and that of iterations, while the file is open."""
        found = self._file.datasets
        return {n: SavedVariable((d, d.parent[f"{n}_iterations"])) for n, d in found.items()}

    def __call__(
        self,
        name: str,
        values: list[Any] | GlobalVariableResult,
        iterations: list[int] | None = None,
        ranks: list[int] | None = None,
    ) -> None:
        """Write values, and empty the lists. Raises ValueError on what the file cannot hold."""
        if isinstance(values, GlobalVariableResult):
            iterations, ranks, values = values.iterations, values.ranks, values.values
        if not self._is_open:
            self._file.open()
            self._is_open = True
        iterations, ranks = iterations or [], ranks or []
        try:
            self._file.put(TracedVariable(name, "", name, ""), Result(iterations, ranks, values))
        except SondeError as error:
            raise ValueError(str(error)) from error
        for several in (values, iterations, ranks):
            several.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _name(dtype: object) -> str:
    return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]  # what numpy takes
