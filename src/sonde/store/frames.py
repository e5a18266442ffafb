"""Frames: answers as pandas DataFrames where pandas is installed, else as Arrow tables."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal, get_args

import pyarrow as pa

from sonde._errors import SondeError

FrameKind = Literal["pandas", "arrow"]

Frame = Any
"""pandas.DataFrame or pyarrow.Table. Any: neither has types, and pandas may not be installed."""


def default_kind() -> FrameKind:
    return "pandas" if importlib.util.find_spec("pandas") is not None else "arrow"


def check_kind(kind: str | None) -> FrameKind | None:
    """The kind asked for, if there is such a kind and its library is installed."""
    if kind is None:
        return None
    if kind not in get_args(FrameKind):
        raise SondeError(f"`frame` must be 'pandas' or 'arrow', got {kind!r}.")
    if kind == "pandas" and default_kind() != "pandas":
        raise SondeError("pandas is not installed. Install it with: pip install 'sonde[pandas]'")
    return "pandas" if kind == "pandas" else "arrow"


def to_frame(table: pa.Table, kind: FrameKind) -> Frame:
    """The table as asked for."""
    return table.to_pandas() if kind == "pandas" else table
