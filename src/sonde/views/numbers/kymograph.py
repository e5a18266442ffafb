"""The kymograph: how the values of one site are spread, over time. Exact: from sketch bins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.record import COUNTS, Sketches
from sonde.sketch import Sketch, concatenate, merge_groups, row, statistic
from sonde.sketch.columns import cut, empty
from sonde.store.reading import sketch_rows
from sonde.store.reading.selection import Selection
from sonde.store.reading.stat_queries import source_of
from sonde.views.numbers import axes, columns, notes
from sonde.views.numbers.columns import Grid
from sonde.views.numbers.extent import extent
from sonde.views.questions import KymographQuestion
from sonde.views.runs.opened_run import NotFoundError, OpenedRun, site_ref
from sonde.views.specs import Bounds, Kymograph, Scale

_ROWS_AT_ONCE: Final = 20_000
_NO_STEPS: Final = np.empty(0, np.int64)
_QUANTILES: Final = (0.01, 0.5, 0.99)
_BRIGHTEST: Final = 4.0
"""Columns denser than this many times the median column share one colour: a tensor of equal values
would leave no colours for the others."""


class _Axis(NamedTuple):
    scale: Scale
    edges: NDArray[np.float64]


def answer(subject: OpenedRun, question: KymographQuestion) -> Kymograph:
    """Columns of steps by cells of values, with percentiles and everything that is in no cell."""
    entry = subject.site(question.site)
    progress = subject.progress
    chosen = Selection(["not replaced"]).equal("name", entry.site.name)
    chosen.equal("phase", question.phase).equal("rank", question.rank)
    chosen.steps((question.first, question.last))
    table = source_of(question.rank)
    steps = _steps(subject, chosen, table)
    if len(steps) == 0:
        raise NotFoundError("no_such_step", "Nothing was recorded here in these steps.")
    whole = columns.grid(steps, question.columns, progress, ("stats",))
    return _answer(subject, question, steps, _merged(subject, chosen, whole, table))


def several(
    subject: OpenedRun, questions: Sequence[KymographQuestion]
) -> Iterator[tuple[KymographQuestion, Kymograph]]:
    """The answers to questions that differ in their site alone, of sites that have any records.

    All rows are read in one pass: much faster than one question after the other.
    """
    if not questions:
        return
    first = questions[0]
    names = {subject.site(question.site).site.name: question for question in questions}
    chosen = Selection(["not replaced"]).equal("phase", first.phase).equal("rank", first.rank)
    chosen.steps((first.first, first.last)).one_of("name", names)
    table = source_of(first.rank)
    recorded = _steps_by_name(subject, chosen, table)
    grids = {
        name: columns.grid(steps, first.columns, subject.progress, ("stats",))
        for name, steps in recorded.items()
    }
    starts = dict(zip(grids, np.cumsum([0, *map(len, grids.values())]), strict=False))
    merged = _merged_by_name(subject, chosen, grids, starts, table)
    for name, grid in grids.items():
        part = cut(merged, int(starts[name]), int(starts[name]) + len(grid))
        yield names[name], _answer(subject, names[name], recorded[name], part)


def _answer(
    subject: OpenedRun, question: KymographQuestion, steps: NDArray[np.int64], merged: Sketches
) -> Kymograph:
    """The answer, or what came since, from one sketch per column."""
    scale, low, high = _axis(question, merged)
    edges = axes.edges(scale, low, high, question.cells)
    name = subject.site(question.site).site.name
    tag = repr((name, question.phase, question.rank, question.first))
    tag += repr((scale, question.cells, low, high))
    grid = columns.grid(
        steps, question.columns, subject.progress, ("stats",), after=question.after, tag=tag
    )
    kept = merged
    if grid.from_step is not None:
        kept = cut(merged, len(merged) - len(grid), len(merged))
    return _kymograph(subject, question, kept, grid, _Axis(scale, edges), merged)


def _steps(subject: OpenedRun, chosen: Selection, table: str) -> NDArray[np.int64]:
    rows = subject.ask(
        f"select distinct step from {table} where {chosen.where} order by step", chosen.parameters
    )
    found: NDArray[np.int64] = rows["step"].to_numpy()
    return found


def _steps_by_name(
    subject: OpenedRun, chosen: Selection, table: str
) -> dict[str, NDArray[np.int64]]:
    rows = subject.ask(
        f"select name, list(distinct step) as steps from {table} where {chosen.where} "
        "group by name order by name",
        chosen.parameters,
    ).to_pylist()
    return {row["name"]: np.sort(np.array(row["steps"], np.int64)) for row in rows}


def _merged(subject: OpenedRun, chosen: Selection, grid: Grid, table: str) -> Sketches:
    """One sketch per column. Reads a part of the rows at a time."""
    merged = empty()
    for first, last in _parts(grid.steps, _ROWS_AT_ONCE):
        part = Selection([*chosen.conditions], [*chosen.parameters]).steps((first, last))
        rows = subject.ask(
            f"select step, {sketch_rows.COLUMNS} from {table} where {part.where}", part.parameters
        )
        groups = grid.column_of(rows["step"].to_numpy() // grid.stride)
        both = concatenate([merged, sketch_rows.from_rows(rows)])
        known = np.arange(len(merged), dtype=np.int64)
        merged = merge_groups(both, np.concatenate([known, groups]), len(grid))
    return merged


def _merged_by_name(
    subject: OpenedRun,
    chosen: Selection,
    grids: Mapping[str, Grid],
    starts: Mapping[str, int],
    table: str,
) -> Sketches:
    """One sketch per site and column, a site's columns beginning at its place in `starts`."""
    steps = np.unique(np.concatenate([grid.steps for grid in grids.values()] or [_NO_STEPS]))
    found: list[Sketches] = []
    places: list[NDArray[np.int64]] = []
    for first, last in _parts(steps.astype(np.int64), max(1, _ROWS_AT_ONCE // max(len(grids), 1))):
        part = Selection([*chosen.conditions], [*chosen.parameters]).steps((first, last))
        rows = subject.ask(
            f"select name, step, {sketch_rows.COLUMNS} from {table} where {part.where}",
            part.parameters,
        )
        encoded = rows["name"].combine_chunks().dictionary_encode()
        at = encoded.indices.to_numpy(zero_copy_only=False)
        step = rows["step"].to_numpy()
        groups = np.zeros(len(step), np.int64)
        for i, name in enumerate(encoded.dictionary.to_pylist()):
            grid, here = grids[name], at == i
            groups[here] = starts[name] + grid.column_of(step[here] // grid.stride)
        held, local = np.unique(groups, return_inverse=True)
        found.append(merge_groups(sketch_rows.from_rows(rows), local, len(held)))
        places.append(held)
    total = sum(map(len, grids.values()))
    return merge_groups(
        concatenate(found), np.concatenate(places or [_NO_STEPS]).astype(np.int64), total
    )


def _parts(steps: NDArray[np.int64], at_once: int) -> list[tuple[int, int]]:
    return [
        (int(part[0]), int(part[-1]))
        for part in (steps[i : i + at_once] for i in range(0, len(steps), at_once))
    ]


def _axis(question: KymographQuestion, merged: Sketches) -> tuple[Scale, float, float]:
    """The scale and both ends of the axis, found where they are not asked for."""
    if question.range == "fixed":
        if question.low is None or question.high is None:
            raise SondeError("`range=fixed` needs `low` and `high`.")
        scale: Scale = "linear" if question.scale == "auto" else question.scale
        return scale, question.low, question.high
    found = extent(merged, question.range)
    scale = found.scale() if question.scale == "auto" else question.scale
    return scale, *found.ends(scale)


def _kymograph(
    subject: OpenedRun,
    question: KymographQuestion,
    kept: Sketches,
    grid: Grid,
    axis: _Axis,
    whole: Sketches,
) -> Kymograph:
    scale, edges = axis.scale, axis.edges
    n, cells = len(kept), len(edges) - 1
    counts = np.zeros((n, cells), np.float32)
    density = np.zeros((n, cells), np.float32)
    below, above = np.zeros(n, np.float32), np.zeros(n, np.float32)
    lines = np.full((len(_QUANTILES), n), np.nan, np.float32)
    for i in range(n):
        one = row(kept, i)
        found = axes.counts(one, scale, edges)
        counts[i] = found
        density[i] = axes.density(found, one.zeros, one.count, edges, scale)
        below[i], above[i] = axes.outside(one, scale, edges, float(found.sum()))
        lines[:, i] = _lines(one, scale)
    by_name = {name: kept.counts[:, i].astype(np.float64) for i, name in enumerate(COUNTS)}
    total = by_name["count"]
    brightest = _brightest(density)
    return Kymograph(
        site=site_ref(subject.site(question.site)),
        scale=scale,
        columns=grid.columns(),
        edges=edges,
        counts=counts,
        density=density,
        below=below,
        above=above,
        zeros=by_name["zeros"],
        nans=by_name["nans"],
        pos_infs=by_name["pos_infs"],
        neg_infs=by_name["neg_infs"],
        total=total,
        p1=lines[0],
        p50=lines[1],
        p99=lines[2],
        low=_read(kept, "min"),
        high=_read(kept, "max"),
        mean=_read(kept, "mean"),
        rms=_read(kept, "rms"),
        limits=_limits(edges, whole),
        range=question.range,
        has_zero=bool(edges[0] <= 0 <= edges[-1]),
        max_density=brightest,
        min_density=float(density[density > 0].min(initial=brightest)),
        first_nonfinite_step=_first_bad(kept, grid),
        notes=tuple(notes.step_notes(grid, "all values together", question.rank)),
    )


def _brightest(density: NDArray[np.float32]) -> float:
    """The density of the brightest colour: the largest, unless only a few columns are so dense."""
    peaks = density.max(axis=1, initial=0.0)
    peaks = peaks[peaks > 0]
    if not len(peaks):
        return 0.0
    return float(min(peaks.max(), _BRIGHTEST * float(np.median(peaks))))


def _lines(sketch: Sketch, scale: str) -> NDArray[np.float64]:
    """Percentiles of the values; of their magnitudes on an axis of magnitudes."""
    if sketch.finite == 0:
        return np.full(len(_QUANTILES), np.nan)
    if scale in {"log", "exponent"}:
        return axes.magnitude_quantiles(sketch, _QUANTILES)
    return sketch.quantiles(_QUANTILES)


def _read(s: Sketches, name: str) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return statistic(name)(s).astype(np.float32)


def _limits(edges: NDArray[np.float64], whole: Sketches) -> Bounds:
    low, high = statistic("min")(whole), statistic("max")(whole)
    least = statistic("min_abs")(whole)
    return Bounds(
        low=float(edges[0]),
        high=float(edges[-1]),
        min=float(np.nanmin(low)) if not np.isnan(low).all() else None,
        max=float(np.nanmax(high)) if not np.isnan(high).all() else None,
        least_positive=float(np.nanmin(least)) if not np.isnan(least).all() else None,
        low_share=0.0,
        high_share=0.0,
    )


def _first_bad(kept: Sketches, grid: Grid) -> int | None:
    bad = np.flatnonzero(kept.counts[:, 2:5].sum(axis=1))
    return int(grid.columns().first[bad[0]]) if len(bad) else None
