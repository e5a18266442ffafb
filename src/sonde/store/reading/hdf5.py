"""Scalars and metrics of a run as an HDF5 file: a group for each series, for tools that read those.

    scalars/loss                    keys (steps, int64), values (float64)
    metrics/h.0.mlp/output_grad/rms the same; a `/` in a name makes groups within groups
    phases/validation/...           the same again for phases other than `train`

Each group says in its attributes `name`, `module` and `phase` what it is, exactly. In paths the
parts that HDF5 or this layout would misread (`.`, `keys`, nothing at all) are written as `%2E`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde._require import require

if TYPE_CHECKING:
    import h5py
    from h5py import Dataset, Group

    from sonde.store.reading.run import Run

_SPECIAL: Final = frozenset({".", "..", "keys", "values"})
_EMPTY: Final = "%"
"""Stands for a part without a character, as in `a//b`. No other part is written like this."""


@dataclass(frozen=True, slots=True)
class ExportedSeries:
    """The values of a scalar (`module` is None) or of a metric over steps."""

    name: str
    module: str | None
    phase: str
    steps: NDArray[np.int64]
    values: NDArray[np.float64]


def write(run: Run, path: str | os.PathLike[str]) -> int:
    """Write all scalars and metrics of the run; how many series there are.

    The file appears when it is complete. One that exists is replaced.
    """
    h5py = _h5py()
    target = os.fspath(path)
    part = f"{target}.part"
    n = 0
    try:
        with h5py.File(part, "w") as file:
            for series in _series(run):
                _put(file, series)
                n += 1
        os.replace(part, target)
    except OSError as error:
        raise SondeError(f"Cannot write `{target}`: {error.strerror or error}.") from error
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    return n


def read(path: str | os.PathLike[str]) -> list[ExportedSeries]:
    """Everything that `write` has written, in no particular order."""
    h5py = _h5py()
    found: list[ExportedSeries] = []

    def visit(_path: str, item: Group | Dataset) -> None:
        if isinstance(item, h5py.Group) and "keys" in item and "phase" in item.attrs:
            module = item.attrs.get("module")
            found.append(
                ExportedSeries(
                    _text(item.attrs["name"]),
                    None if module is None else _text(module),
                    _text(item.attrs["phase"]),
                    item["keys"][:],
                    item["values"][:],
                )
            )

    with h5py.File(os.fspath(path), "r") as file:
        file.visititems(visit)
    return found


def _series(run: Run) -> Iterator[ExportedSeries]:
    for view, columns in (("scalars", ("name",)), ("metrics", ("module", "name"))):
        order = ", ".join(("phase", *columns, "step"))
        rows = run.sql(f"select * from {view} order by {order}", frame="arrow")
        keys = [rows[c].to_pylist() for c in ("phase", *columns)]
        steps, values = rows["step"].to_numpy(), rows["value"].to_numpy()
        first = 0
        several = list(zip(*keys, strict=True))
        for i in range(1, len(several) + 1):
            if i == len(several) or several[i] != several[first]:
                phase, *where = several[first]
                module = where[0] if len(where) > 1 else None
                yield ExportedSeries(where[-1], module, phase, steps[first:i], values[first:i])
                first = i


def _put(file: h5py.File, series: ExportedSeries) -> None:
    parts = ["phases", series.phase] if series.phase != "train" else []
    parts += ["scalars"] if series.module is None else ["metrics", series.module]
    parts += series.name.split("/")
    group = file.require_group("/".join(map(_escaped, parts)))
    group.attrs["name"] = _bytes(series.name)
    group.attrs["phase"] = _bytes(series.phase)
    if series.module is not None:
        group.attrs["module"] = _bytes(series.module)
    group.create_dataset("keys", data=series.steps.astype(np.int64))
    group.create_dataset("values", data=series.values.astype(np.float64))


def _escaped(part: str) -> str:
    if part == "":
        return _EMPTY
    text = part.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    if text in _SPECIAL:
        return f"%{ord(text[0]):02X}{text[1:]}"
    return text


def _bytes(text: str) -> np.void:
    """Text that may hold anything, as HDF5 keeps it without looking at it."""
    return np.void(text.encode() or b"\0")


def _text(value: np.void) -> str:
    raw = bytes(value.tobytes())
    return "" if raw == b"\0" else raw.decode()


def _h5py() -> ModuleType:
    try:
        return require("h5py", extra="hdf5")
    except ImportError as error:
        raise SondeError(str(error)) from None
