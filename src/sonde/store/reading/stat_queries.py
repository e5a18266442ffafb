"""Tables of answers: statistics, numbers and merged sketches out of the rows of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde._errors import RunError, SondeError
from sonde.record import FINAL, Site, Sketches
from sonde.sketch import Sketch, concatenate, needs_bins, needs_sums, row, statistic
from sonde.sketch.columns import empty, merge_groups
from sonde.store.reading import sketch_rows
from sonde.store.reading.catalogue import Catalogue, Kinds, check_missing, check_stage, names_meant
from sonde.store.reading.selection import Selection
from sonde.store.sql import counting, queries

DEFAULT_STATS: Final = ("mean", "std", "rms", "max_abs", "sparsity", "nonfinite")
BY: Final = ("step", "phase", "name", "module", "kind", "call", "slot", "rank")

_ROWS_AT_ONCE: Final = 100_000
"""Sketches with bins that are in memory together: about 100 MB."""


class QueryRunner(Protocol):
    """Something that answers queries over the views of `sonde.store.sql.queries`."""

    def sql(
        self,
        query: str,
        params: Sequence[object] | Mapping[str, object] | None = None,
        *,
        frame: str | None = None,
    ) -> object: ...


def ask(
    run: QueryRunner, query: str, params: Sequence[object] | Mapping[str, object] | None = None
) -> pa.Table:
    """Return the answer to a query over the views as an Arrow table."""
    return run.sql(query, params, frame="arrow")


def check_stats(stat: str | Sequence[str] | None) -> list[str]:
    """The names asked for. Raises if there is no such statistic."""
    if stat is None:
        return list(DEFAULT_STATS)
    names = [stat] if isinstance(stat, str) else list(stat)
    for name in names:
        try:
            statistic(name)
        except ValueError as error:
            raise SondeError(str(error)) from None
    return list(dict.fromkeys(names))


def check_by(by: str | Sequence[str] | None) -> list[str]:
    """The columns to group by. Raises on any other."""
    columns = [by] if isinstance(by, str) else list(by or ())
    for column in columns:
        if column not in BY:
            raise SondeError(f"Cannot merge by `{column}`. Known are: {', '.join(BY)}.")
    return columns


def of_sites(
    chosen: Selection,
    catalogue: Catalogue,
    pattern: str,
    kind: Kinds,
    stage: str | None = FINAL,
    missing: str = "error",
) -> Selection:
    """Only the sites that match."""
    if pattern == "*":
        check_stage(stage)
        kinds = catalogue.kinds(kind)
        chosen.one_of("kind", None if kinds is None else sorted(kinds))
        return chosen.equal(f"({counting.STAGE})", stage)
    sites = catalogue.select(pattern, kind, stage, missing)
    return chosen.one_of("name", [site.name for site in sites])


def statistics(
    run: QueryRunner,
    *,
    catalogue: Catalogue,
    pattern: str,
    kind: Kinds,
    stat: str | Sequence[str] | None,
    selection: Selection,
    rank: int | None,
    all_attempts: bool,
    stage: str | None = FINAL,
    missing: str = "error",
) -> pa.Table:
    """The answer of `Run.stats`."""
    names = check_stats(stat)
    table = source_of(rank, all_attempts=all_attempts)
    chosen = of_sites(selection.equal("rank", rank), catalogue, pattern, kind, stage, missing)
    key = [*counting.KEY, *(["attempt"] if all_attempts else [])]
    if rank is None and not all_attempts and not any(needs_bins(name) for name in names):
        return _with_sites(_from_view(run, chosen, names), catalogue, names, all_attempts)
    if not all_attempts:
        chosen.add("not replaced")
    if any(needs_bins(name) for name in names):
        rows = _from_bins(run, chosen, key, names, table)
    else:
        merged = queries.merged(key, where=chosen.where, table=table)
        query = f"select {', '.join(key)}, {queries.statistics(names)} from ({merged})"
        rows = ask(run, query, chosen.parameters)
    return _with_sites(rows, catalogue, names, all_attempts)


def source_of(rank: int | None, *, all_attempts: bool = False) -> str:
    """The rows to read: all of one rank, or those that count when ranks are merged."""
    if rank is not None:
        return "records"
    return "counted_by_attempt" if all_attempts else "counted"


def sketch(
    run: QueryRunner, site: Site, step: int | None, *, phase: str, rank: int | None
) -> Sketch:
    """The answer of `Run.sketch`. Raises if there is none, and says which steps there are."""
    chosen = Selection(["not replaced"]).equal("name", site.name).equal("phase", phase)
    chosen.equal("rank", rank)
    table = source_of(rank)
    if step is None:
        last = ask(run, f"select max(step) from {table} where {chosen.where}", chosen.parameters)
        step = last.column(0)[0].as_py()
        if step is None:
            raise SondeError(f"`{site.name}` has no record in phase `{phase}`.")
    at = Selection([*chosen.conditions], [*chosen.parameters]).steps(step)
    rows = ask(run, f"select {sketch_rows.COLUMNS} from {table} where {at.where}", at.parameters)
    if rows.num_rows == 0:
        raise SondeError(_no_such_step(run, site, step, chosen, table))
    return row(sketch_rows.merge_by(rows, ())[1], 0)


def _no_such_step(run: QueryRunner, site: Site, step: int, chosen: Selection, table: str) -> str:
    query = f"select distinct step from {table} where {chosen.where} order by abs(step - ?) limit 5"
    near = ask(run, query, [*chosen.parameters, step])["step"].to_pylist()
    if not near:
        return f"`{site.name}` has no record in that phase and rank."
    shown = ", ".join(str(s) for s in sorted(near))
    return f"`{site.name}` has no record at step {step}. The nearest steps are: {shown}."


def of_numbers(
    run: QueryRunner,
    chosen: Selection,
    view: str,
    wanted: Mapping[str, str | None],
    missing: str,
) -> Selection:
    """Only the numbers whose columns match the patterns."""
    for column, pattern in wanted.items():
        if pattern is None:
            check_missing(missing)
            continue
        known = ask(run, f"select distinct {column} from {view} order by all")[column].to_pylist()
        what = column if column == "module" else view.removesuffix("s")
        meant = names_meant(pattern, [str(n) for n in known], what, missing)
        chosen.one_of(column, meant)
    return chosen


def numbers(
    run: QueryRunner, view: str, chosen: Selection, *, rank: int | None, all_attempts: bool
) -> pa.Table:
    """The answer of `Run.scalars` and `Run.metrics`."""
    columns = (
        "step, phase, name, value" if view == "scalars" else "step, phase, module, name, value"
    )
    if rank is None and not all_attempts:
        order = "order by step, name" if view == "scalars" else "order by step, module, name"
        query = f"select {columns} from {view} where {chosen.where} {order}"
        return ask(run, query, chosen.parameters)
    chosen.equal("rank", rank)
    chosen.add("module is null" if view == "scalars" else "module is not null")
    if not all_attempts:
        chosen.add("not replaced")
    shown = f"{columns}, attempt" if all_attempts else columns
    query = f"""
        select {shown} from numbers where {chosen.where}
        qualify row_number() over (
            partition by {"attempt, " if all_attempts else ""} step, phase, module, name
            order by rank, attempt desc, ordinal desc
        ) = 1 order by step, module, name, attempt
    """
    return ask(run, query, chosen.parameters)


def merge(
    run: QueryRunner, chosen: Selection, by: Sequence[str], table: str
) -> tuple[list[sketch_rows.Key], Sketches]:
    """Merged sketches of all rows that match, one per value of the columns, ordered by them."""
    keys: dict[sketch_rows.Key, int] = {}
    merged = empty()
    columns = ", ".join((*by, sketch_rows.COLUMNS))
    for part in _in_parts(run, chosen, table):
        rows = ask(run, f"select {columns} from {table} where {part.where}", part.parameters)
        found, sketches = sketch_rows.merge_by(rows, by) if rows.num_rows else ([], empty())
        at = [keys.setdefault(key, len(keys)) for key in found]
        both = concatenate([merged, sketches])
        groups = np.array([*range(len(merged)), *at], np.int64)
        merged = merge_groups(both, groups, len(keys))
    ordered = sorted(keys, key=repr if not by else lambda key: key)
    place = {key: i for i, key in enumerate(ordered)}
    groups = np.array([place[key] for key in keys], np.int64)
    return ordered, merge_groups(merged, groups, len(ordered))


def _from_view(run: QueryRunner, chosen: Selection, names: Sequence[str]) -> pa.Table:
    """Statistics that need no bins: computed by the engine from the columns that they need."""
    columns = ", ".join((*counting.KEY, *(f'"{name}"' for name in names)))
    return ask(run, f"select {columns} from stages where {chosen.where}", chosen.parameters)


def _from_bins(
    run: QueryRunner, chosen: Selection, key: Sequence[str], names: Sequence[str], table: str
) -> pa.Table:
    """Statistics that read the bins: a part of the rows at a time, through `sonde.sketch`."""
    has_sums = any(needs_sums(name) for name in names)
    columns = sketch_rows.COLUMNS if has_sums else sketch_rows.WITHOUT_SUMS
    query = f"select {', '.join(key)}, {columns} from {table} where "
    parts = []
    for part in _in_parts(run, chosen, table):
        rows = ask(run, query + part.where, part.parameters)
        if rows.num_rows == 0:
            continue
        for found, merged in sketch_rows.merged_parts(rows, key):
            values = [pa.array(statistic(name)(merged)) for name in names]
            parts.append(pa.table([*found.columns, *values], names=[*key, *names]))
    if parts:
        return pa.concat_tables(parts)
    types = {"step": pa.int64(), "attempt": pa.int32()}
    fields = [pa.field(c, types.get(c, pa.string())) for c in key]
    return pa.schema([*fields, *(pa.field(n, pa.float64()) for n in names)]).empty_table()


def _in_parts(run: QueryRunner, chosen: Selection, table: str) -> list[Selection]:
    """The selection, cut into ranges of steps that fit in memory."""
    rows = ask(
        run,
        f"select step, count(*) as n from {table} where {chosen.where} group by step order by step",
        chosen.parameters,
    )
    steps, counts = rows["step"].to_numpy(), rows["n"].to_numpy()
    parts, first, held = [], 0, 0
    for i, n in enumerate(counts):
        held += n
        if held >= _ROWS_AT_ONCE or i == len(counts) - 1:
            part = Selection([*chosen.conditions], [*chosen.parameters])
            parts.append(part.steps((int(steps[first]), int(steps[i]))))
            first, held = i + 1, 0
    return parts


def _with_sites(
    rows: pa.Table, catalogue: Catalogue, names: Sequence[str], all_attempts: bool
) -> pa.Table:
    """Rows in order, with the parts of each site's name as columns."""
    for column in ("step", "name", "phase"):
        if rows[column].null_count:
            raise RunError(f"A segment of this run holds a row without `{column}`.")
    encoded = rows["name"].combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    known = [str(name) for name in encoded.dictionary.to_pylist()]
    places = [catalogue.order.get(name, len(catalogue.sites)) for name in known]
    step = rows["step"].to_numpy()
    attempt = rows["attempt"].to_numpy() if all_attempts else np.zeros(len(step), np.int32)
    phases = (
        rows["phase"].combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    )
    order = np.lexsort((phases, attempt, np.array(places, np.int64)[codes], step))
    sites = [catalogue.by_name.get(name) or _parsed(name) for name in known]
    at = codes[order]
    columns = {
        "step": pa.array(step[order]),
        "phase": rows["phase"].take(pa.array(order)),
        "module": _spread([site.module for site in sites], at),
        "kind": _spread([str(site.kind) for site in sites], at),
        "call": pa.array(np.array([site.call for site in sites], np.int32)[at]),
        "slot": _spread([site.slot for site in sites], at),
        "name": _spread(known, at),
        **({"attempt": pa.array(attempt[order])} if all_attempts else {}),
        **{name: _values(rows[name], name, order) for name in names},
    }
    return pa.table(columns)


def _values(column: pa.ChunkedArray, name: str, order: NDArray[np.int64]) -> pa.Array:
    """Numbers in order: whole for counts, else floats, NaN where there is nothing to say."""
    is_count = statistic(name).format == "count"
    if is_count and column.null_count:
        raise RunError(f"A segment of this run holds a sketch without `{name}`.")
    values = column.to_numpy()
    return pa.array(values[order].astype(np.int64 if is_count else np.float64))


def _spread(values: Sequence[str], at: NDArray[np.int64]) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(at))


def _parsed(name: str) -> Site:
    """A site from its printable name, for rows whose declaration was lost."""
    path, _, rest = name.partition("/")
    kind, _, slot = rest.partition("/")
    module, _, call = path.partition("#")
    number = int(call) if call.isdecimal() else 0
    return Site("" if module == "." else module, kind, number, slot)  # type: ignore[arg-type]
