"""The figures of one run: `run.plot`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sonde import plot
from sonde.store.reading.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class RunPlots:
    """`run.plot.heatmap(...)` is `sonde.plot.heatmap(run, ...)`, and so on."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Callable[..., Figure]:
        if name not in plot.__all__:
            known = ", ".join(plot.__all__)
            raise AttributeError(f"There is no figure `{name}`. There are: {known}.")
        return partial(getattr(plot, name), self._run)

    def __dir__(self) -> list[str]:
        return sorted(plot.__all__)
