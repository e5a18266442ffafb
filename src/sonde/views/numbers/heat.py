"""The heatmap: all sites of a kind by steps, one statistic; or all modules, one metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

import numpy as np

from sonde.sketch import NumberFormat, needs_bins, statistic
from sonde.views import ids
from sonde.views.numbers import columns, pooling
from sonde.views.numbers.notes import FROZEN, bounds, step_notes
from sonde.views.numbers.pooling import Cells, Source
from sonde.views.questions import HeatQuestion
from sonde.views.runs.opened_run import (
    MAX_LABEL,
    MAX_PATH,
    NotFoundError,
    OpenedRun,
    RunStructure,
    SiteEntry,
    shown,
)
from sonde.views.specs import EMPTY, NONFINITE, NUMBER, Aggregate, Heat, HeatRow, Norm, RowGroup

_MAX_CELLS: Final = 1 << 23
"""Cells before rows are folded; more rows get fewer columns."""

_START: Final = 16
"""Columns whose median is what `norm=start` divides by."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row before and after folding: which cells it is made of."""

    path: str
    slot: str
    call: int
    site: str | None
    members: tuple[int, ...]
    pattern: str = ""
    """The path with a star in place of the numbers that are folded."""


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
    tag = repr((question.kind, question.stat, question.metric, question.under, question.fold))
    tag += repr((question.phase, question.rank, question.first, question.aggregate, question.norm))
    tag += repr((question.rows, len(rows)))
    # What is divided by lies at the beginning: a delta does not know it.
    after = question.after if question.norm == "none" else None
    grid = columns.grid(steps, limit, progress, (source.table,), after=after, tag=tag)
    notes = step_notes(grid, question.aggregate, question.rank)
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
) -> list[_Row]:
    entries = pooling.of_kind(structure.entries, kind)
    if not entries:
        raise NotFoundError("not_recorded", _how_to_record(kind))
    if under is not None:
        path = subject.path(under)
        entries = [e for e in entries if is_under(e.site.module, path)]
    ordered = sorted(entries, key=lambda e: structure.order[e.site.name])
    return [_site_row(e, i) for i, e in enumerate(ordered)]


def _site_row(e: SiteEntry, i: int) -> _Row:
    return _Row(e.site.module, e.site.slot, e.site.call, ids.of_name(e.site.name), (i,))


def _metric_rows(subject: OpenedRun, structure: RunStructure, question: HeatQuestion) -> list[_Row]:
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
    return [_Row(path, "", 0, None, (i,)) for i, path in enumerate(ordered)]


def _fold(
    rows: Sequence[_Row],
    found: Cells,
    structure: RunStructure,
    question: HeatQuestion,
    notes: list[str],
) -> tuple[list[_Row], Cells]:
    """Rows of repeated modules as one where that is asked for or needed; then neighbours."""
    kept = list(rows)
    if question.fold or len(kept) > question.rows:
        merged: dict[tuple[tuple[str, str], str, int], list[_Row]] = {}
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


def _together(path: str, pattern: str, rows: Sequence[_Row]) -> _Row:
    members = tuple(m for row in rows for m in row.members)
    site = rows[0].site if len(rows) == 1 else None
    return _Row(path, rows[0].slot, rows[0].call, site, members, pattern)


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
    rows: Sequence[_Row],
    found: Cells,
    grid: columns.Grid,
    structure: RunStructure,
    question: HeatQuestion,
    kind: str | None,
    notes: Sequence[str],
) -> Heat:
    groups, group_of = _groups(rows)
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
        rows=tuple(
            _heat_row(row, structure, group) for row, group in zip(rows, group_of, strict=True)
        ),
        groups=groups,
        values=found.values,
        flags=found.flags,
        limits=bounds(found.values[found.flags == NUMBER]),
        is_signed=is_signed,
        notes=tuple(said),
    )


def _heat_row(row: _Row, structure: RunStructure, group: int) -> HeatRow:
    last = ".".join((row.pattern or row.path).split(".")[-2:]) or ids.ROOT_LABEL
    slot = f" {row.slot}" if row.slot and row.slot != "0" else ""
    call = f" #{row.call}" if row.call else ""
    count = len(row.members)
    times = f" ×{count}" if count > 1 else ""
    return HeatRow(
        site=row.site,
        module=ids.of_name(row.path),
        node=structure.node_of(row.path, row.call),
        label=shown(f"{last}{slot}{call}{times}", MAX_LABEL),
        path=shown(row.path, MAX_PATH),
        slot=shown(row.slot, MAX_LABEL),
        call=row.call,
        group=group,
        count=count,
    )


def _groups(rows: Sequence[_Row]) -> tuple[tuple[RowGroup, ...], list[int]]:
    """Neighbours that share the first parts of their paths, down to the first number. Without a
    number a group is named by all that its paths have in common."""
    keys = [_group_path(row.path) for row in rows]
    starts = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
    groups: list[RowGroup] = []
    group_of: list[int] = []
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        path = keys[start]
        if not path.rpartition(".")[2].isdecimal():
            path = _common(rows[start].path, rows[end - 1].path)
        group_of += [len(groups)] * (end - start)
        label = shown(path or ids.ROOT_LABEL, MAX_LABEL)
        groups.append(RowGroup(label, shown(path, MAX_PATH), start, end - start))
    return tuple(groups), group_of


def _common(first: str, last: str) -> str:
    """The parts that two paths begin with. Of paths in order it is what all between begin with."""
    both = zip(first.split("."), last.split("."), strict=False)
    return ".".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], both))


def _group_path(path: str) -> str:
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdecimal():
            return ".".join(parts[: i + 1])
    return ".".join(parts[:-1]) if len(parts) > 1 else path


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
