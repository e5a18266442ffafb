"""Rows of heatmaps: how each is called, and which neighbours stand together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from sonde.record import Site
from sonde.views import ids
from sonde.views.runs.opened_run import MAX_LABEL, MAX_PATH, RunStructure, shown
from sonde.views.specs import HeatRow, RowGroup


@dataclass(frozen=True, slots=True)
class CellRow:
    """A row before and after folding: which cells it is made of."""

    path: str
    slot: str
    call: int
    site: str | None
    members: tuple[int, ...]
    pattern: str = ""
    """The path with a star in place of the numbers that are folded."""


def site_row(site: Site, i: int) -> CellRow:
    """The row of one site, made of the cells `i`."""
    return CellRow(site.module, site.slot, site.call, ids.of_name(site.name), (i,))


def labels(
    rows: Sequence[CellRow], structure: RunStructure
) -> tuple[tuple[HeatRow, ...], tuple[RowGroup, ...]]:
    """The rows as they are sent, and their groups."""
    groups, group_of = _groups(rows)
    made = (_heat_row(row, structure, at) for row, at in zip(rows, group_of, strict=True))
    return tuple(made), groups


def _heat_row(row: CellRow, structure: RunStructure, group: int) -> HeatRow:
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


def _groups(rows: Sequence[CellRow]) -> tuple[tuple[RowGroup, ...], list[int]]:
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
