"""The heatmap: all sites of a kind by steps, one statistic; or all modules, one metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sonde.sketch import NumberFormat, needs_bins, statistic
from sonde.views.numbers import columns, pooling
from sonde.views.numbers.heat_rows import CellRow, labels, site_row
from sonde.views.numbers.notes import FROZEN, bounds, step_notes
from sonde.views.numbers.pooling import Cells, Source
from sonde.views.questions import HeatQuestion
from sonde.views.runs.opened_run import MAX_LABEL, NotFoundError, OpenedRun, RunStructure, shown
from sonde.views.specs import EMPTY, NONFINITE, NUMBER, Aggregate, Heat, Norm

_MAX_CELLS: Final = 1 << 23
"""Cells before rows are folded; more rows get fewer columns."""

_MAX_BINNED: Final = 120_000
"""Cells of a statistic that is read off bins: about two seconds of work."""

_START: Final = 16
"""Columns whose median is what `norm=start` divides by."""


def answer(subject: OpenedRun, question: HeatQuestion) -> Heat:
    """Rows in module order, pooled to the columns asked for."""
    structure = subject.structure
    progress = subject.progress
    kind = question.kind
    if question.metric is None:
        pooling.check_stat(question.stat)
        kind = kind or default_kind(structure)
        rows = _site_rows(subject, structure, kind, question.under)
        row_of = {structure.by_id[row.site].site.name: i for i, row in enumerate(rows) if row.site}
    else:
        rows = _metric_rows(subject, structure, question)
        row_of = {row.path: i for i, row in enumerate(rows)}
    source = Source(
        row_of,
        question.stat,
        kind,
        question.metric,
        question.phase,
        question.rank,
        is_whole=question.under is None,
    )
    chosen = source.selection(question.first, question.last)
    steps = pooling.recorded_steps(subject, source, chosen)
    limit = min(question.columns, max(_MAX_CELLS // max(len(rows), 1), 64))
    if question.metric is None and needs_bins(question.stat):
        limit = min(limit, max(_MAX_BINNED // max(len(rows), 1), 64))
    tag = repr((question.kind, question.stat, question.metric, question.under, question.fold))
    tag += repr((question.phase, question.rank, question.first, question.aggregate, question.norm))
    tag += repr((question.rows, len(rows)))
    # What is divided by lies at the beginning: a delta does not know it.
    after = question.after if question.norm == "none" else None
    grid = columns.grid(steps, limit, progress, (source.table,), after=after, tag=tag)
    shown_of = shown(question.metric or kind or "", MAX_LABEL)
    notes = step_notes(grid, question.aggregate, question.rank, question.phase, shown_of)
    if question.metric is None and needs_bins(question.stat):
        found, is_thinned = pooling.binned(subject, source, chosen, grid)
        if is_thinned:
            notes[-1] = f"each column = the last of {grid.stride:,} steps"
    else:
        found = pooling.pooled(subject, source, chosen, grid, question.aggregate)
    if kind == "param" and (found.flags == EMPTY).any():
        notes.append(FROZEN)
    rows, found = _fold(rows, found, structure, question, notes)
    found = _normalised(found, question.norm, notes)
    return _heat(rows, found, grid, structure, question, kind, notes)


def default_kind(structure: RunStructure) -> str:
    """The kind that says most about a training, of those that were recorded."""
    present = {e.site.kind for e in structure.entries}
    order = ("param_grad", "output_grad", "output", "param", "update", "optim", "input")
    found = next((k for k in order if k in present), None) or next(iter(sorted(present)), None)
    if found is None:
        raise NotFoundError("not_recorded", "This run has recorded no tensors yet.")
    return str(found)


def _site_rows(
    subject: OpenedRun, structure: RunStructure, kind: str, under: str | None
) -> list[CellRow]:
    entries = pooling.of_kind(structure.entries, kind)
    if not entries:
        raise NotFoundError("not_recorded", _how_to_record(kind))
    if under is not None:
        path = subject.path(under)
        entries = [e for e in entries if is_under(e.site.module, path)]
    ordered = sorted(entries, key=lambda e: structure.order[e.site.name])
    return [site_row(e.site, i) for i, e in enumerate(ordered)]


def _metric_rows(
    subject: OpenedRun, structure: RunStructure, question: HeatQuestion
) -> list[CellRow]:
    found = subject.ask("select distinct module from metrics where name = ?", [question.metric])[
        "module"
    ].to_pylist()
    if not found:
        asked = shown(question.metric or "", 80)
        raise NotFoundError("not_recorded", f"No metric `{asked}` was recorded.")
    if question.under is not None:
        path = subject.path(question.under)
        found = [module for module in found if is_under(module, path)]
    order = structure.tree.index
    ordered = sorted(found, key=lambda path: (order.get(path, len(order)), path))
    return [CellRow(path, "", 0, None, (i,)) for i, path in enumerate(ordered)]


def _fold(
    rows: Sequence[CellRow],
    found: Cells,
    structure: RunStructure,
    question: HeatQuestion,
    notes: list[str],
) -> tuple[list[CellRow], Cells]:
    """Rows of repeated modules as one where that is asked for or needed; then neighbours."""
    kept = list(rows)
    if question.fold or len(kept) > question.rows:
        merged: dict[tuple[tuple[str, str], str, int], list[CellRow]] = {}
        for row in kept:
            paths = structure.tree.folded_path.get(row.path, (row.path, row.path))
            merged.setdefault((paths, row.slot, row.call), []).append(row)
        if len(merged) < len(kept):
            kept = [_together(*paths, some) for (paths, _, _), some in merged.items()]
            notes.append(f"{len(rows):,} rows, repeated modules folded: the largest of each")
    if len(kept) > question.rows:
        size = -(-len(kept) // question.rows)
        groups = [kept[i : i + size] for i in range(0, len(kept), size)]
        kept = [_together(some[0].path, some[0].pattern, some) for some in groups]
        notes.append(f"{size} neighbouring rows shown as one: the largest of each")
    if len(kept) == len(rows):
        return kept, found
    made = [pooling.largest(found, row.members) for row in kept]
    return kept, Cells(np.stack([v for v, _ in made]), np.stack([f for _, f in made]))


def _together(path: str, pattern: str, rows: Sequence[CellRow]) -> CellRow:
    members = tuple(m for row in rows for m in row.members)
    site = rows[0].site if len(rows) == 1 else None
    return CellRow(path, rows[0].slot, rows[0].call, site, members, pattern)


def _normalised(found: Cells, norm: Norm, notes: list[str]) -> Cells:
    if norm == "none" or found.values.size == 0:
        return found
    with np.errstate(all="ignore"):
        usable = np.where((found.flags == EMPTY) | ~np.isfinite(found.values), np.nan, found.values)
        rows = usable.astype(np.float64)
        has_any = ~np.isnan(rows).all(axis=1)
        if norm == "start":
            base = np.full(len(rows), np.nan)
            for i in np.flatnonzero(has_any):
                known = rows[i][~np.isnan(rows[i])]
                base[i] = np.median(np.abs(known[:_START]))
            made = rows / np.where(base > 0, base, np.nan)[:, None]
            notes.append(f"each row ÷ the median of its first {_START} columns")
        else:
            centre, width = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
            for i in np.flatnonzero(has_any):
                known = rows[i][~np.isnan(rows[i])]
                centre[i], width[i] = known.mean(), known.std()
            made = (rows - centre[:, None]) / np.where(width > 0, width, np.nan)[:, None]
            notes.append("each row less its mean, ÷ its standard deviation")
    return Cells(made.astype(np.float32), found.flags)


def _heat(
    rows: Sequence[CellRow],
    found: Cells,
    grid: columns.Grid,
    structure: RunStructure,
    question: HeatQuestion,
    kind: str | None,
    notes: Sequence[str],
) -> Heat:
    labelled, groups = labels(rows, structure)
    usable = found.values[found.flags != EMPTY]
    bad_rows = int((found.flags == NONFINITE).any(axis=1).sum())
    bad = f"{bad_rows:,} of {len(rows):,} rows contain NaN or Inf"
    said = [*notes, *([bad] if bad_rows else [])]
    is_signed = question.norm == "z" or (
        (question.metric is not None or statistic(question.stat).is_signed)
        and bool((usable < 0).any())
    )
    aggregate: Aggregate = question.aggregate
    shown_as: NumberFormat = "number" if question.metric else statistic(question.stat).format
    return Heat(
        title=question.metric or f"{statistic(question.stat).title} of {kind}",
        label=question.metric or statistic(question.stat).title,
        format=shown_as if question.norm == "none" else "number",
        kind=None if question.metric else kind,
        stat=None if question.metric else question.stat,
        metric=question.metric,
        aggregate=aggregate,
        norm=question.norm,
        columns=grid.columns(),
        rows=labelled,
        groups=groups,
        values=found.values,
        flags=found.flags,
        limits=bounds(found.values[found.flags == NUMBER]),
        is_signed=is_signed,
        notes=tuple(said),
    )


def is_under(path: str, above: str) -> bool:
    """Whether a module is the other one or lies below it."""
    return not above or path == above or path.startswith(f"{above}.")


def _how_to_record(kind: str) -> str:
    return (
        f"No `{shown(kind, 40)}` was recorded in this run. "
        f"Record it with: sonde.watch(model, log={{{kind!r}, ...}})"
        if kind.isidentifier()
        else f"There is no kind `{shown(kind, 40)}`."
    )
