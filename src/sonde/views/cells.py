"""Cells: one statistic of many sites, or one metric of many modules, by row and bucket of steps.

What heatmaps and tints are made of. The pooling is done by the query engine; only one number per
row and bucket comes back. Whatever was not finite is marked apart from the number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.sketch import needs_bins, statistic
from sonde.store import queries, sketching
from sonde.store.selection import Selection
from sonde.views.columns import Grid, bucket_sql
from sonde.views.specs import EMPTY, NONFINITE, NUMBER
from sonde.views.subject import Entry, Subject

_POOLED: Final = {
    "max_abs": "arg_max(v, abs(v))",
    "max": "max(v)",
    "min": "min(v)",
    "mean": "avg(v)",
    "last": "arg_max(v, step)",
}

_MAX_BINNED: Final = 60_000
"""Sketches whose bins are read for one answer: about a second of work."""

_NAMED: Final = 4000
"""Sites that a query names one by one; for more it asks for all of the kind."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Rows × columns. `values` is NaN where `flags` is EMPTY."""

    values: NDArray[np.float32]
    flags: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the numbers come from: `row_of` gives the row of a site's name or a module's path."""

    row_of: dict[str, int]
    stat: str
    kind: str | None
    metric: str | None
    phase: str
    rank: int | None

    @property
    def table(self) -> str:
        return "numbers" if self.metric is not None else "stats"

    def selection(self, first: int | None, last: int | None) -> Selection:
        """The rows in a window of steps, in terms that every table has."""
        chosen = Selection().equal("phase", self.phase).steps((first, last))
        if self.metric is not None:
            return chosen.equal("name", self.metric).add("module is not null")
        if len(self.row_of) <= _NAMED:
            return chosen.one_of("name", list(self.row_of))
        return chosen.equal("kind", self.kind)

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


def recorded_steps(subject: Subject, source: Source, chosen: Selection) -> NDArray[np.int64]:
    """The steps at which any of the rows has a number, ascending."""
    table = "numbers" if source.metric is not None else "records"
    written = source.as_written(chosen)
    rows = subject.ask(
        f"select distinct step from {table} where {written.where} order by step",
        written.parameters,
    )
    found: NDArray[np.int64] = rows["step"].to_numpy()
    return found


def pooled(
    subject: Subject, source: Source, chosen: Selection, grid: Grid, aggregate: str
) -> Cells:
    """The cells of the grid. `chosen` as for `recorded_steps`."""
    within = Selection([*chosen.conditions], [*chosen.parameters])
    if grid.from_step is not None:
        within.add("step >= ?", grid.from_step)
    if source.metric is not None or source.rank is not None:
        within = source.as_written(within)
    inner = _metric_sql(within) if source.metric is not None else _statistic_sql(source, within)
    bucket = bucket_sql(grid.stride)
    rows = subject.ask(
        f"select name, {bucket} as bucket, {_POOLED[aggregate]} as v, max(bad) as bad "
        f"from ({inner}) group by name, bucket",
        within.parameters,
    )
    return _cells(rows, source.row_of, grid)


def binned(subject: Subject, source: Source, chosen: Selection, grid: Grid) -> tuple[Cells, bool]:
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
    parts = []
    for at in range(0, len(steps), rows_at_once):
        some = source.as_written(chosen).one_of("step", steps[at : at + rows_at_once].tolist())
        rows = subject.ask(
            f"select name, step, {sketching.COLUMNS} from records where {some.where}",
            some.parameters,
        )
        if rows.num_rows:
            parts.append(_binned_part(rows, source.stat, grid.stride))
    table = pa.concat_tables(parts) if parts else _NOTHING
    return _cells(table, source.row_of, grid), is_thinned


def at_step(
    subject: Subject, source: Source, step: int
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


def of_kind(entries: Sequence[Entry], kind: str | None) -> list[Entry]:
    return [e for e in entries if e.site.kind == kind]


_NOTHING: Final = pa.table(
    {
        "name": pa.array([], pa.string()),
        "bucket": pa.array([], pa.int64()),
        "v": pa.array([], pa.float64()),
        "bad": pa.array([], pa.int32()),
    }
)


def _statistic_sql(source: Source, within: Selection) -> str:
    """Rows of name, step, v, bad: sketches of the same site and step merged where there are any."""
    if source.rank is None:
        v, bad = f'"{source.stat}"', "nonfinite > 0"
        origin = f"stats where {within.where}"
    else:
        v, bad = queries.STATISTICS[source.stat], "nans + pos_infs + neg_infs > 0"
        origin = f"({queries.merged(queries.KEY, where=within.where)})"
    number = f"cast(coalesce({bad}, false) as integer)"
    return f"select name, step, cast({v} as double) as v, {number} as bad from {origin}"


def _metric_sql(within: Selection) -> str:
    return f"""
        select module as name, step, case when isfinite(value) then value end as v,
            cast(not isfinite(value) as integer) as bad
        from (
            select * from numbers where {within.where}
            qualify row_number() over (
                partition by step, module order by rank, attempt desc, ordinal desc
            ) = 1
        )
    """


def _binned_part(rows: pa.Table, stat: str, stride: int) -> pa.Table:
    keys, merged = sketching.merge_by(rows, ("name", "step"))
    steps = np.array([step for _, step in keys], np.int64)
    return pa.table(
        {
            "name": pa.array([str(name) for name, _ in keys], pa.string()),
            "bucket": pa.array(steps // stride),
            "v": pa.array(statistic(stat)(merged)),
            "bad": pa.array((merged.counts[:, 2:5].sum(axis=1) > 0).astype(np.int32)),
        }
    )


def _cells(rows: pa.Table, row_of: Mapping[str, int], grid: Grid) -> Cells:
    n = max(row_of.values(), default=-1) + 1
    values = np.full((n, len(grid)), np.nan, np.float32)
    flags = np.full((n, len(grid)), EMPTY, np.uint8)
    if rows.num_rows == 0:
        return Cells(values, flags)
    names = rows["name"].combine_chunks().dictionary_encode()
    places = np.array([row_of.get(str(x), -1) for x in names.dictionary.to_pylist()], np.int64)
    at = places[names.indices.to_numpy(zero_copy_only=False)]
    column = grid.column_of(rows["bucket"].to_numpy())
    with np.errstate(over="ignore"):
        found = rows["v"].to_numpy().astype(np.float32)
    bad = rows["bad"].to_numpy() > 0
    kept = (at >= 0) & (column >= 0)
    at, column, found, bad = at[kept], column[kept], found[kept], bad[kept]
    values[at, column] = found
    flag = np.where(bad | np.isinf(found), NONFINITE, np.where(np.isnan(found), EMPTY, NUMBER))
    flags[at, column] = flag
    return Cells(values, flags)
