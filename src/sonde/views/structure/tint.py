"""The tint: one statistic at one step for every box of a level, and how it went over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sonde.graph.folding import Fold
from sonde.graph.model import Node
from sonde.record import PARAMETER_KINDS
from sonde.sketch import needs_bins, statistic
from sonde.store.reading.stat_queries import source_of
from sonde.views import ids
from sonde.views.numbers import columns, pooling
from sonde.views.numbers.heat import default_kind, is_under
from sonde.views.numbers.notes import bounds, step_notes
from sonde.views.numbers.pooling import Cells, Source
from sonde.views.questions import TintQuestion
from sonde.views.runs.opened_run import OpenedRun, RunStructure
from sonde.views.specs import EMPTY, NONFINITE, NUMBER, NodeTint, Tint
from sonde.views.structure.level import folded, site_of


@dataclass(frozen=True, slots=True)
class _Box:
    """What a box is coloured with: names of sites (paths of modules for a metric)."""

    fold: Fold
    first: tuple[str, ...]
    """Of its first member."""
    all: tuple[str, ...]
    is_inside: bool


def answer(subject: OpenedRun, question: TintQuestion) -> Tint:
    """Values for the boxes that `level` gives for the same `node`, `fold` and `unfold`."""
    structure = subject.structure
    pooling.check_stat(question.stat)
    kind = None if question.metric is not None else question.kind or default_kind(structure)
    folds, _, _ = folded(subject, question)
    boxes = [_box(structure, fold, kind, question.metric) for fold in folds]
    names = dict.fromkeys(name for box in boxes for name in box.all)
    source = Source(
        {name: i for i, name in enumerate(names)},
        question.stat,
        kind,
        question.metric,
        question.phase,
        None,
        is_whole=kind is not None and len(names) == len(structure.sites_of_kind(kind)),
    )
    step = _step(subject, source, question)
    values, flags = np.full(len(names), np.nan), np.zeros(len(names), np.uint8)
    if step is not None:
        values, flags = pooling.at_step(subject, source, step)
    grid, sparks, rows = _sparks(subject, source, question, boxes)
    nodes = tuple(
        _tint(subject, box, source.row_of, values, flags, row, kind)
        for box, row in zip(boxes, rows, strict=True)
    )
    notes = step_notes(grid, "max_abs", None)
    if step is not None and question.step is not None and step != question.step:
        notes.append(f"values of step {step:,}, the last recorded one")
    return Tint(
        node=question.node or ids.ROOT,
        label=question.metric or statistic(question.stat).title,
        format="number" if question.metric else statistic(question.stat).format,
        kind=kind,
        stat=None if question.metric else question.stat,
        metric=question.metric,
        step=step,
        nodes=nodes,
        columns=grid.columns(),
        sparks=sparks.values,
        spark_flags=sparks.flags,
        limits=bounds(values[flags == NUMBER]),
        notes=tuple(notes),
    )


def _box(structure: RunStructure, fold: Fold, kind: str | None, metric: str | None) -> _Box:
    calls = [n for n in fold.members if n.kind == "module"]
    if metric is not None:
        own = tuple(n.module for n in calls)
        return _Box(fold, own[:1], own, is_inside=False)
    found = [site_of(structure, n, kind) for n in fold.members]
    own = tuple(e.site.name for e in found if e is not None)
    if own or not calls:
        return _Box(fold, own[:1], own, is_inside=False)
    first = _inside(structure, calls[0], kind)
    more = [name for n in calls[1:] for name in _inside(structure, n, kind)] if first else []
    return _Box(fold, first, (*first, *more), is_inside=True)


def _inside(structure: RunStructure, node: Node, kind: str | None) -> tuple[str, ...]:
    """Sites of the kind of all modules below."""
    return tuple(
        e.site.name
        for path, e in structure.sites_of_kind(kind)
        if node.module != path and is_under(path, node.module)
    )


def _step(subject: OpenedRun, source: Source, question: TintQuestion) -> int | None:
    """The last recorded step at or before the one asked for, else the first after it."""
    if not source.row_of:
        return None
    last = source.as_written(source.selection(None, question.step))
    table = "numbers" if source.metric is not None else source_of(source.rank)
    found = subject.ask(
        f"select max(step) as step from {table} where {last.where}", last.parameters
    )["step"][0].as_py()
    if found is None:
        after = source.as_written(source.selection(question.step, None))
        found = subject.ask(
            f"select min(step) as step from {table} where {after.where}", after.parameters
        )["step"][0].as_py()
    return None if found is None else int(found)


def _sparks(
    subject: OpenedRun, source: Source, question: TintQuestion, boxes: Sequence[_Box]
) -> tuple[columns.Grid, Cells, list[int]]:
    """A line for the first member of each box, and which line is whose."""
    shown = [box for box in boxes if box.first] if question.sparks else []
    names = dict.fromkeys(name for box in shown for name in box.first)
    few = Source(
        {name: i for i, name in enumerate(names)},
        source.stat,
        source.kind,
        source.metric,
        source.phase,
        None,
        is_whole=source.is_whole and len(names) == len(source.row_of),
    )
    chosen = few.selection(question.first, question.last)
    steps = pooling.recorded_steps(subject, few, chosen) if names else np.empty(0, np.int64)
    grid = columns.grid(steps, question.columns, subject.progress, (few.table,))
    if not names:
        nothing = Cells(np.zeros((0, 0), np.float32), np.zeros((0, 0), np.uint8))
        return grid, nothing, [-1] * len(boxes)
    if few.metric is None and needs_bins(few.stat):
        found = pooling.binned(subject, few, chosen, grid)[0]
    else:
        found = pooling.pooled(subject, few, chosen, grid, "max_abs")
    lines = [pooling.largest(found, [few.row_of[name] for name in box.first]) for box in shown]
    place = {box.fold.id: i for i, box in enumerate(shown)}
    made = Cells(np.stack([v for v, _ in lines]), np.stack([f for _, f in lines]))
    return grid, made, [place.get(box.fold.id, -1) for box in boxes]


def _tint(
    subject: OpenedRun,
    box: _Box,
    row_of: dict[str, int],
    values: NDArray[np.float64],
    flags: NDArray[np.uint8],
    row: int,
    kind: str | None,
) -> NodeTint:
    structure = subject.structure
    at = [row_of[name] for name in box.all]
    known = [float(v) for v in values[at] if np.isfinite(v)]
    first = [float(v) for v in values[[row_of[name] for name in box.first]] if np.isfinite(v)]
    flag = max((int(flags[i]) for i in at), default=EMPTY)
    entry = structure.by_name.get(box.first[0]) if box.first and not box.is_inside else None
    return NodeTint(
        id=ids.of_name(box.fold.id),
        site=None if entry is None else ids.of_name(entry.site.name),
        value=max(first, key=abs, default=None),
        flag=NONFINITE if flag == NONFINITE else (NUMBER if known else EMPTY),
        low=min(known, default=None),
        median=float(np.median(known)) if known else None,
        high=max(known, default=None),
        sites=len(at),
        is_inside=box.is_inside and bool(at),
        row=row,
        why="" if at else _why(subject, box.fold.first, kind),
    )


def _why(subject: OpenedRun, node: Node, kind: str | None) -> str:
    """Why a box has no site of a kind, neither itself nor inside."""
    structure = subject.structure
    if kind not in PARAMETER_KINDS or node.kind != "module":
        return "not recorded"
    if not structure.parameters_below.get(node.module, 0):
        return "no parameters"
    watch = _mapping(_mapping(subject.run.info.get("config")).get("watch"))
    if watch.get("include") or watch.get("exclude") or not structure.sites_of_kind(kind):
        return "not recorded"
    if not structure.sites_of_kind("param"):
        return "shared or frozen"
    has_own = any(is_under(path, node.module) for path, _ in structure.sites_of_kind("param"))
    return "frozen or unused" if has_own else "shared: see the other owner"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
