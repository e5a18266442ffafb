"""Frames: answers as DataFrames of pandas or Polars, or as Arrow tables."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal, get_args

import pyarrow as pa

from sonde._errors import SondeError

FrameKind = Literal["pandas", "polars", "arrow"]

Frame = Any
"""pandas.DataFrame, polars.DataFrame or pyarrow.Table. Any: the first two may not be installed."""


def default_kind() -> FrameKind:
    return "pandas" if _is_installed("pandas") else "arrow"


def check_kind(kind: str | None) -> FrameKind | None:
    """The kind asked for, if there is such a kind and its library is installed."""
    if kind is None:
        return None
    for known in get_args(FrameKind):
        if kind == known:
            if kind != "arrow" and not _is_installed(kind):
                raise SondeError(
                    f"{kind} is not installed. Install it with: pip install 'sonde[{kind}]'"
                )
            found: FrameKind = known
            return found
    raise SondeError(f"`frame` must be 'pandas', 'polars' or 'arrow', got {kind!r}.")


def to_frame(table: pa.Table, kind: FrameKind) -> Frame:
    """The table as asked for."""
    if kind == "polars":
        import polars as pl

        return pl.from_arrow(table)
    return table.to_pandas() if kind == "pandas" else table


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None
