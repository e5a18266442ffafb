"""LogFrames and their readers, under the names of `tandv.track.common`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

from sonde._errors import SondeError
from sonde.logframe import from_wandb as frame_from_wandb
from sonde.logframe import read_logframe
from sonde.logframe.files import Format

__all__ = [
    "LogFrame",
    "SchemaException",
    "TrainingStats",
    "read_csv",
    "read_parquet",
    "read_pickle",
]

Frame = Any
"""pandas.DataFrame. Any: pandas may not be installed."""
Source = str | os.PathLike[str] | IO[bytes]


class SchemaException(SondeError):  # noqa: N818  # the name that Track & Visualize has for it
    """A frame is no LogFrame. The message names the columns."""


class LogFrame:
    """The schema of a LogFrame: the columns of its three groups. `*` stands for at least one."""

    schema: ClassVar[dict[str, dict[Any, type]]] = {
        "metadata": {"name": str, "type": str, "tensor_type": str, "step": int, "dtype": str},
        "scalar_stats": {"*": float},
        "exponent_counts": {float("-inf"): int, float("inf"): int, "*": int},
    }


@dataclass
class TrainingStats:
    """Losses by step, to show beside numerics."""

    steps: Sequence[int]
    train_loss: Sequence[float]
    val_loss: Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("train_loss", "val_loss"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.steps):
                raise ValueError(f"`{name}` has {len(given)} values for {len(self.steps)} steps.")


def read_pickle(
    filepath_or_buffer: Source,
    from_wandb: bool = False,
    schema_map: None = None,
    compression: str | None = "infer",
    storage_options: None = None,
) -> Frame:
    """A LogFrame from a pickle: a path, a URL, an open file, or an artifact of W&B.

    A pickle that holds anything but a frame is refused, and nothing of it runs.
    """
    _check_unused(schema_map=schema_map, storage_options=storage_options)
    if from_wandb:
        return frame_from_wandb(str(filepath_or_buffer))
    return _read(filepath_or_buffer, "pickle", compression)


def read_parquet(path: Source, schema_map: None = None) -> Frame:
    """A LogFrame from a Parquet file."""
    _check_unused(schema_map=schema_map)
    return _read(path, "parquet")


def read_csv(filepath_or_buffer: Source, schema_map: None = None) -> Frame:
    """A LogFrame from a CSV file."""
    _check_unused(schema_map=schema_map)
    return _read(filepath_or_buffer, "csv")


def _read(source: Source, kind: Format, compression: str | None = "infer") -> Frame:
    try:
        return read_logframe(source, kind, compression=compression)
    except SondeError as error:
        if isinstance(error.__cause__, OSError):
            raise error.__cause__ from None
        raise SchemaException(str(error)) from error


def _check_unused(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise SondeError(f"`{name}` is not supported: rename the columns of the frame instead.")
