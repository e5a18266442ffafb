"""HDF5: values straight into a file, as they are gathered.

For each variable there is a dataset `{name}` that grows along its first dimension, one row per
value, with `{name}_iterations` and `{name}_ranks` beside it. A value inside a list, dict or
object has a dataset of its own, `{name}.0` or `{name}.key`. Further datasets appear when they are
needed: `{name}_shapes` when shapes differ, `{name}_none` when some values are None.

HDF5 has no bfloat16 and no float8: they are written as float32, exactly, and the attribute `dtype`
of the dataset says what they were. `read` gives everything back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde._require import require
from sonde.tracing.results import Result
from sonde.tracing.windows import TracedVariable

if TYPE_CHECKING:
    import h5py

Uneven = Literal["pad", "ragged"]

_ROWS_PER_CHUNK: Final = 64
_CHUNK_BYTES: Final = 1 << 20
_SUFFIXES: Final = ("_iterations", "_ranks", "_shapes", "_none")


class HDF5:
    """A file that takes traced values: `sonde.trace(model, paths, into=HDF5("values.h5"))`.

    Args:
        path: The file. Folders are made; a file that exists is replaced.
        float_dtype: What floats are written as, such as "float32"; None keeps them as they are.
        int_dtype: The same for integers.
        iteration_dtype: What numbers of iterations are written as.
        compression: "gzip", "lzf" or None.
        compression_opts: For gzip, its level.
        shuffle: Reorder bytes before compression, which often helps.
        uneven: What to do when shapes differ: "pad" fills up with zeros at the end of each
            dimension, "ragged" stores each value flat.
        existing_ok: Whether a file that exists may be replaced.
    """

    is_memory = False
    is_shared = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        float_dtype: str | None = None,
        int_dtype: str | None = None,
        iteration_dtype: str = "int64",
        compression: str | None = None,
        compression_opts: int | None = None,
        shuffle: bool = False,
        uneven: Uneven = "pad",
        existing_ok: bool = True,
    ) -> None:
        if uneven not in ("pad", "ragged"):
            raise SondeError(f'`uneven` must be "pad" or "ragged", got {uneven!r}.')
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        if os.path.isdir(self.path):
            raise SondeError(f"`{path}` is a folder. Name a file, such as `values.h5`.")
        if os.path.exists(self.path) and not existing_ok:
            raise SondeError(f"`{path}` exists. Choose another file, or pass `existing_ok=True`.")
        try:
            self._h5py = require("h5py", extra="hdf5")
        except ImportError as error:
            raise SondeError(str(error)) from None
        self._casts = {"f": _dtype("float_dtype", float_dtype), "i": _dtype("int_dtype", int_dtype)}
        self._iteration_dtype = _dtype("iteration_dtype", iteration_dtype)
        self._filters = {
            "compression": compression,
            "compression_opts": compression_opts,
            "shuffle": shuffle or None,
        }
        self._uneven = uneven
        self._file: h5py.File = None

    @property
    def datasets(self) -> dict[str, h5py.Dataset]:
        """The datasets of values by name, while the file is open."""
        if self._file is None:
            return {}
        return {n: d for n, d in self._file.items() if not n.endswith(_SUFFIXES)}

    def open(self) -> None:
        """Make the file, empty."""
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._file = self._h5py.File(self.path, "w")
        except OSError as error:
            raise SondeError(f"Cannot write `{self.path}`: {error}.") from error

    def put(self, variable: TracedVariable, result: Result) -> None:
        """Append values. What cannot go into the dataset raises, after all that could has gone."""
        if self._file is None:
            raise SondeError(f"`{self.path}` is closed.")
        columns: dict[str, list[tuple[int, _Cell]]] = {}
        for n, value in enumerate(result.values):
            for inside, leaf in _leaves(value):
                # In HDF5 a slash would begin a group.
                name = f"{variable.name}{inside}".replace("/", "|")
                columns.setdefault(name, []).append((n, _cell(leaf)))
        are_single = len(result.values) == len(result.iterations) == len(result.ranks)
        problems = []
        for name, cells in columns.items():
            written = []
            for n, cell in cells:
                try:
                    self._append(name, cell)
                    written.append(n)
                except ValueError as error:
                    problems.append(f"{name}: {error}")
            # Values that a callback has made of several keep the iterations of all of them.
            places = written if are_single else range(len(result.iterations))
            iterations = [result.iterations[n] for n in places]
            ranks = [result.ranks[n] for n in places if n < len(result.ranks)]
            self._extend(f"{name}_iterations", np.array(iterations, self._iteration_dtype))
            self._extend(f"{name}_ranks", np.array(ranks, np.int32))
        # So that the file opens with all of this in it, whatever happens to the process.
        self._file.flush()
        if problems:
            raise SondeError("; ".join(dict.fromkeys(problems)))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- inside ---------------------------------------------------------------------------------

    def _append(self, name: str, cell: _Cell) -> None:
        dataset = self._file.get(name)
        if dataset is None:
            if cell.is_none:
                self._none(name, at=self._pending(name))
                return
            dataset = self._create(name, cell)
        at = dataset.shape[0]
        if cell.is_none:
            dataset.resize(at + 1, axis=0)
            self._none(name, at=at)
            return
        if dataset.attrs["kind"] != cell.kind:
            was = dataset.attrs["kind"]
            raise ValueError(f"holds values of kind {was}, got one of kind {cell.kind}")
        if cell.kind == "number":
            dataset = self._widened(name, dataset, cell)
        if cell.kind == "text":
            dataset.resize(at + 1, axis=0)
            dataset[at] = cell.value
        elif dataset.attrs.get("ragged", False):
            dataset.resize(at + 1, axis=0)
            dataset[at] = cell.value.reshape(-1)
            self._shape(name, at, cell.value.shape)
        else:
            self._put_array(name, dataset, at, cell.value)

    def _widened(self, name: str, dataset: h5py.Dataset, cell: _Cell) -> h5py.Dataset:
        """A dataset that also holds a number of this type: what began as 0 may go on as 0.5."""
        wanted = np.result_type(dataset.dtype, self._stored(cell.value.dtype))
        if wanted == dataset.dtype:
            return dataset
        values = dataset[:].astype(wanted)
        del self._file[name]
        dataset = self._new(name, values.shape, wanted, 8)
        dataset[:] = values
        dataset.attrs["kind"], dataset.attrs["dtype"] = "number", str(wanted)
        return dataset

    def _put_array(
        self, name: str, dataset: h5py.Dataset, at: int, value: NDArray[np.generic]
    ) -> None:
        inner = dataset.shape[1:]
        if not np.can_cast(self._stored(value.dtype), dataset.dtype, "same_kind"):
            raise ValueError(f"has values of dtype {dataset.dtype}, got one of {value.dtype}")
        if value.ndim > len(inner):
            raise ValueError(
                f"has values of {len(inner)} dimensions, got one of {value.ndim}; "
                'pass `into=HDF5(..., uneven="ragged")`'
            )
        whole = value.reshape((1,) * (len(inner) - value.ndim) + value.shape)
        if whole.shape != inner:
            dataset.resize((at + 1, *(max(a, b) for a, b in zip(inner, whole.shape, strict=True))))
        else:
            dataset.resize(at + 1, axis=0)
        dataset[(at, *(slice(n) for n in whole.shape))] = whole
        if whole.shape != inner or value.ndim != len(inner) or f"{name}_shapes" in self._file:
            self._shape(name, at, value.shape, before=inner)

    def _create(self, name: str, cell: _Cell) -> h5py.Dataset:
        n = self._pending(name)
        if cell.kind == "text":
            kind = self._h5py.string_dtype("utf-8")
            dataset = self._new(name, (n,), kind, 1)
        elif self._uneven == "ragged" and cell.value.ndim:
            kind = self._h5py.vlen_dtype(self._stored(cell.value.dtype))
            dataset = self._new(name, (n,), kind, 1)
            dataset.attrs["ragged"] = True
        else:
            kind = self._stored(cell.value.dtype)
            dataset = self._new(name, (n, *cell.value.shape), kind, cell.value.nbytes)
        dataset.attrs["kind"] = cell.kind
        dataset.attrs["dtype"] = cell.dtype
        return dataset

    def _new(
        self, name: str, shape: tuple[int, ...], kind: np.dtype[np.generic], row_bytes: int
    ) -> h5py.Dataset:
        rows = int(min(_ROWS_PER_CHUNK, max(1, _CHUNK_BYTES // max(row_bytes, 1))))
        inner = tuple(max(1, min(n, 1 << 16)) for n in shape[1:])
        is_plain = isinstance(kind, np.dtype) and kind.metadata is None
        return self._file.create_dataset(
            name,
            shape=shape,
            maxshape=(None,) * len(shape),
            chunks=(rows, *inner),
            dtype=kind,
            **(self._filters if is_plain else {}),
        )

    def _stored(self, dtype: np.dtype[np.generic]) -> np.dtype[np.generic]:
        kind = "i" if dtype.kind in "iu" else dtype.kind
        return self._casts.get(kind) or dtype

    def _none(self, name: str, *, at: int) -> None:
        """Note that the value at that place is None."""
        mask = self._file.get(f"{name}_none")
        if mask is None:
            mask = self._new(f"{name}_none", (0,), np.dtype(bool), 1)
        mask.resize(at + 1, axis=0)
        mask[at] = True

    def _pending(self, name: str) -> int:
        """How many values there were before there was a dataset: all of them None."""
        mask = self._file.get(f"{name}_none")
        return 0 if mask is None else int(mask.shape[0])

    def _shape(
        self, name: str, at: int, shape: tuple[int, ...], before: tuple[int, ...] = ()
    ) -> None:
        """Note the shape of a value among others; of those before, that they had the same one."""
        shapes = self._file.get(f"{name}_shapes")
        if shapes is None:
            kind = self._h5py.vlen_dtype(np.dtype(np.int64))
            shapes = self._new(f"{name}_shapes", (at,), kind, 1)
            for n in range(at):
                shapes[n] = np.array(before, np.int64)
        shapes.resize(at + 1, axis=0)
        shapes[at] = np.array(shape, np.int64)

    def _extend(self, name: str, values: NDArray[np.generic]) -> None:
        dataset = self._file.get(name)
        if dataset is None:
            dataset = self._new(name, (0,), values.dtype, 8)
        at = dataset.shape[0]
        dataset.resize(at + len(values), axis=0)
        dataset[at:] = values


def read(path: str | os.PathLike[str], name: str) -> Result:
    """The values of a variable from such a file: arrays, numbers, text and None, as they were."""
    h5py = require("h5py", extra="hdf5")
    with h5py.File(path, "r") as file:
        known = [n for n in file if not n.endswith(_SUFFIXES)]
        if name not in file and f"{name}_none" not in file:
            raise SondeError(f"`{name}` is not in `{path}`. It holds: {', '.join(known)}.")
        return Result(
            iterations=file[f"{name}_iterations"][:].tolist(),
            ranks=file[f"{name}_ranks"][:].tolist(),
            values=list(_rows(file, name)),
        )


def _rows(file: h5py.File, name: str) -> Iterator[object]:
    dataset, mask, shapes = (file.get(name + end) for end in ("", "_none", "_shapes"))
    none = set(np.flatnonzero(mask[:]).tolist()) if mask is not None else set()
    n = dataset.shape[0] if dataset is not None else mask.shape[0]
    for i in range(n):
        if i in none:
            yield None
        elif dataset.attrs["kind"] == "text":
            yield dataset.asstr()[i]
        elif dataset.attrs["kind"] == "number":
            yield dataset[i].item()
        elif dataset.attrs.get("ragged", False):
            yield dataset[i].reshape(tuple(shapes[i]))
        elif shapes is not None:
            shape = tuple(shapes[i])
            lead = dataset.ndim - 1 - len(shape)
            yield dataset[(i, *(0,) * lead, *(slice(m) for m in shape))]
        else:
            yield dataset[i]


@dataclass(frozen=True, slots=True)
class _Cell:
    """A value as HDF5 can hold it."""

    kind: Literal["array", "number", "text", "none"]
    value: Any  # an array, a text or None, by `kind`
    dtype: str

    @property
    def is_none(self) -> bool:
        return self.kind == "none"


def _cell(value: object) -> _Cell:
    match value:
        case None:
            return _Cell("none", None, "")
        case str():
            # HDF5 ends text at a NUL, so it is shown instead.
            return _Cell("text", value.replace("\0", "\\0"), "str")
        case bool() | int() | float() | complex() | np.generic():
            array = np.asarray(value)
            if array.dtype == object:
                return _Cell("text", str(value), "int")
            return _Cell("number", array, str(array.dtype))
        case np.ndarray():
            return _Cell("array", value, str(value.dtype))
    if hasattr(value, "detach"):
        from torch import Tensor

        from sonde.tracing.torch.tensor_ops import to_numpy

        array, dtype = to_numpy(cast("Tensor", value))
        return _Cell("array", array, dtype)
    return _Cell("text", repr(value), type(value).__name__)


def _leaves(value: object, inside: str = "") -> Iterator[tuple[str, object]]:
    """The parts of a nested value that HDF5 can hold, with their names."""
    fields = getattr(value, "fields", None)
    if isinstance(fields, Mapping) and hasattr(value, "type_name"):
        if not fields:
            yield inside, getattr(value, "text", "")
        for key, item in fields.items():
            yield from _leaves(item, f"{inside}.{key}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{inside}.{key}")
    elif isinstance(value, list | tuple):
        for n, item in enumerate(value):
            yield from _leaves(item, f"{inside}.{n}")
    elif isinstance(value, set | frozenset):
        for n, item in enumerate(sorted(value, key=repr)):
            yield from _leaves(item, f"{inside}.{n}")
    else:
        yield inside, value


def _dtype(argument: str, given: str | None) -> np.dtype[np.generic] | None:
    if given is None:
        return None
    try:
        return np.dtype(given)
    except TypeError:
        raise SondeError(f"`{argument}` must be a dtype of numpy, got {given!r}.") from None
