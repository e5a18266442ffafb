"""The three figures of `tandv.viz`, drawn as `sonde.plot` draws them, from a LogFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sonde.compat.tandv.viz.selection import FacetException, panels
from sonde.logframe import figures
from sonde.logframe.schema import Frame
from sonde.logframe.selection import Layers, TensorTypes, metrics_of, rows_of
from sonde.plot import curves, distributions, heatmaps, theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WRAP = 3


def exp_hist(
    df: Frame,
    layer: Layers,
    tt: TensorTypes,
    step: int,
    kind: str = "bar",
    dtype_annotation: bool | str | Sequence[str] = True,
    dtype_info: tuple[bool, bool, bool] = (True, True, True),
    col_wrap: int | None = None,
    figsize: tuple[float, float] | None = None,
    xtick_labelsize: float | None = None,
    xtick_rotation: float | None = None,
    fig_title: str | None = None,
    facet_kws: Mapping[str, Any] | None = None,
    sp_kws: Mapping[str, Any] | None = None,
    legend_kws: Mapping[str, Any] | None = None,
) -> Figure:
    """Share of values by power of two at a step, with the limits of number formats.

    `True` shows those of the logged dtype. `facet_kws` and `sp_kws` have no effect.
    """
    del facet_kws, sp_kws
    if kind not in {"bar", "line", "kde"}:
        raise ValueError(f"`kind` must be 'bar', 'line' or 'kde', got {kind!r}.")
    found = panels(df, layer, tt, step)
    with theme.styled() as plt:
        figure, axes = theme.several(plt, None, len(found), col_wrap or _WRAP, sharey=True)
        for ax, (_, rows) in zip(axes, found, strict=True):
            spec = figures.cross_section(rows, dtype_annotation)
            has_formats = bool(dtype_annotation)
            distributions.draw_exponents(
                ax, spec, kind, has_formats=has_formats, has_legend=has_formats, limits=dtype_info
            )
            for at, label in figures.ends(rows):
                ax.annotate(label, (at, 0), (0, 2), textcoords="offset points", ha="center")
            ax.tick_params("x", labelsize=xtick_labelsize, rotation=xtick_rotation or 0)
            if legend_kws and has_formats:
                ax.legend(**legend_kws)
        return _finished(figure, figsize, fig_title)


def scalar_line(
    df: Frame,
    layer: Layers,
    tt: TensorTypes,
    scalar_metric: str | Sequence[str] | None = None,
    x: tuple[str, str] = ("metadata", "step"),
    col_wrap: int | None = None,
    kind: str = "line",
    figsize: tuple[float, float] | None = None,
    facet_kws: Mapping[str, Any] | None = None,
    **kwargs: object,
) -> Figure:
    """Statistics over steps, a line each; one panel for each layer or tensor type."""
    del facet_kws, kwargs
    _check_axis("x", x, ("metadata", "step"))
    if kind not in {"line", "scatter"}:
        raise ValueError(f"`kind` must be 'line' or 'scatter', got {kind!r}.")
    metrics = metrics_of(df, scalar_metric)
    found = panels(df, layer, tt)
    with theme.styled() as plt:
        figure, axes = theme.several(plt, None, len(found), col_wrap or _WRAP)
        for ax, (title, rows) in zip(axes, found, strict=True):
            spec = figures.series(rows, metrics, title)
            style = "." if kind == "scatter" else "-"
            curves.draw_statistic(ax, spec, range(len(metrics)), style=style)
        return _finished(figure, figsize, None)


def scalar_global_heatmap(
    df: Frame,
    tt: TensorTypes,
    scalar_metric: str | Sequence[str] | None,
    inc: int = 1,
    x: tuple[str, str] = ("metadata", "step"),
    y: tuple[str, str] = ("metadata", "name"),
    figsize: tuple[float, float] | None = None,
    col_wrap: int | None = None,
    cmap: str | None = None,
    **kwargs: object,
) -> Figure:
    """One statistic of all layers, at every `inc`-th step."""
    del col_wrap, kwargs
    _check_axis("x", x, ("metadata", "step"))
    _check_axis("y", y, ("metadata", "name"))
    if not isinstance(tt, str) and not isinstance(scalar_metric, str):
        raise FacetException("Give one tensor type and one statistic.")
    if inc < 1:
        raise ValueError(f"`inc` must be at least 1, got {inc}.")
    if not isinstance(tt, str) or not isinstance(scalar_metric, str):
        raise NotImplementedError("A heatmap shows one tensor type and one statistic.")
    (metric,) = metrics_of(df, scalar_metric)
    spec = figures.heat(rows_of(df, None, tt, every=inc), metric)
    with theme.styled() as plt:
        size = figsize or (5.2, min(max(0.13 * len(spec.rows) + 0.9, 1.8), 9.0))
        figure, ax = theme.one(plt, None, size)
        heatmaps.draw(ax, spec, cmap=cmap)
        return figure


def _check_axis(name: str, given: tuple[str, str], only: tuple[str, str]) -> None:
    if tuple(given) != only:
        raise NotImplementedError(f"`{name}` must be {only}, got {given}.")


def _finished(figure: Figure, size: tuple[float, float] | None, title: str | None) -> Figure:
    if size is not None:
        figure.set_size_inches(*size)
    if title is not None:
        figure.suptitle(title)
    return figure
