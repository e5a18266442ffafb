"""`interactive`: the widget of Sonde for a LogFrame, opened at what a figure would show."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sonde._errors import SondeWarning
from sonde._require import require
from sonde.compat.tandv.track.common import TrainingStats
from sonde.compat.tandv.viz import plots
from sonde.compat.tandv.viz.selection import panels
from sonde.logframe.schema import Frame
from sonde.logframe.selection import metrics_of, rows_of
from sonde.logframe.to_run import site_of
from sonde.notebook.frames import views_of

if TYPE_CHECKING:
    from anywidget import AnyWidget

Scalars = dict[str, dict[int, float]]

_MOST: Final = 24
_WITH_STATS: Final = (plots.exp_hist, plots.scalar_line)


def interactive(
    f: Callable[..., object],
    train_stats: TrainingStats | Mapping[str, Any] | None = None,
    width: int = 1500,
    mouse_sensitivity: int = 10000,
    **kwargs: Any,
) -> AnyWidget:
    """A widget of the LogFrame `df`, opened at what `f(**kwargs)` would draw.

    With `train_stats` the loss is its timeline: a click there moves the step. `width` and
    `mouse_sensitivity` have no effect: the widget is as wide as the cell.
    """
    del width, mouse_sensitivity
    show = _SHOWN.get(f)
    if show is None:
        names = ", ".join(each.__name__ for each in _SHOWN)
        raise ValueError(f"`f` must be one of viz.{names}, got {getattr(f, '__name__', f)!r}.")
    if train_stats is not None and f not in _WITH_STATS:
        warnings.warn(
            "Training statistics go with `exp_hist` and `scalar_line`; here they are the timeline.",
            SondeWarning,
            stacklevel=2,
        )
    return show(kwargs.pop("df"), _losses(train_stats), kwargs)


def _exponents(frame: Frame, scalars: Scalars, options: dict[str, Any]) -> AnyWidget:
    step = options.get("step")
    views, found = views_of(frame, scalars), []
    for _, rows in panels(frame, options["layer"], options["tt"], step):
        meta = rows["metadata"].iloc[0]
        site = site_of(str(meta["name"]), str(meta["tensor_type"]))
        found.append(views.exponents(site.name, step=step))
    return _stacked(found)


def _lines(frame: Frame, scalars: Scalars, options: dict[str, Any]) -> AnyWidget:
    """Each statistic of each layer is a scalar of the run, to be chosen in the widget, too."""
    chosen: Scalars = {}
    layer, tt = options["layer"], options["tt"]
    for key, rows in panels(frame, layer, tt):
        steps = rows["metadata", "step"].to_numpy()
        own = layer if isinstance(layer, str) else key
        title = own if isinstance(tt, str) else f"{own}/{key}"
        for metric in metrics_of(frame, options.get("scalar_metric")):
            values = rows["scalar_stats", metric].astype(float).groupby(steps).mean()
            chosen[f"{title}/{metric}"] = values.to_dict()
    views = views_of(frame, {**scalars, **chosen})
    return _stacked([views.lines(name) for name in list(chosen)[:_MOST]])


def _stacked(found: list[AnyWidget]) -> AnyWidget:
    """One widget, or several one below the other."""
    return found[0] if len(found) == 1 else require("ipywidgets", extra="notebook").VBox(found)


def _heatmap(frame: Frame, scalars: Scalars, options: dict[str, Any]) -> AnyWidget:
    (metric,) = metrics_of(frame, options["scalar_metric"])
    rows = rows_of(frame, None, options["tt"], every=int(options.get("inc", 1)))
    meta = rows["metadata"].iloc[0]
    site = site_of(str(meta["name"]), str(meta["tensor_type"]))
    return views_of(rows, scalars).heatmap(site.kind, metric)


_SHOWN: Final[dict[Callable[..., object], Callable[..., AnyWidget]]] = {
    plots.exp_hist: _exponents,
    plots.scalar_line: _lines,
    plots.scalar_global_heatmap: _heatmap,
}


def _losses(stats: TrainingStats | Mapping[str, Any] | None) -> Scalars:
    if stats is None:
        return {}
    given = TrainingStats(**stats) if isinstance(stats, Mapping) else stats
    found = {name: values for name, values in asdict(given).items() if values is not None}
    steps = found.pop("steps")
    return {name: dict(zip(steps, values, strict=True)) for name, values in found.items()}
