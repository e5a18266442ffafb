"""Runs and watches as HTML, for the end of a cell: what there is, in a few lines."""

from __future__ import annotations

from html import escape
from typing import Final, Protocol, runtime_checkable

import numpy as np

from sonde.sketch.markup import table
from sonde.store.reading.run import Run
from sonde.views.answers import ANSWERS
from sonde.views.questions import RunQuestion, SparkQuestion
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.specs import RunHeader, Spark

_WIDTH: Final = 300
_HEIGHT: Final = 56


@runtime_checkable
class RecordingWatch(Protocol):
    """A watch, as its notebook display reads it."""

    @property
    def path(self) -> object: ...

    @property
    def current_step(self) -> int | None: ...

    @property
    def every(self) -> object: ...


def html_of(thing: object) -> str | None:
    """The HTML of a run or of a watch; None for a watch that records nothing."""
    if isinstance(thing, Run):
        return of_run(thing)
    if isinstance(thing, RecordingWatch) and thing.path is not None:
        return of_watch(thing)
    return None


def of_run(run: Run) -> str:
    """Name, state, steps and tensors of a run, and its loss."""
    subject = OpenedRun(run, "run")
    header: RunHeader = ANSWERS["run"](subject, RunQuestion(run="run"))  # type: ignore[assignment]
    spark: Spark = ANSWERS["spark"](subject, SparkQuestion(run="run"))  # type: ignore[assignment]
    kinds = ", ".join(f"{k.kind} ({k.sites:,})" for k in header.kinds)
    steps = "none" if header.last_step is None else f"{header.first_step:,} to {header.last_step:,}"
    rows = [
        ("status", header.status),
        ("model", header.model or "–"),
        ("steps", f"{steps}, {header.recorded_steps:,} recorded"),
        ("tensors", kinds or "none"),
        ("scalars", ", ".join(s.name for s in header.scalars[:8]) or "none"),
        ("path", run.path),
    ]
    return _card(f"Run {header.name}", rows, _line(spark), "sonde.show(run)")


def of_watch(watch: RecordingWatch) -> str:
    """What a watch records, and where."""
    rows = [
        ("step", f"{watch.current_step:,}"),
        ("records", f"every {watch.every}" if isinstance(watch.every, int) else "by a rule"),
        ("path", str(watch.path)),
    ]
    return _card("Watch", rows, "", "sonde.show(watch)")


def _card(title: str, rows: list[tuple[str, str]], chart: str, hint: str) -> str:
    return (
        '<div style="font-size:12px;line-height:1.5">'
        f"<strong>{escape(title)}</strong>"
        '<div style="display:flex;gap:24px;align-items:flex-start">'
        f"{table(rows)}{chart}</div>"
        f'<div style="opacity:.7">Explore it: <code>{escape(hint)}</code></div></div>'
    )


def _line(spark: Spark) -> str:
    """The loss as a line; where it is not finite there is a gap."""
    y = np.where(np.isfinite(spark.y), spark.y, np.nan)
    if not np.isfinite(y).any():
        return ""
    low, high = float(np.nanmin(y)), float(np.nanmax(y))
    first, last = float(spark.x[0]), float(spark.x[-1])
    path, is_on = "", False
    for step, value in zip(spark.x, y, strict=True):
        if not np.isfinite(value):
            is_on = False
            continue
        px = 1 + (float(step) - first) / ((last - first) or 1) * (_WIDTH - 2)
        py = _HEIGHT - 2 - (float(value) - low) / ((high - low) or 1) * (_HEIGHT - 4)
        path += f"{'L' if is_on else 'M'}{px:.1f} {py:.1f}"
        is_on = True
    label = escape(f"{spark.name}: {spark.last:.4g}" if spark.last is not None else str(spark.name))
    return (
        f'<div><div style="opacity:.7">{label}</div>'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">'
        f'<path d="{path}" fill="none" stroke="#2f7fc1" stroke-width="1.5"/></svg></div>'
    )
