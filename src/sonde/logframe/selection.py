"""Rows of a LogFrame: by layer, tensor type and step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from sonde._errors import SondeError
from sonde.logframe.schema import Frame, validate

Layers = str | Sequence[str] | re.Pattern[str]
TensorTypes = str | Sequence[str] | None

_SPELLINGS: Final = {"Weight": "Weights", "Weight_Gradient": "Weight_Gradients"}
"""Types as the document of Track & Visualize spells them, and as its files do."""


class NoRowsError(SondeError):
    """The LogFrame has no such rows."""


def rows_of(
    frame: Frame,
    layer: Layers | None,
    tensor_type: TensorTypes,
    step: int | None = None,
    every: int = 1,
) -> Frame:
    """The rows of layers (a name, several, or a pattern that their beginning matches) and types.

    `Optimiser_State` stands for all states; None for all layers and types.

    Raises:
        NoRowsError: There are none.
    """
    validate(frame)
    meta = frame["metadata"]
    chosen = _is_type(meta["tensor_type"], tensor_type) & (meta["step"] % every == 0)
    if layer is not None:
        chosen &= _is_layer(meta["name"], layer)
    if step is not None:
        chosen &= meta["step"] == step
    if not chosen.any():
        at = "" if step is None else f" at step {step}"
        raise NoRowsError(
            f"No row of the LogFrame has layer {layer!r} and type {tensor_type!r}{at}."
        )
    return frame[chosen]


def split(rows: Frame, column: str) -> list[tuple[str, Frame]]:
    """The rows of each value of a column of `metadata`, in order of appearance."""
    keys = rows["metadata", column]
    return [(str(key), rows[keys == key]) for key in dict.fromkeys(keys)]


def metrics_of(frame: Frame, asked: str | Sequence[str] | None) -> list[str]:
    """The statistics that are meant; all by default.

    Raises:
        NoRowsError: The frame has no such statistic.
    """
    known = [str(name) for group, name in frame.columns if group == "scalar_stats"]
    if asked is None:
        return known
    names = [asked] if isinstance(asked, str) else list(asked)
    if unknown := [name for name in names if name not in known]:
        raise NoRowsError(f"The LogFrame has no `{unknown[0]}`. It has: {', '.join(known)}.")
    return names


def _is_type(types: Any, asked: TensorTypes) -> Any:
    if asked is None:
        return types.notna()
    names = [asked] if isinstance(asked, str) else list(asked)
    spelled = [_SPELLINGS.get(name, name) for name in names]
    states = types.str.startswith("Optimiser_State.") & ("Optimiser_State" in spelled)
    return types.isin([*spelled, *names]) | states


def _is_layer(names: Any, layer: Layers) -> Any:
    if isinstance(layer, re.Pattern):
        return names.map(lambda name: layer.match(str(name)) is not None).astype(bool)
    return names.isin([layer] if isinstance(layer, str) else list(layer))
