"""Accessors: attributes of a run that parts above the store provide, such as `run.plot`.

The store does not import them: their places are names, and the first use loads one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sonde._display import Displayed

if TYPE_CHECKING:
    import os

    import pandas as pd

    from sonde.notebook.views import RunViews
    from sonde.plot.accessor import RunPlots
    from sonde.present.report.writing import RunReport

from sonde.store.reading import replicas
from sonde.store.reading.replicas import RankDrift
from sonde.store.reading.stat_queries import QueryRunner

_PLACES: Final = {
    "plot": ("sonde.plot.accessor", "RunPlots"),
    "logframe": ("sonde.logframe.of_run", "of_run"),
    "view": ("sonde.notebook.views", "RunViews"),
    "report": ("sonde.present.report.writing", "write"),
}
"""Functions that take a run, by what they are for."""


class Accessors(Displayed):
    """What a run offers besides its numbers."""

    @property
    def plot(self) -> RunPlots:
        """Figures of this run: `run.plot.heatmap("output")`. See `sonde.plot`."""
        found: RunPlots = _load("plot")(self)
        return found

    @property
    def view(self) -> RunViews:
        """Views of this run as widgets in a notebook: `run.view.heatmap("output")`."""
        found: RunViews = _load("view")(self)
        return found

    def drift(self: QueryRunner) -> list[RankDrift]:
        """Replicas that differ between ranks, and ranks that train on the same batch."""
        return replicas.find(self)

    def to_logframe(self, **options: object) -> pd.DataFrame:
        """This run as a LogFrame of Track & Visualize. See `sonde.logframe.of_run`."""
        return _load("logframe")(self, **options)

    def to_html(self, path: str | os.PathLike[str], **options: object) -> RunReport:
        """Write this run as one HTML file that opens anywhere: `run.to_html("report.html")`.

        `max_mb` limits its size, `include` and `kinds` choose tensors, `compare_with` adds the
        comparison with other runs. The answer says what was left out. See
        `sonde.present.report.writing.write`.
        """
        found: RunReport = _load("report")(self, path, **options)
        return found


def _load(name: str) -> Callable[..., Any]:
    module, attribute = _PLACES[name]
    found: Callable[..., Any] = getattr(import_module(module), attribute)
    return found
