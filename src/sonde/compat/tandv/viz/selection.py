"""Panels of a figure: what `layer` and `tt` stand for."""

from __future__ import annotations

from sonde._errors import SondeError
from sonde.logframe.schema import Frame
from sonde.logframe.selection import Layers, NoRowsError, TensorTypes, rows_of, split

QueryException = NoRowsError


class FacetException(SondeError):  # noqa: N818  # the name that Track & Visualize has for it
    """A figure would need panels for layers and for tensor types at once."""


def panels(
    frame: Frame, layer: Layers, tt: TensorTypes, step: int | None = None
) -> list[tuple[str, Frame]]:
    """The rows of each panel with its title: one for each layer, or for each tensor type."""
    is_by_layer = not isinstance(layer, str)
    if is_by_layer and not isinstance(tt, str):
        raise FacetException("Give one layer or one tensor type: panels are for one of the two.")
    return split(rows_of(frame, layer, tt, step), "name" if is_by_layer else "tensor_type")
