"""Accessors: attributes of a run that parts above the store provide, such as `run.plot`.

The store does not import them: their places are names, and the first use loads one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

    from sonde.plot.accessor import RunPlots

_PLACES: Final = {
    "plot": ("sonde.plot.accessor", "RunPlots"),
    "logframe": ("sonde.logframe.of_run", "of_run"),
}
"""Functions that take a run, by what they are for."""


class Accessors:
    """What a run offers besides its numbers."""

    @property
    def plot(self) -> RunPlots:
        """Figures of this run: `run.plot.heatmap("output")`. See `sonde.plot`."""
        found: RunPlots = _load("plot")(self)
        return found

    def to_logframe(self, **options: object) -> pd.DataFrame:
        """This run as a LogFrame of Track & Visualize. See `sonde.logframe.of_run`."""
        return _load("logframe")(self, **options)


def _load(name: str) -> Callable[..., Any]:
    module, attribute = _PLACES[name]
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found
