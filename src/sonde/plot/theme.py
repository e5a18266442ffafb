"""How figures look: one style, small enough for a column of a paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde._require import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: Final = {
    "font.size": 8.0,
    "axes.titlesize": 8.0,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7.0,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "figure.dpi": 144.0,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
}
NONFINITE: Final = "#d62728"
"""Cells and steps with NaN or Inf, in every figure."""
BAR: Final = "#4c72b0"
_PANEL: Final = (3.0, 2.2)


@contextmanager
def styled() -> Iterator[ModuleType]:
    """`matplotlib.pyplot` in the style of this module. Settings of the user are restored."""
    try:
        require("matplotlib", extra="plots")
    except ImportError as error:
        raise SondeError(str(error)) from None
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        yield plt


def one(plt: ModuleType, ax: Axes | None, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """The axes given with their figure, or new ones."""
    if ax is None:
        figure, ax = plt.subplots(figsize=size, layout="constrained")
        return figure, ax
    return _figure_of(ax), ax


def several(
    plt: ModuleType,
    ax: Axes | Sequence[Axes] | None,
    n: int,
    wrap: int,
    *,
    size: tuple[float, float] = _PANEL,
    **options: object,
) -> tuple[Figure, list[Axes]]:
    """One axes for each of `n` panels: those given, or new ones with `wrap` panels in a row."""
    if ax is not None:
        from matplotlib.axes import Axes

        given = [ax] if isinstance(ax, Axes) else list(ax)
        if len(given) != n:
            raise SondeError(f"This figure has {n} panels, and `ax` holds {len(given)} axes.")
        return _figure_of(given[0]), given
    columns = max(min(wrap, n), 1)
    rows = -(-n // columns)
    whole = (size[0] * columns + 0.3, size[1] * rows + 0.2)
    figure, grid = plt.subplots(
        rows, columns, figsize=whole, squeeze=False, layout="constrained", **options
    )
    flat = list(grid.flat)
    for unused in flat[n:]:
        unused.set_visible(False)
    return figure, flat[:n]


def title(ax: Axes, text: str, notes: Sequence[str]) -> None:
    """A title on the left, with notes in grey in the lines below it."""
    ax.set_title("\n".join([*([text] if text else []), *([""] if notes else [])]), loc="left")
    if notes:
        line = cut(" · ".join(notes), 110)
        ax.annotate(
            line,
            (0, 1),
            (0, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=6,
            color="#666666",
            annotation_clip=False,
        )


def mark_nonfinite(ax: Axes, steps: NDArray[np.float64]) -> None:
    """Red marks below the x axis at steps with NaN or Inf."""
    (marks,) = ax.plot(
        steps,
        np.zeros(len(steps)),
        "|",
        color=NONFINITE,
        markersize=5,
        transform=ax.get_xaxis_transform(),
        clip_on=False,
    )
    marks.set_in_layout(False)  # an empty line that is not clipped pushes panels apart


def cut(text: str, limit: int) -> str:
    """The text, with its middle left out where it is longer than that."""
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"


def _figure_of(ax: Axes) -> Figure:
    found = ax.get_figure(root=True)
    if found is None:
        raise SondeError("`ax` belongs to no figure. Give axes of a figure, such as plt.gca().")
    return found
