"""Two runs or more side by side: heatmaps and their difference, histograms in one panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sonde._errors import SondeError
from sonde.plot import distributions, heatmaps, theme
from sonde.plot.source import RunLike, Sites, ask_several, opened, site_ids, steps_of
from sonde.plot.time_axis import FigureClock
from sonde.views import ids
from sonde.views.questions import PairedHeatQuestion, PairedSectionQuestion
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.specs import Aggregate, Heat, Measure, PairedHeat, PairedSection, Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS: Final = ("#0072b2", "#c65102")
_MAX_RUNS: Final = 8


def compare(
    run: RunLike,
    *others: RunLike,
    kind: str | None = None,
    stat: str = "rms",
    site: Sites | None = None,
    step: int | None = None,
    measure: Measure = "ratio",
    names: Mapping[str, str] | None = None,
    under: str | None = None,
    steps: int | tuple[int, int] | None = None,
    phase: str = "train",
    combine: Aggregate = "max_abs",
    columns: int = 512,
    axis: str | None = None,
    scale: Scale = "linear",
    wrap: int = 3,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """Compare a run with others, layer by layer.

    With one other run: its heatmap beside that of the first, and log2(A/B). With several: the first
    run, then log2(A/B) with each. `measure="distance"` shows how far the values themselves are
    apart, in octaves, in place of the ratio. With `site`: histograms of both runs at `step`. `axis`
    is "time" or a scalar that the first run logged, in place of steps.
    """
    if not 0 < len(others) < _MAX_RUNS:
        raise SondeError(f"`compare` takes 1 to {_MAX_RUNS - 1} other runs, got {len(others)}.")
    runs = [opened(one) for one in (run, *others)]
    maps = tuple(f"{old}={new}" for old, new in (names or {}).items())
    if site is not None:
        return _histograms(runs, site, kind, step, maps, phase, scale, wrap, ax)
    first, last = steps_of(steps)
    specs: list[PairedHeat] = [
        ask_several(
            (runs[0], other),
            "paired_heat",
            PairedHeatQuestion(
                run="0",
                other="1",
                name=maps,
                kind=kind,
                stat=stat,
                under=None if under is None else ids.of_name(under),
                phase=phase,
                first=first,
                last=last,
                columns=columns,
                aggregate=combine,
                measure=measure,
            ),
        )
        for other in runs[1:]
    ]
    panels = panels_of(specs, [one.run.name for one in runs])
    clock = FigureClock.of(runs[0], axis)
    with theme.styled() as plt:
        size = (3.0, heatmaps.height_of(panels[0]))
        figure, axes = theme.several(plt, ax, len(panels), min(wrap, len(panels)), size=size)
        for i, (each, spec) in enumerate(zip(axes, panels, strict=True)):
            heatmaps.draw(each, spec, clock)
            if ax is None and i % wrap:
                each.set_yticklabels([])
    return figure


def panels_of(specs: Sequence[PairedHeat], names: Sequence[str]) -> list[Heat]:
    """The heatmaps of a figure, in order, each with its run in the title."""
    first = specs[0]
    one = replace(first.a, title=f"A: {names[0]}, {first.a.title}", notes=())
    if len(specs) == 1:
        two = replace(first.b, title=f"B: {names[1]}", notes=())
        return [one, two, first.difference]
    return [
        one,
        *(
            replace(s.difference, title=f"{s.difference.label}, B: {name}")
            for s, name in zip(specs, names[1:], strict=True)
        ),
    ]


def draw_histograms(ax: Axes, spec: PairedSection, names: Sequence[str]) -> None:
    """Draw the histograms of both runs on one axis, as density per value."""
    for part, name, colour in zip((spec.a, spec.b), names, _COLOURS, strict=True):
        heights = distributions.density(part)
        ax.stairs(heights, part.edges, color=colour, label=name, linewidth=1)
        ax.stairs(heights, part.edges, color=colour, fill=True, alpha=0.2)
    distributions.label_density(ax, spec.a)
    steps = f"step {spec.a.step}" if spec.a.step == spec.b.step else "other steps"
    moved = "" if spec.shift is None else f"{spec.shift:+.2f} octaves, distance {spec.w1:.2f}"
    theme.title(ax, f"{theme.cut(spec.a.site.name, 34)} · {steps}", [moved] if moved else [])
    ax.legend()


def _histograms(
    runs: Sequence[OpenedRun],
    site: Sites,
    kind: str | None,
    step: int | None,
    maps: tuple[str, ...],
    phase: str,
    scale: Scale,
    wrap: int,
    ax: Axes | Sequence[Axes] | None,
) -> Figure:
    chosen = site_ids(runs[0], site, kind)
    asked = [(one, other) for one in chosen for other in runs[1:]]
    specs: list[PairedSection] = [
        ask_several(
            (runs[0], other),
            "paired_section",
            PairedSectionQuestion(
                run="0", other="1", name=maps, site=one, step=step, phase=phase, scale=scale
            ),
        )
        for one, other in asked
    ]
    with theme.styled() as plt:
        figure, axes = theme.several(plt, ax, len(specs), wrap)
        for each, spec, (_, other) in zip(axes, specs, asked, strict=True):
            draw_histograms(each, spec, (runs[0].run.name, other.run.name))
    return figure
