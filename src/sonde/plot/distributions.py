"""Distributions: histograms and exponents at one step, kymographs over all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sonde._errors import SondeError
from sonde.plot import theme
from sonde.plot.source import RunLike, Sites, ask, opened, site_ids, steps_of
from sonde.plot.time_axis import FigureClock
from sonde.views.questions import KymographQuestion, SectionQuestion
from sonde.views.specs import F64, CrossSection, FormatLoss, Kymograph, ScaleChoice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure

_NEAR: Final = 20
"""Exponents between values and a limit that is still shown."""
_FORMAT_COLOURS: Final = ("#dd8452", "#55a868", "#8172b3", "#937860", "#da8bc3")


def histogram(
    run: RunLike,
    site: Sites,
    kind: str | None = None,
    step: int | None = None,
    *,
    phase: str = "train",
    rank: int | None = None,
    cells: int = 64,
    scale: str = "linear",
    wrap: int = 3,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """How the values of a site (or of each of several) are spread at a step, the last by default.

    The height of a bar is the share of values per unit of value, so areas add up to the share that
    the axis covers. `scale` is "linear", "asinh" or "log" (magnitudes).
    """
    specs = _sections(run, site, kind, step, phase, rank, cells=cells, scale=scale)
    with theme.styled() as plt:
        figure, axes = theme.several(plt, ax, len(specs), wrap)
        for each, spec in zip(axes, specs, strict=True):
            draw_histogram(each, spec)
    return figure


def exponents(
    run: RunLike,
    site: Sites,
    kind: str | None = None,
    step: int | None = None,
    *,
    formats: Sequence[str] = ("float8_e4m3fn", "float16"),
    phase: str = "train",
    rank: int | None = None,
    style: str = "bar",
    wrap: int = 3,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """Share of values by power of two at a step, with the limits of number formats.

    Column n holds values with 2**n <= |x| < 2**(n + 1). Lines mark the largest value (solid), the
    smallest normal (dashed) and the smallest subnormal (dotted) of each format. `style` is "bar",
    "line" or "kde": the shares smoothed over neighbouring powers of two.
    """
    check_style(style)
    specs = _sections(run, site, kind, step, phase, rank, formats=tuple(formats))
    with theme.styled() as plt:
        figure, axes = theme.several(plt, ax, len(specs), wrap, sharey=True)
        for i, (each, spec) in enumerate(zip(axes, specs, strict=True)):
            draw_exponents(each, spec, style, has_formats=bool(formats), has_legend=i == 0)
    return figure


def kymograph(
    run: RunLike,
    site: Sites,
    kind: str | None = None,
    *,
    steps: int | tuple[int, int] | None = None,
    phase: str = "train",
    rank: int | None = None,
    columns: int = 512,
    cells: int = 96,
    axis: str | None = None,
    scale: ScaleChoice = "auto",
    wrap: int = 2,
    ax: Axes | Sequence[Axes] | None = None,
) -> Figure:
    """How the values of a site (or of each of several) are spread, over the steps.

    Brightness is density per value; the line is the median, the dotted ones the 1 % and 99 %
    quantiles. Steps with NaN or Inf have a red mark at the bottom. `axis` is "time" or a logged
    scalar such as "epoch", in place of steps.
    """
    first, last = steps_of(steps)
    subject = opened(run)
    specs = [
        ask(
            subject,
            "kymograph",
            KymographQuestion(
                run="run",
                site=one,
                phase=phase,
                rank=rank,
                first=first,
                last=last,
                columns=columns,
                cells=cells,
                scale=scale,
            ),
        )
        for one in site_ids(subject, site, kind)
    ]
    with theme.styled() as plt:
        figure, axes = theme.several(plt, ax, len(specs), wrap)
        clock = FigureClock.of(subject, axis)
        for each, spec in zip(axes, specs, strict=True):
            draw_kymograph(each, spec, clock)
    return figure


def draw_histogram(ax: Axes, spec: CrossSection) -> None:
    """Draw a cross-section's histogram."""
    ax.stairs(density(spec), spec.edges, fill=True, color=theme.BAR)
    label_density(ax, spec)
    ax.set_title(_title(spec), loc="left")


def density(spec: CrossSection) -> F64:
    """Share of values per unit of value in each cell."""
    return spec.counts / (spec.total or 1.0) / np.diff(spec.edges)


def label_density(ax: Axes, spec: CrossSection) -> None:
    """Put the axes of a histogram in place."""
    if spec.scale in {"log", "exponent"}:
        ax.set_xscale("log")
    elif spec.scale == "asinh":
        ax.set_xscale("asinh", linear_width=float(np.abs(spec.edges).max()) / 256 or 1.0)
    ax.set_xlim(spec.edges[0], spec.edges[-1])
    ax.set_ylabel("density")
    ax.set_xlabel("|value|" if spec.scale in {"log", "exponent"} else "value")


def check_style(style: str) -> None:
    """Raise if exponents cannot be drawn in this style."""
    if style not in {"bar", "line", "kde"}:
        raise SondeError(f"`style` must be 'bar', 'line' or 'kde', got {style!r}.")


