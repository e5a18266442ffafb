"""Heatmaps: every layer by step, coloured by one statistic or metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sonde.plot import theme
from sonde.plot.source import RunLike, ask, opened, steps_of
from sonde.plot.time_axis import STEPS, FigureClock
from sonde.views import ids
from sonde.views.questions import HeatQuestion
from sonde.views.specs import NONFINITE, NUMBER, Aggregate, Heat, HeatRow, Norm

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_LOG_SPAN: Final = 100.0
"""Ratio of the limits above which colours are logarithmic by default."""
_MAX_LABELS: Final = 60


def heatmap(
    run: RunLike,
    kind: str | None = None,
    stat: str = "rms",
    *,
    metric: str | None = None,
    under: str | None = None,
    steps: int | tuple[int, int] | None = None,
    phase: str = "train",
    rank: int | None = None,
    combine: Aggregate = "max_abs",
    normalize: Norm = "none",
    group_repeats: bool = False,
    columns: int = 512,
    axis: str | None = None,
    scale: str = "auto",
    cmap: str | None = None,
    ax: Axes | None = None,
) -> Figure:
    """One statistic of all sites of a kind (or one metric of all modules) over the steps.

    Cells with NaN or Inf are red. `under` keeps a module and all below it. Steps that share a
    column are combined by `combine`. `axis` is "time" or a logged scalar such as "epoch", in place
    of steps. `scale` is "linear", "log" or "auto".
    """
    first, last = steps_of(steps)
    subject = opened(run)
    subject.run.catalogue().kinds(kind)  # an unknown kind is an error with those there are
    question = HeatQuestion(
        run="run",
        kind=kind,
        stat=stat,
        metric=metric,
        under=None if under is None else ids.of_name(under),
        fold=group_repeats,
        phase=phase,
        rank=rank,
        first=first,
        last=last,
        columns=columns,
        aggregate=combine,
        norm=normalize,
    )
    spec: Heat = ask(subject, "heat", question)
    with theme.styled() as plt:
        figure, ax = theme.one(plt, ax, (5.2, height_of(spec)))
        draw(ax, spec, FigureClock.of(subject, axis), scale=scale, cmap=cmap)
    return figure


def height_of(spec: Heat) -> float:
    """Inches that the rows need."""
    return min(max(0.13 * len(spec.rows) + 0.9, 1.8), 9.0)


def draw(
    ax: Axes,
    spec: Heat,
    clock: FigureClock = STEPS,
    *,
    scale: str = "auto",
    cmap: str | None = None,
) -> QuadMesh:
    """Draw a heatmap's spec. Returns the image."""
    values = grid(spec)
    colours = cmap or ("RdBu_r" if spec.is_signed else "viridis")
    norm = _norm(spec, scale)
    edges = clock.edges(spec.columns)
    rows = np.arange(len(spec.rows) + 1) - 0.5
    image = ax.pcolormesh(edges, rows, values, cmap=colours, norm=norm, rasterized=True)
    bad = np.where(spec.flags.reshape(values.shape) == NONFINITE, 1.0, np.nan)
    if np.isfinite(bad).any():
        from matplotlib.colors import ListedColormap

        red = ListedColormap([theme.NONFINITE])
        ax.pcolormesh(edges, rows, bad, cmap=red, rasterized=True)
    ax.invert_yaxis()
    _label_rows(ax, spec)
    ax.set_xlabel(clock.label)
    theme.title(ax, spec.title, spec.notes)
    bar = ax.figure.colorbar(image, ax=ax, fraction=0.03, pad=0.01)
    bar.set_label(spec.label)
    return image


def grid(spec: Heat) -> NDArray[np.float64]:
    """The numbers of a heatmap, rows by columns; NaN where there is none."""
    shape = (len(spec.rows), len(spec.columns.first))
    values = spec.values.reshape(shape).astype(np.float64)
    return np.where(spec.flags.reshape(shape) == NUMBER, values, np.nan)


def _norm(spec: Heat, scale: str) -> Normalize:
    from matplotlib.colors import CenteredNorm, LogNorm, Normalize

    low, high = spec.limits.low, spec.limits.high
    if low is None or high is None:
        return Normalize(0, 1)
    if spec.is_signed:
        return CenteredNorm(0, max(abs(low), abs(high)) or 1.0)
    least = spec.limits.least_positive
    is_wide = least is not None and high > _LOG_SPAN * max(low, least)
    if scale == "log" or (scale == "auto" and is_wide):
        start = max(low, least or 0.0)
        return LogNorm(start, max(high, start * 2)) if start > 0 else Normalize(low, high)
    return Normalize(low, high if high > low else low + 1)


def _label_rows(ax: Axes, spec: Heat) -> None:
    """Label single rows while they can be read, else the groups."""
    if len(spec.rows) <= _MAX_LABELS:
        ax.set_yticks(range(len(spec.rows)), [row_label(row) for row in spec.rows])
        return
    middles = [g.start + (g.length - 1) / 2 for g in spec.groups]
    step = -(-len(middles) // _MAX_LABELS) if middles else 1
    labels = [g.label for g in spec.groups]
    ax.set_yticks(middles[::step], labels[::step])


def row_label(row: HeatRow) -> str:
    """Path and slot of a row, as short as they stay unique in a run."""
    if row.count > 1:
        return str(row.label)
    name = row.path or row.label
    if row.slot and row.slot not in {"0", ""}:
        name = f"{name}.{row.slot}" if name else row.slot
    return f"{name} #{row.call}" if row.call else name
