"""Cells: one statistic of many sites, or one metric of many modules, by row and bucket of steps.

What heatmaps and tints are made of. A query brings one number per row and step, a part of the steps
at a time; they are pooled here. Whatever was not finite is marked apart from the number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.sketch import needs_bins, statistic
from sonde.store.reading import sketch_rows
from sonde.store.reading.selection import Selection
from sonde.store.reading.stat_queries import source_of
from sonde.store.schemas import NUMBERS, SKETCHES
from sonde.store.sql import counting, queries
from sonde.views.numbers.columns import Grid
from sonde.views.runs.opened_run import OpenedRun, SiteEntry
from sonde.views.specs import EMPTY, NONFINITE, NUMBER

_MAX_BINNED: Final = 60_000
"""Sketches whose bins are read for one answer: about a second of work."""

_AT_ONCE: Final = 2_000_000
"""Numbers that one query brings."""

_MERGED_AT_ONCE: Final = 400_000
"""Rows that one query merges: about 100 MB inside DuckDB."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows × columns. `values` is NaN where `flags` is EMPTY."""

    values: NDArray[np.float32]
    flags: NDArray[np.uint8]

    @staticmethod
    def empty(rows: int, columns: int) -> Cells:
        shape = (rows, columns)
        return Cells(np.full(shape, np.nan, np.float32), np.full(shape, EMPTY, np.uint8))


@dataclass(frozen=True, slots=True)
class Source:
    """Where the numbers come from: `row_of` gives the row of a site's name or a module's path.

    `is_whole` if these are all sites of the kind: then none has to be named.
    """

    row_of: dict[str, int]
    stat: str
    kind: str | None
    metric: str | None
    phase: str
    rank: int | None
    is_whole: bool = False

    @property
    def table(self) -> str:
        return "numbers" if self.metric is not None else "stats"

    def selection(self, first: int | None, last: int | None) -> Selection:
        """The rows in a window of steps, in terms that every table has."""
        chosen = Selection().equal("phase", self.phase).steps((first, last))
        if self.metric is not None:
            return chosen.equal("name", self.metric).add("module is not null")
        chosen.equal("kind", self.kind if self.is_whole else None)
        return chosen if self.is_whole else chosen.one_of("name", list(self.row_of))

    def as_written(self, chosen: Selection) -> Selection:
        """The same for rows as they were written, per rank and attempt."""
        made = Selection([*chosen.conditions], [*chosen.parameters])
        return made.equal("rank", self.rank).add("not replaced")


def check_stat(name: str) -> str:
    """The name of a statistic, if there is such a one."""
    try:
        statistic(name)
    except ValueError as error:
        raise SondeError(str(error)) from None
    return name


def recorded_steps(subject: OpenedRun, source: Source, chosen: Selection) -> NDArray[np.int64]:
    """The steps at which any of the rows has a number, ascending."""
    table = "numbers" if source.metric is not None else source_of(source.rank)
    written = source.as_written(chosen)
    rows = subject.ask(
        f"select distinct step from {table} where {written.where} order by step",
        written.parameters,
    )
    found: NDArray[np.int64] = rows["step"].to_numpy()
    return found


def pooled(
    subject: OpenedRun, source: Source, chosen: Selection, grid: Grid, aggregate: str
) -> Cells:
    """The cells of the grid. `chosen` as for `recorded_steps`."""
    found = Cells.empty(len(source.row_of), len(grid))
    names, places = list(source.row_of), list(source.row_of.values())
    for first, last in _windows(subject, source, grid):
        within = Selection([*chosen.conditions], [*chosen.parameters]).steps((first, last))
        if source.rank is not None:
            within = source.as_written(within)
        is_metric = source.metric is not None
        inner = (_metric_sql if is_metric else _statistic_sql)(source, within)
        rows = subject.ask(
            f"select place, step, v, bad from ({inner}) "
            "join (select unnest(?) as name, unnest(?)::integer as place) using (name)",
            [*within.parameters, names, places],
        )
        _pool(found, grid, _Rows.of(rows), aggregate)
    return found


