"""Curves: scalars, metrics and statistics over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sonde._errors import SondeError
from sonde.plot import heatmaps, theme
from sonde.plot.source import RunLike, Sites, ask, opened, site_ids, steps_of
from sonde.plot.time_axis import STEPS, FigureClock
from sonde.views import ids
from sonde.views.questions import HeatQuestion, LinesQuestion
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.specs import NONFINITE, Heat, Lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LEGEND = 12


def lines(
    run: RunLike,
    name: str | Sequence[str] = "loss",
    *,
    module: str | Sequence[str] | None = None,
    site: Sites | None = None,
    kind: str | None = None,
    steps: int | tuple[int, int] | None = None,
    phase: str | None = None,
    rank: int | None = None,
    columns: int = 1024,
    axis: str | None = None,
    log: bool = False,
    wrap: int = 3,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """Scalars by name over steps; metrics with `module` (a path, several, or "*"); with `site` (a
    pattern or several) statistics of tensors, one panel for each statistic.

    Where several steps share a point, the band spans their lowest and highest value. Steps with NaN
    or Inf have a red mark at the bottom. `axis` is "time" or a logged scalar such as "epoch", in
    place of steps.
    """
    first, last = steps_of(steps)
    names = (name,) if isinstance(name, str) else tuple(name)
    subject = opened(run)
    clock = FigureClock.of(subject, axis)
    if site is not None:
        heats = _statistics(subject, names, site, kind, (first, last), phase, rank, columns)
        with theme.styled() as plt:
            figure, axes = theme.several(plt, ax, len(heats), wrap)
            for each, (heat, rows) in zip(axes, heats, strict=True):
                draw_statistic(each, heat, rows, clock, log=log)
        return figure
    modules = () if module is None else (module,) if isinstance(module, str) else tuple(module)
    question = LinesQuestion(
        run="run",
        name=names,
        module=tuple("*" if path == "*" else ids.of_name(path) for path in modules),
        phase=phase,
        rank=rank,
        first=first,
        last=last,
        columns=columns,
    )
    spec: Lines = ask(subject, "lines", question)
    if not spec.lines:
        raise SondeError(
            f"This run has no scalar or metric {', '.join(f'`{n}`' for n in names)} in these steps."
            " See `run.scalars()` and `run.metrics()`."
        )
    with theme.styled() as plt:
        figure, (only,) = theme.several(plt, ax, 1, 1, size=(4.4, 2.6))
        draw(only, spec, clock, log=log)
    return figure


def draw_statistic(
    ax: Axes,
    spec: Heat,
    rows: Sequence[int],
    clock: FigureClock = STEPS,
    *,
    log: bool = False,
    style: str = "-",
) -> None:
    """Draw rows of a heatmap as lines: one statistic of several tensors. With the style `.` each
    number is a point."""
    values = heatmaps.grid(spec)
    flags = spec.flags.reshape(values.shape)
    x = clock.middles(spec.columns)
    for i, row in enumerate(rows):
        label = heatmaps.row_label(spec.rows[row])
        ax.plot(x, values[row], style, color=f"C{i % 10}", label=label)
        theme.mark_nonfinite(ax, x[flags[row] == NONFINITE])
    if log:
        ax.set_yscale("log")
    ax.set_xlabel(clock.label)
    ax.set_ylabel(spec.label)
    if len(rows) <= _MAX_LEGEND:
        ax.legend()
    theme.title(ax, spec.title, spec.notes)


def _statistics(
    subject: OpenedRun,
    names: Sequence[str],
    site: Sites,
    kind: str | None,
    window: tuple[int | None, int | None],
    phase: str | None,
    rank: int | None,
    columns: int,
) -> list[tuple[Heat, list[int]]]:
    """For each statistic and kind the heatmap of the kind, and its rows that are meant."""
    wanted = site_ids(subject, site, kind)
    kinds = dict.fromkeys(subject.site(one).site.kind for one in wanted)
    found = []
    for of_kind in kinds:
        for name in names:
            question = HeatQuestion(
                run="run",
                kind=of_kind,
                stat=name,
                phase=phase or "train",
                rank=rank,
                first=window[0],
                last=window[1],
                columns=columns,
                rows=8192,
            )
            spec: Heat = ask(subject, "heat", question)
            place = {row.site: i for i, row in enumerate(spec.rows)}
            found.append((spec, [place[one] for one in wanted if one in place]))
    return found


def draw(ax: Axes, spec: Lines, clock: FigureClock, *, log: bool = False) -> None:
    """Draw the spec of lines."""
    for i, line in enumerate(spec.lines):
        part = slice(line.start, line.start + line.length)
        colour = f"C{i % 10}"
        x = clock.at((spec.first[part] + spec.until[part]) / 2)
        label = line.label if line.phase in {"", "train"} else f"{line.label} ({line.phase})"
        ax.plot(x, spec.mean[part], color=colour, label=label)
        if (spec.count[part] > 1).any():
            ax.fill_between(
                x, spec.low[part], spec.high[part], color=colour, alpha=0.2, linewidth=0
            )
        bad = x[spec.flags[part] == NONFINITE]
        theme.mark_nonfinite(ax, bad)
    if log:
        ax.set_yscale("log")
    ax.set_xlabel(clock.label)
    if len(spec.lines) == 1:
        ax.set_ylabel(spec.lines[0].label)
    elif len(spec.lines) <= _MAX_LEGEND:
        ax.legend()
    theme.title(ax, "", spec.notes)