def draw_exponents(
    ax: Axes,
    spec: CrossSection,
    style: str,
    *,
    has_formats: bool,
    has_legend: bool,
    limits: tuple[bool, bool, bool] = (True, True, True),
) -> None:
    """Draw a cross-section's exponents and the limits of its formats: the largest value, the
    smallest normal and the smallest subnormal, as far as `limits` says."""
    shares = spec.exponent_counts / (spec.total or 1.0)
    if style == "bar":
        ax.bar(spec.exponents, shares, width=0.9, color=theme.BAR)
    elif style == "line":
        ax.plot(spec.exponents, shares, ".-", color=theme.BAR)
    else:
        x, smooth = _smoothed(spec.exponents.astype(np.float64), shares)
        ax.fill_between(x, smooth, color=theme.BAR, alpha=0.3, linewidth=0)
        ax.plot(x, smooth, color=theme.BAR)
    for colour, form in zip(_FORMAT_COLOURS, spec.formats if has_formats else (), strict=False):
        _draw_format(ax, form, colour, limits)
    ax.set_xlabel("exponent: $2^n \\leq |x| < 2^{n+1}$")
    ax.set_ylabel("share of values")
    apart = [
        f"{name} {count / (spec.total or 1.0):.2%}"
        for name, count in (
            ("zero", spec.zeros),
            ("NaN", spec.nans),
            ("Inf", spec.pos_infs + spec.neg_infs),
        )
        if count
    ]
    theme.title(ax, _title(spec), apart)
    ax.set_xlim(*_exponent_limits(spec, has_formats=has_formats))
    if has_formats and has_legend:
        ax.legend(loc="upper left")


def draw_kymograph(ax: Axes, spec: Kymograph, clock: FigureClock) -> QuadMesh:
    """Draw a kymograph's spec. Returns the image."""
    cells = len(spec.edges) - 1
    shown = spec.density.reshape(len(spec.columns.first), cells).T.astype(np.float64)
    image = ax.pcolormesh(
        clock.edges(spec.columns),
        spec.edges,
        np.where(shown > 0, shown, np.nan),
        cmap="magma",
        vmin=0,
        vmax=spec.max_density or 1.0,
        rasterized=True,
    )
    middle = clock.middles(spec.columns)
    if spec.scale in {"log", "exponent"}:
        ax.set_yscale("log")
    else:
        for values, style in ((spec.p50, "-"), (spec.p1, ":"), (spec.p99, ":")):
            ax.plot(middle, values, style, color="white", linewidth=0.8)
        if spec.scale == "asinh":
            ax.set_yscale("asinh", linear_width=float(np.abs(spec.edges).max()) / 256 or 1.0)
    bad = (spec.nans + spec.pos_infs + spec.neg_infs) > 0
    theme.mark_nonfinite(ax, middle[bad])
    ax.set_ylim(spec.edges[0], spec.edges[-1])
    ax.set_xlabel(clock.label)
    ax.set_ylabel("|value|" if spec.scale in {"log", "exponent"} else "value")
    theme.title(ax, spec.site.name, spec.notes)
    return image


def _sections(
    run: RunLike,
    site: Sites,
    kind: str | None,
    step: int | None,
    phase: str,
    rank: int | None,
    *,
    cells: int = 64,
    scale: Any = "asinh",  # checked by the view
    formats: tuple[str, ...] = (),
) -> list[CrossSection]:
    subject = opened(run)
    return [
        ask(
            subject,
            "section",
            SectionQuestion(
                run="run",
                site=one,
                step=step,
                phase=phase,
                rank=rank,
                cells=cells,
                scale=scale,
                format=formats,
            ),
        )
        for one in site_ids(subject, site, kind)
    ]


def _title(spec: CrossSection) -> str:
    return f"{theme.cut(spec.site.name, 34)} · step {spec.step}"


def _smoothed(exponents: F64, shares: F64) -> tuple[F64, F64]:
    """A density over the exponent with the same area: each share spread as a normal curve."""
    if len(exponents) == 0:
        return exponents, shares
    x = np.linspace(exponents[0] - 3, exponents[-1] + 3, 16 * (len(exponents) + 6))
    curves = np.exp(-0.5 * (x[:, None] - exponents) ** 2) / np.sqrt(2 * np.pi)
    return x, curves @ shares


def _draw_format(ax: Axes, form: FormatLoss, colour: str, limits: tuple[bool, bool, bool]) -> None:
    lost = [
        f"{name} {share:.1%}"
        for name, share in (("under", form.underflow), ("over", form.overflow))
        if share
    ]
    label = f"{form.title} ({', '.join(lost)})" if lost else form.title
    marks = (
        (form.top_exponent + 0.5, "-"),
        (form.normal_exponent - 0.5, "--"),
        (form.smallest_exponent - 0.5, ":"),
    )
    for (x, line), is_wanted in zip(marks, limits, strict=True):
        if is_wanted:
            ax.axvline(x, linestyle=line, color=colour, label=label, linewidth=1)
            label = "_nolegend_"


def _exponent_limits(spec: CrossSection, *, has_formats: bool) -> tuple[float, float]:
    """The occupied exponents and the limits of formats near them."""
    filled = spec.exponents[spec.exponent_counts > 0]
    low, high = (int(filled.min()), int(filled.max())) if len(filled) else (-4, 4)
    if has_formats:
        marks = [f.top_exponent for f in spec.formats] + [f.smallest_exponent for f in spec.formats]
        near = [m for m in marks if low - _NEAR <= m <= high + _NEAR]
        low, high = min([low, *near]), max([high, *near])
    return low - 1.5, high + 1.5
