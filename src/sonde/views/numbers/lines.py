"""Lines: scalars and metrics over time, in buckets with their lowest, highest and last value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde.store.reading.selection import Selection
from sonde.views import ids
from sonde.views.numbers import columns
from sonde.views.numbers.notes import bounds, step_notes
from sonde.views.questions import LinesQuestion, SparkQuestion
from sonde.views.runs.opened_run import MAX_LABEL, NotFoundError, OpenedRun, shown
from sonde.views.specs import F64, NONFINITE, NUMBER, Line, Lines, Spark

_MAX_LINES: Final = 64
_LOSSES: Final = ("loss", "train_loss", "train/loss", "training_loss", "loss/train", "nll", "ce")


def answer(subject: OpenedRun, question: LinesQuestion) -> Lines:
    """The series asked for, those of metrics when modules are named."""
    progress = subject.progress
    chosen = _selection(subject, question)
    lines = _names(subject, question, chosen)
    steps = _steps(subject, chosen)
    tag = repr((question.name, question.module, question.phase, question.rank, lines))
    grid = columns.grid(
        steps, question.columns, progress, ("numbers",), after=question.after, tag=tag
    )
    rows = _rows(subject, chosen, lines, grid)
    return _lines(rows, lines, grid, question)


def spark(subject: OpenedRun, question: SparkQuestion) -> Spark:
    """One scalar in few points: the mean of each bucket."""
    name = question.name or loss_name(scalar_names(subject))
    if name is None:
        empty = np.empty(0)
        return Spark(None, None, empty, empty, np.empty(0, np.uint8), None)
    found = answer(subject, LinesQuestion(run=question.run, name=(name,), columns=question.columns))
    if not found.lines:
        raise NotFoundError("not_recorded", f"No scalar `{shown(name, 80)}` was logged.")
    one = next((line for line in found.lines if line.phase == "train"), found.lines[0])
    cut = slice(one.start, one.start + one.length)
    return Spark(one.name, one.phase, found.first[cut], found.mean[cut], found.flags[cut], one.last)


def scalar_names(subject: OpenedRun) -> list[str]:
    rows = subject.ask("select distinct name from scalars order by name limit 10000")
    names: list[str] = rows["name"].to_pylist()
    return names


def loss_name(names: Sequence[str]) -> str | None:
    """The scalar that is most likely the loss of the training."""
    lower = {name.lower(): name for name in reversed(names)}
    for likely in _LOSSES:
        if likely in lower:
            return lower[likely]
    return next((name for name in names if "loss" in name.lower()), names[0] if names else None)


def _selection(subject: OpenedRun, question: LinesQuestion) -> Selection:
    chosen = Selection().equal("phase", question.phase).equal("rank", question.rank)
    chosen.steps((question.first, question.last)).add("not replaced")
    if question.name:
        chosen.one_of("name", question.name)
    if not question.module:
        return chosen.add("module is null")
    if "*" in question.module:
        return chosen.add("module is not null")
    return chosen.one_of("module", [subject.path(one) for one in question.module])


def _names(
    subject: OpenedRun, question: LinesQuestion, chosen: Selection
) -> list[tuple[str, str, str | None]]:
    """Which series there are, in order: name, phase, module."""
    rows = subject.ask(
        f"select name, phase, module, min(ordinal) as place from numbers where {chosen.where} "
        f"group by name, phase, module order by place, name, phase, module limit {_MAX_LINES + 1}",
        chosen.parameters,
    )
    found = [(r["name"], r["phase"], r["module"]) for r in rows.to_pylist()]
    asked = {name: i for i, name in enumerate(question.name)}
    return sorted(found, key=lambda key: asked.get(key[0], 0))[:_MAX_LINES]


def _steps(subject: OpenedRun, chosen: Selection) -> NDArray[np.int64]:
    rows = subject.ask(
        f"select distinct step from numbers where {chosen.where} order by step", chosen.parameters
    )
    steps: NDArray[np.int64] = rows["step"].to_numpy()
    return steps


def _rows(
    subject: OpenedRun,
    chosen: Selection,
    lines: Sequence[tuple[str, str, str | None]],
    grid: columns.Grid,
) -> pa.Table:
    """One row per series and bucket. Of a number that was logged again the last one counts."""
    inner = Selection([*chosen.conditions], [*chosen.parameters])
    if grid.from_step is not None:
        inner.add("step >= ?", grid.from_step)
    inner.one_of("name", dict.fromkeys(name for name, _, _ in lines))
    return subject.ask(
        f"""
        select name, phase, module, {columns.bucket_sql(grid.stride)} as bucket,
            min(step) as first, max(step) as until,
            min(value) filter (isfinite(value)) as low, max(value) filter (isfinite(value)) as high,
            avg(value) filter (isfinite(value)) as mean, arg_max(value, step) as last,
            count(*) as count, bool_or(not isfinite(value)) as bad
        from (
            select * from numbers where {inner.where}
            qualify row_number() over (
                partition by step, phase, module, name order by rank, attempt desc, ordinal desc
            ) = 1
        )
        group by name, phase, module, bucket order by bucket
        """,
        inner.parameters,
    )


def _lines(
    rows: pa.Table,
    lines: Sequence[tuple[str, str, str | None]],
    grid: columns.Grid,
    question: LinesQuestion,
) -> Lines:
    place = {key: i for i, key in enumerate(lines)}
    keys = zip(*(rows[c].to_pylist() for c in ("name", "phase", "module")), strict=True)
    line_of = np.array([place.get(key, len(lines)) for key in keys], np.int64)
    order = np.argsort(line_of, kind="stable")
    order = order[line_of[order] < len(lines)]
    ends = np.searchsorted(line_of[order], np.arange(len(lines)), side="right")
    starts = np.searchsorted(line_of[order], np.arange(len(lines)), side="left")
    reals = {c: _reals(rows, c)[order] for c in ("first", "until", "low", "high", "mean", "last")}
    bad = np.array(rows["bad"].to_pylist(), bool)[order]
    made = [
        _line(key, int(a), int(b), reals["last"], reals["until"])
        for key, a, b in zip(lines, starts, ends, strict=True)
    ]
    notes = step_notes(grid, None, question.rank)
    if len(lines) == _MAX_LINES:
        notes.append(f"the first {_MAX_LINES} series")
    return Lines(
        lines=tuple(made),
        stride=grid.stride,
        **reals,
        count=rows["count"].to_numpy()[order].astype(np.int32),
        flags=np.where(bad, NONFINITE, NUMBER).astype(np.uint8),
        limits=bounds(np.concatenate([reals["low"], reals["high"]])),
        from_step=grid.from_step,
        cursor=grid.cursor,
        notes=tuple(notes),
    )


def _line(key: tuple[str, str, str | None], start: int, end: int, last: F64, until: F64) -> Line:
    name, phase, module = key
    label = name if module is None else f"{module or 'model'} · {name}"
    return Line(
        name=shown(name, MAX_LABEL),
        phase=shown(phase, MAX_LABEL),
        module=None if module is None else ids.of_name(module),
        label=shown(label, MAX_LABEL),
        start=start,
        length=end - start,
        last=float(last[end - 1]) if end > start else None,
        last_step=int(until[end - 1]) if end > start else None,
    )


def _reals(rows: pa.Table, column: str) -> F64:
    found: F64 = rows[column].to_numpy().astype(np.float64)
    return found
