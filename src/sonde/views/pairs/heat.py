"""Heatmaps of two runs: the sites that both have, row by row, and how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.comparison.distance import between
from sonde.comparison.matching import SitePair
from sonde.comparison.records import paired
from sonde.sketch import needs_bins, statistic
from sonde.views.numbers import pooling
from sonde.views.numbers.columns import Grid, stride_for
from sonde.views.numbers.heat import default_kind, is_under
from sonde.views.numbers.heat_rows import labels, site_row
from sonde.views.numbers.notes import bounds, step_notes
from sonde.views.numbers.pooling import Cells, Source
from sonde.views.pairs.matched import matched
from sonde.views.questions import PairedHeatQuestion
from sonde.views.runs.opened_run import MAX_PATH, NotFoundError, OpenedRun, shown
from sonde.views.runs.several import SeveralRuns
from sonde.views.specs import EMPTY, NONFINITE, NUMBER, Bounds, Heat, PairedHeat

_MAX_CELLS: Final = 1 << 22
_MAX_DISTANCES: Final = 30_000
"""Pairs of sketches whose bins are read for one answer: about a second of work."""
_SHARED: Final = 0.5
"""Share of the columns of the shorter run that the other one should have, too."""
_MAX_STRIDE: Final = 1 << 20
_TINY: Final = 2.0**-126
"""Magnitudes below the smallest normal float32 count as this: their ratios are noise."""
_LEAST: Final = 0.25
"""Octaves at the ends of the colours of a ratio, at least: runs that are alike look alike."""


def answer(runs: SeveralRuns, question: PairedHeatQuestion) -> PairedHeat:
    """The first run, the second, and their ratio or distance, on the same rows and columns."""
    a, b, found = matched(runs, question)
    pooling.check_stat(question.stat)
    kind = question.kind or default_kind(a.structure)
    pairs = _pairs(a, found.sites.pairs, kind, question.under)
    grids = _grids(a, b, pairs, kind, question)
    names = ([p.a.name for p in pairs], [p.b.name for p in pairs])
    cells = [
        _cells(run, own, grid, kind, question)
        for run, own, grid in zip((a, b), names, grids[:2], strict=True)
    ]
    heat = _heat(a, pairs, grids, cells, kind, question)
    one, two = (replace(heat, values=c.values, flags=c.flags) for c in cells)
    if question.measure == "distance":
        difference = _distance(a, b, pairs, heat, question)
    else:
        difference = _ratio(heat, cells)
    others = tuple(shown(p.b.module, MAX_PATH) if p.is_renamed else "" for p in pairs)
    return PairedHeat(question.measure, one, two, difference, others)


def _pairs(a: OpenedRun, every: Sequence[SitePair], kind: str, under: str | None) -> list[SitePair]:
    order = a.structure.order
    path = "" if under is None else a.path(under)
    chosen = [
        p for p in every if p.a.kind == kind and p.a.name in order and is_under(p.a.module, path)
    ]
    if not chosen:
        raise NotFoundError(
            "not_recorded",
            f"These runs have no `{shown(kind, 40)}` in common. Choose another kind.",
        )
    return sorted(chosen, key=lambda p: order[p.a.name])


def _source(names: Sequence[str], kind: str, question: PairedHeatQuestion) -> Source:
    rows = {name: i for i, name in enumerate(names)}
    return Source(rows, question.stat, kind, None, question.phase, None, is_whole=True)


def _grids(
    a: OpenedRun,
    b: OpenedRun,
    pairs: Sequence[SitePair],
    kind: str,
    question: PairedHeatQuestion,
) -> tuple[Grid, Grid, Grid]:
    """The columns that both runs have: as the steps of each fill them, and of both together.

    Runs that were recorded at other steps share columns of several steps.
    """
    source = _source([], kind, question)
    chosen = source.selection(question.first, question.last)
    one, two = (pooling.recorded_steps(run, source, chosen) for run in (a, b))
    both = np.union1d(one, two)
    limit = min(question.columns, max(_MAX_CELLS // max(len(pairs), 1), 64))
    stride = stride_for(both, limit)
    keys = np.intersect1d(one // stride, two // stride)
    while len(keys) < _SHARED * min(len(one), len(two)) // stride and stride < _MAX_STRIDE:
        stride *= 2
        keys = np.intersect1d(one // stride, two // stride)
    first, second, every = (
        Grid(stride, s[np.isin(s // stride, keys)], keys, None, "", len(s))
        for s in (one, two, both)
    )
    return first, second, every


def _cells(
    run: OpenedRun, names: Sequence[str], grid: Grid, kind: str, question: PairedHeatQuestion
) -> Cells:
    source = _source(names, kind, question)
    chosen = source.selection(question.first, question.last)
    if len(grid.steps) == 0:
        return Cells.empty(len(names), len(grid))
    if needs_bins(question.stat):
        return pooling.binned(run, source, chosen, grid)[0]
    return pooling.pooled(run, source, chosen, grid, question.aggregate)


def _heat(
    a: OpenedRun,
    pairs: Sequence[SitePair],
    grids: Sequence[Grid],
    cells: Sequence[Cells],
    kind: str,
    question: PairedHeatQuestion,
) -> Heat:
    """What all three heatmaps share; the numbers are those of the first run."""
    one, two, grid = grids
    shared = len(np.intersect1d(one.steps, two.steps))
    notes = step_notes(grid, question.aggregate, None, question.phase, kind)
    notes[:1] = [f"{shared:,} of {one.recorded:,} and {two.recorded:,} steps are in both runs"]
    known = statistic(question.stat)
    rows, groups = labels([site_row(p.a, i) for i, p in enumerate(pairs)], a.structure)
    together = np.concatenate([c.values[c.flags == NUMBER] for c in cells])
    return Heat(
        title=f"{known.title} of {kind}",
        label=known.title,
        format=known.format,
        kind=kind,
        stat=question.stat,
        metric=None,
        aggregate=question.aggregate,
        norm="none",
        columns=grid.columns(),
        rows=rows,
        groups=groups,
        values=cells[0].values,
        flags=cells[0].flags,
        limits=bounds(together),
        is_signed=known.is_signed and bool((together < 0).any()),
        notes=tuple(notes),
    )


def _ratio(heat: Heat, cells: Sequence[Cells]) -> Heat:
    """log2 of the first over the second; the difference of shares."""
    a, b = cells
    is_share = heat.format == "share"
    one, two = (c.values.astype(np.float64) for c in cells)
    if is_share:
        made = one - two
    else:
        made = np.log2(np.maximum(np.abs(one), _TINY)) - np.log2(np.maximum(np.abs(two), _TINY))
    flags = np.where((a.flags == NUMBER) & (b.flags == NUMBER), NUMBER, EMPTY)
    is_bad = (a.flags == NONFINITE) | (b.flags == NONFINITE)
    flags = np.where(is_bad & (a.flags != EMPTY) & (b.flags != EMPTY), NONFINITE, flags)
    values = np.where(flags == EMPTY, np.nan, made).astype(np.float32)
    return replace(
        heat,
        title=f"A − B, {heat.label}" if is_share else f"log2(A/B), {heat.label}",
        label="A − B" if is_share else "log2(A/B)",
        format="number",
        values=values,
        flags=flags.astype(np.uint8),
        limits=_symmetric(values[flags == NUMBER], 0.01 if is_share else _LEAST),
        is_signed=True,
        notes=heat.notes,
    )


def _distance(
    a: OpenedRun, b: OpenedRun, pairs: Sequence[SitePair], heat: Heat, question: PairedHeatQuestion
) -> Heat:
    """W1 of log2|value| at the last step of each column, of fewer columns where there are many."""
    last = heat.columns.last.astype(np.int64)
    limit = max(_MAX_DISTANCES // max(len(pairs), 1), 4)
    every = -(-len(last) // limit) if len(last) else 1
    steps = last[::-1][::every][::-1]
    records = paired(a.run, b.run, pairs, steps=steps.tolist(), phase=question.phase)
    found = between(records.a, records.b)
    values = np.full((len(pairs), len(last)), np.nan, np.float32)
    flags = np.full(values.shape, EMPTY, np.uint8)
    column = np.searchsorted(last, records.steps)
    values[records.pairs, column] = found.w1
    flags[records.pairs, column] = np.where(
        found.nonfinite != 0, NONFINITE, np.where(np.isnan(found.w1), EMPTY, NUMBER)
    )
    limits = bounds(values[flags == NUMBER])
    note = f"distance at {len(np.unique(records.steps)):,} of {len(last):,} columns"
    return replace(
        heat,
        title="Distance in octaves",
        label="distance",
        format="number",
        stat=None,
        values=values,
        flags=flags,
        limits=limits,
        is_signed=False,
        notes=(*heat.notes, note),
    )


def _symmetric(values: NDArray[np.float32], least: float) -> Bounds:
    """Limits around 0, so that no difference has the colour in the middle."""
    found = bounds(values)
    end = max(abs(found.low or 0.0), abs(found.high or 0.0), least)
    share = (float((values < -end).mean()), float((values > end).mean())) if len(values) else (0, 0)
    return replace(found, low=-end, high=end, low_share=share[0], high_share=share[1])
