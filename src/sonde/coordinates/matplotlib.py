"""The coordinate check as a figure: each term against width, one line per module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from sonde._errors import SondeError
from sonde._require import require
from sonde.coordinates.model import TERMS, Coordinates

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES: Final = {
    "effective": r"own update  $(W_t - W_0)\,x_t$",
    "propagating": r"earlier updates  $W_0\,(x_t - x_0)$",
}


def plot(checks: Coordinates | Mapping[str, Coordinates], path: str | os.PathLike[str]) -> None:
    """Draw one check, or several by name, into an image whose format its name says."""
    try:
        require("matplotlib", extra="plots")
    except ImportError as error:
        raise SondeError(str(error)) from None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    several = {"": checks} if isinstance(checks, Coordinates) else dict(checks)
    figure = Figure(figsize=(9, 3.1 * len(several) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(several), len(TERMS), squeeze=False, sharex=True, sharey="col")
    for row, (name, check) in zip(axes, several.items(), strict=True):
        for axis, term in zip(row, TERMS, strict=True):
            _draw(axis, check, term)
            axis.set_title(f"{name}: {_TITLES[term]}" if name else _TITLES[term], fontsize=10)
    for axis in axes[-1]:
        axis.set_xlabel("width")
    try:
        figure.savefig(os.fspath(path), dpi=120)
    except (OSError, ValueError) as error:
        raise SondeError(f"Cannot write `{os.fspath(path)}`: {error}.") from error


def _draw(axis: Axes, check: Coordinates, term: str) -> None:
    modules = list(dict.fromkeys(line.module for line in check.lines))
    for line in check.lines:
        if line.term == term and all(v > 0 for v in line.values):
            label = f"{line.module}  {line.slope:+.2f}"
            colour = f"C{modules.index(line.module) % 10}"
            axis.plot(check.widths, line.values, "o-", color=colour, markersize=4, label=label)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_ylabel("per coordinate", fontsize=9)
    axis.grid(visible=True, alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(title="module, slope", fontsize=8, title_fontsize=8)