def binned(subject: OpenedRun, source: Source, chosen: Selection, grid: Grid) -> tuple[Cells, bool]:
    """The cells of a statistic that needs the bins of sketches (a quantile).

    Reads the last recorded step of each column only, when reading all would take too long; whether
    it did so is the second of the answer.
    """
    steps = grid.steps
    is_thinned = len(grid) < len(steps)
    if is_thinned:
        ends = np.searchsorted(steps // grid.stride, grid.keys, side="right")
        steps = steps[ends - 1]
    rows_at_once = max(_MAX_BINNED // max(len(source.row_of), 1), 1)
    if len(steps) > 0 and len(steps) * len(source.row_of) > 40 * _MAX_BINNED:
        raise SondeError(
            f"`{source.stat}` needs the bins of {len(steps) * len(source.row_of):,} sketches. "
            "Ask for fewer columns, a part of the modules, or a statistic that needs no bins."
        )
    found = Cells.empty(len(source.row_of), len(grid))
    for at in range(0, len(steps), rows_at_once):
        some = source.as_written(chosen).one_of("step", steps[at : at + rows_at_once].tolist())
        rows = subject.ask(
            f"select name, step, {sketch_rows.COLUMNS} from {source_of(source.rank)} "
            f"where {some.where}",
            some.parameters,
        )
        if rows.num_rows:
            _pool(found, grid, _binned_rows(rows, source), "last")
    return found, is_thinned


def at_step(
    subject: OpenedRun, source: Source, step: int
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """The number of each row at one step, and its flag."""
    chosen = source.selection(step, step)
    grid = Grid(1, np.array([step]), np.array([step]), None, "", 1)
    if source.metric is None and needs_bins(source.stat):
        found, _ = binned(subject, source, chosen, grid)
    else:
        found = pooled(subject, source, chosen, grid, "last")
    return found.values[:, 0].astype(np.float64), found.flags[:, 0]


def largest(found: Cells, rows: Sequence[int]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Several rows as one: per column the number with the largest magnitude, and the worst flag."""
    some = found.values[list(rows)]
    magnitude = np.where(np.isnan(some), -1.0, np.abs(some))
    values: NDArray[np.float32] = some[magnitude.argmax(axis=0), np.arange(some.shape[1])]
    flags: NDArray[np.uint8] = found.flags[list(rows)].max(axis=0)
    return values, flags


def of_kind(entries: Sequence[SiteEntry], kind: str | None) -> list[SiteEntry]:
    return [e for e in entries if e.site.kind == kind]


@dataclass(frozen=True, slots=True)
class _Rows:
    """One number per row and step; NaN where there is none."""

    place: NDArray[np.int32]
    step: NDArray[np.int64]
    v: NDArray[np.float64]
    bad: NDArray[np.bool_]

    @staticmethod
    def of(rows: pa.Table) -> _Rows:
        place, step, v, bad = (rows[c].to_numpy() for c in ("place", "step", "v", "bad"))
        return _Rows(place, step, v, bad)


def _windows(subject: OpenedRun, source: Source, grid: Grid) -> Iterator[tuple[int, int]]:
    """Stretches of whole columns, each with no more numbers than can be had at once."""
    table = SKETCHES.name if source.metric is None else NUMBERS.name
    segments = [s for s in subject.progress.segments if s.table == table]
    limit = _AT_ONCE
    if source.rank is not None or queries.must_merge(segments):
        limit = _MERGED_AT_ONCE // max(len({s.name.attempt.rank for s in segments}), 1)
    buckets = grid.steps // grid.stride
    ends = np.searchsorted(buckets, grid.keys, side="right")
    at = 0
    while at < len(grid):
        begun = 0 if at == 0 else int(ends[at - 1])
        upto = begun + max(limit // max(len(source.row_of), 1), 1)
        until = max(int(np.searchsorted(ends, upto, side="right")), at + 1)
        yield int(grid.keys[at]) * grid.stride, (int(grid.keys[until - 1]) + 1) * grid.stride - 1
        at = until


def _pool(found: Cells, grid: Grid, rows: _Rows, aggregate: str) -> None:
    """Put numbers into the cells that they belong to. All of a cell come at once."""
    column = grid.column_of(rows.step // grid.stride)
    kept = column >= 0
    at = rows.place.astype(np.int64) * len(grid) + column
    values, flags = found.values.reshape(-1), found.flags.reshape(-1)
    known = kept & ~np.isnan(rows.v)
    flags[at[known]] = NUMBER
    with np.errstate(over="ignore"):
        small = rows.v.astype(np.float32)
    flags[at[kept & (rows.bad | np.isinf(small))]] = NONFINITE
    cells, numbers = at[known], small[known]
    match aggregate:
        case "max":
            values[cells] = -np.inf
            np.maximum.at(values, cells, numbers)
        case "min":
            values[cells] = np.inf
            np.minimum.at(values, cells, numbers)
        case "mean":
            touched, group = np.unique(cells, return_inverse=True)
            total = np.bincount(group, rows.v[known], len(touched))
            values[touched] = total / np.bincount(group, minlength=len(touched))
        case "last":
            order = np.argsort(rows.step[known], kind="stable")
            values[cells[order]] = numbers[order]
        case _:
            size = np.zeros(len(values), np.float32)
            np.maximum.at(size, cells, np.abs(numbers))
            largest = np.abs(numbers) == size[cells]
            values[cells[largest]] = numbers[largest]


def _statistic_sql(source: Source, within: Selection) -> str:
    """Rows of name, step, v, bad: sketches of the same site and step merged where there are any."""
    if source.rank is None:
        v, bad = f'"{source.stat}"', "nonfinite > 0"
        origin = f"stats where {within.where}"
    else:
        v, bad = str(statistic(source.stat).sql), "nans + pos_infs + neg_infs > 0"
        origin = f"({queries.merged(counting.KEY, where=within.where, table='records')})"
    return (
        f"select name, step, cast({v} as double) as v, coalesce({bad}, false) as bad from {origin}"
    )


def _metric_sql(source: Source, within: Selection) -> str:
    origin = f"metrics where {within.where}"
    if source.rank is not None:
        origin = f"""(
            select * from numbers where {within.where} qualify row_number() over (
                partition by step, module order by attempt desc, ordinal desc
            ) = 1
        )"""
    return f"""
        select module as name, step, case when isfinite(value) then value end as v,
            not isfinite(value) as bad
        from {origin}
    """


def _binned_rows(rows: pa.Table, source: Source) -> _Rows:
    keys, merged = sketch_rows.merge_by(rows, ("name", "step"))
    places = np.array([source.row_of.get(str(name), -1) for name, _ in keys], np.int32)
    known = places >= 0
    v = statistic(source.stat)(merged)
    bad = merged.counts[:, 2:5].sum(axis=1) > 0
    steps = np.array([step for _, step in keys], np.int64)
    return _Rows(places[known], steps[known], v[known], bad[known])
