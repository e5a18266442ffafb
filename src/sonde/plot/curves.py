"""Curves: scalars, metrics and statistics over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sonde._errors import SondeError
from sonde.plot import theme
from sonde.plot.source import RunLike, ask, opened, steps_of
from sonde.views import ids
from sonde.views.questions import LinesQuestion
from sonde.views.specs import NONFINITE, Lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LEGEND = 12


def lines(
    run: RunLike,
    name: str | Sequence[str] = "loss",
    *,
    module: str | Sequence[str] | None = None,
    steps: int | tuple[int, int] | None = None,
    phase: str | None = None,
    rank: int | None = None,
    columns: int = 1024,
    log: bool = False,
    ax: Axes | None = None,
) -> Figure:
    """Scalars by name, or with `module` (a path, several, or "*") metrics of modules, over steps.

    Where several steps share a point, the band spans their lowest and highest value. Steps with NaN
    or Inf have a red mark at the bottom.
    """
    first, last = steps_of(steps)
    names = (name,) if isinstance(name, str) else tuple(name)
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
    spec: Lines = ask(opened(run), "lines", question)
    if not spec.lines:
        raise SondeError(
            f"This run has no scalar or metric {', '.join(f'`{n}`' for n in names)} in these steps."
            " See `run.scalars()` and `run.metrics()`."
        )
    with theme.styled() as plt:
        figure, ax = theme.one(plt, ax, (4.4, 2.6))
        draw(ax, spec, log=log)
    return figure


def draw(ax: Axes, spec: Lines, *, log: bool = False) -> None:
    """Draw the spec of lines."""
    for i, line in enumerate(spec.lines):
        part = slice(line.start, line.start + line.length)
        colour = f"C{i % 10}"
        x = (spec.first[part] + spec.until[part]) / 2
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
    ax.set_xlabel("step")
    if len(spec.lines) == 1:
        ax.set_ylabel(spec.lines[0].label)
    elif len(spec.lines) <= _MAX_LEGEND:
        ax.legend()
    theme.title(ax, "", spec.notes)
