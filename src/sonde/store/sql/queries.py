"""Questions in SQL: the DuckDB connection of a run and the views that it offers.

Views, as documented for users (`run.sql`):

* `stats`: one row per step, phase and site, ranks merged and replaced attempts hidden. `step`,
  `phase`, `name`, `module`, `kind`, `call`, `slot`, `dtype`, then every named statistic that needs
  no bins (`sonde.sketch.STATISTICS`); null where there is nothing to say.
* `stages`: as `stats`, with gradients as they were before clipping too, and the column `stage`
  (`final`, `before_clip`). All other views but `sites` and `records` have the final stage only.
* `bins`: one row per step, phase, site and occupied bin. As `stats` up to `slot`, then `bin`,
  `low`, `high`, `count`.
* `scalars`: `step`, `phase`, `name`, `value`. `metrics`: the same with `module`.
* `sites`: `name`, `module`, `kind`, `call`, `slot`, `dtype`, `shape`, `module_type`, `stage`,
  `requires_grad` (of parameters), `dropout_p` (of dropout modules).
* `scalars`, `metrics`, `sites`, `events`, `graph`
* `traces`: one row per traced value and per array in it, see `run.trace`.
* `records`, `numbers`  the rows as they were written, per rank and attempt, with `replaced`
* `counted`: the rows of `records` that merged answers are made of: one replica of each part, and
  only of tensors that are whole (`sonde.store.sql.counting`).

Only files that a snapshot has checked are named in a view.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from sonde._errors import SondeError
from sonde.record import COUNTS, EXTREMA, FINAL, SUMS
from sonde.sketch import STATISTICS
from sonde.sketch import bins as _bins
from sonde.store.limits import Limits
from sonde.store.schemas import EVENTS, GRAPH, NUMBERS, SITES, SKETCHES, TRACES, Table
from sonde.store.segments import Attempt, Segment
from sonde.store.snapshots import Snapshot
from sonde.store.sql import spilling
from sonde.store.sql.counting import (
    KEY,
    SITE_COLUMNS,
    STAGE,
    counted,
    is_spread,
    norms,
    replaced_from,
)

Connection: TypeAlias = duckdb.DuckDBPyConnection
"""duckdb.DuckDBPyConnection; DuckDB has no types that mypy can follow."""

_LOCKED_THREADS: Final = 2
_ROWS_AT_ONCE: Final = 16_384


class TooMuchError(SondeError):
    """The answer to a query is larger than its limit."""


def connect(root: str, *, limits: Limits | None = None, locked: bool | None = None) -> Connection:
    """A connection for questions about the run at `root`.

    `locked` (by default where limits are given) is for SQL that comes from elsewhere: it reads
    files of the run and no others, loads no extensions, and cannot be unlocked. Writing into the
    run is for the caller to refuse: see `is_question`.
    """
    locked = limits is not None if locked is None else locked
    limits = limits or Limits()
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
        },
    )
    settings = {
        row[0] for row in connection.execute("select name from duckdb_settings()").fetchall()
    }
    if "parquet_metadata_cache" in settings:
        connection.execute("set global parquet_metadata_cache = true")
    if "enable_progress_bar" in settings:
        connection.execute("set enable_progress_bar = false")
    _make_bin_edges(connection)
    connection.execute(f"set memory_limit = '{limits.memory_bytes // 1024} KiB'")
    threads = limits.threads or (_LOCKED_THREADS if locked else None)
    if threads is not None:
        connection.execute(f"set threads = {threads}")
    spill = None if locked else spilling.folder()
    connection.execute(f"set temp_directory = {_quote(spill or '')}")
    if spill is not None:
        connection.execute(f"set max_temp_directory_size = '{limits.spill_bytes // 1024} KiB'")
    if not locked:
        return connection
    allowed = ", ".join(_quote(text) for text in dict.fromkeys((root, _literal(root))))
    connection.execute(f"set allowed_directories = [{allowed}]")
    connection.execute("set enable_external_access = false")
    connection.execute("set lock_configuration = true")
    return connection


def is_question(connection: Connection, query: str) -> bool:
    """Whether the text is one statement that only reads."""
    statements = connection.extract_statements(query)
    return len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT


def to_arrow(relation: duckdb.DuckDBPyRelation, limit_bytes: int) -> pa.Table:
    """The whole answer, taken in pieces so that one that is too large is noticed on the way."""
    rename = "to_arrow_reader" if hasattr(relation, "to_arrow_reader") else "fetch_arrow_reader"
    reader = getattr(relation, rename)(_ROWS_AT_ONCE)
    batches, held = [], 0
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        except (OSError, pa.ArrowException) as error:
            raise _engine_error(str(error)) from None
        batches.append(batch)
        held += batch.nbytes
        if held > limit_bytes:
            raise TooMuchError(
                f"The answer has more than {limit_bytes >> 20} MiB. Ask for fewer steps, sites or "
                "columns, or allow more: `limits=sonde.store.Limits(answer_bytes=...)` when the "
                "run is opened."
            )
    return pa.Table.from_batches(batches, reader.schema)


def _engine_error(text: str) -> duckdb.Error:
    """The error that DuckDB meant: what comes with a batch has lost its class on the way."""
    kinds = {
        "Conversion Error": duckdb.ConversionException,
        "IO Error": duckdb.IOException,
        "INTERNAL Error": duckdb.InternalException,
        "Interrupt": duckdb.InterruptException,
        "Invalid Input Error": duckdb.InvalidInputException,
        "Out of Memory Error": duckdb.OutOfMemoryException,
        "Out of Range Error": duckdb.OutOfRangeException,
    }
    found = next((kind for name, kind in kinds.items() if name in text[:200]), duckdb.Error)
    error: duckdb.Error = found(text)
    return error


def make_views(connection: Connection, snapshot: Snapshot) -> None:
    """Point all views at the segments of the snapshot."""
    ends = replaced_from(snapshot)
    stats, numbers = snapshot.segments[SKETCHES.name], snapshot.segments[NUMBERS.name]
    views = {
        "records": _rows(SKETCHES, stats, ends),
        "numbers": _rows(NUMBERS, numbers, ends),
        "all_sites": _rows(SITES, snapshot.segments[SITES.name], {}),
        "events": _rows(EVENTS, snapshot.segments[EVENTS.name], {}, with_replaced=False),
        "traces": _rows(TRACES, snapshot.segments[TRACES.name], ends),
        "graph": _rows(GRAPH, snapshot.segments[GRAPH.name], {}, with_replaced=False),
        "counted": counted(stats),
        "counted_by_attempt": counted(stats, by_attempt=True),
        "stages": _stages_view(must_merge(stats)),
        "stats": f"select * exclude (stage) from stages where stage = '{FINAL}'",
        "bins": _bins_view(must_merge(stats)),
        "scalars": _scalars_view(numbers, with_norms=is_spread(stats)),
        "metrics": _numbers_view("module is not null", "step, phase, module, name, value", numbers),
        "sites": _sites_view(),
    }
    connection.execute("begin")
    try:
        for name, query in views.items():
            connection.execute(f"create or replace view {name} as {query}")
        connection.execute("commit")
    except BaseException as error:
        connection.execute("rollback")
        if isinstance(error, duckdb.Error):
            _check_statistics(connection)
        raise


def _check_statistics(connection: Connection) -> None:
    """Raise if the SQL of a statistic is at fault, which one."""
    columns = [f"0::bigint as {c}" for c in COUNTS] + [f"0.0::double as {c}" for c in SUMS]
    columns += [f"0.0::double as {c}" for c in EXTREMA]
    for known in STATISTICS.values():
        if known.sql is not None:
            try:
                connection.execute(f"select {known.sql} from (select {', '.join(columns)})")
            except duckdb.Error as error:
                raise SondeError(
                    f"The SQL of the statistic `{known.name}` is wrong: {error}"
                ) from None


def must_merge(segments: Iterable[Segment]) -> bool:
    """Whether rows with the same key may occur: of several ranks, of one, or of two attempts.

    A resumed attempt replaces what came before it from its step on; only rows that it writes for
    earlier steps can meet older ones.
    """
    found = list(segments)
    return len({s.name.attempt.rank for s in found}) > 1 or any(
        s.repeats or (s.steps is not None and s.steps[0] < (s.resume_from_step or 0)) for s in found
    )


def _rows(
    table: Table,
    segments: Iterable[Segment],
    ends: Mapping[Attempt, int],
    *,
    with_replaced: bool = True,
) -> str:
    """All rows of a table. Whether a row is replaced is known for most segments as a whole."""
    kept: list[Segment] = []
    gone: list[Segment] = []
    split: dict[int, list[Segment]] = {}
    for segment in segments:
        end = ends.get(segment.name.attempt)
        if end is None or segment.steps is None or segment.steps[1] < end:
            kept.append(segment)
        elif segment.steps[0] >= end:
            gone.append(segment)
        else:
            split.setdefault(end, []).append(segment)
    parts = [
        _select(table, kept, "false" if with_replaced else None),
        _select(table, gone, "true"),
        *(_select(table, some, f"step >= {end}") for end, some in sorted(split.items())),
    ]
    return " union all ".join(part for part in parts if part) or _no_rows(table, with_replaced)


def _select(table: Table, segments: list[Segment], replaced: str | None) -> str | None:
    if not segments:
        return None
    present = frozenset.union(*(s.columns for s in segments))
    differ = any(s.columns != present for s in segments)
    columns = [
        _name(f.name)
        if f.name in present
        else f"cast(null as {_sql_type(f.type)}) as {_name(f.name)}"
        for f in table.schema
    ]
    if replaced is not None:
        columns.append(f"({replaced}) as replaced")
    return f"select {', '.join(columns)} from {scan(segments, by_name=differ)}"


def scan(segments: Iterable[Segment], *, by_name: bool = False) -> str:
    """The files of segments, to be selected from."""
    files = ", ".join(_quote(_literal(s.path)) for s in segments)
    # A folder above the run that is named `step=100` would otherwise overwrite the column.
    options = ", hive_partitioning = false" + (", union_by_name = true" if by_name else "")
    return f"read_parquet([{files}]{options})"


def _no_rows(table: Table, with_replaced: bool) -> str:
    columns = [f"cast(null as {_sql_type(f.type)}) as {_name(f.name)}" for f in table.schema]
    if with_replaced:
        columns.append("false as replaced")
    return f"select {', '.join(columns)} where false"


def merged(group: Iterable[str], *, where: str, table: str = "counted") -> str:
    """Sketch columns of a table of records merged by `group`, without bins."""
    by = ", ".join((*group, *SITE_COLUMNS))
    sums = [f"sum({c})::bigint as {c}" for c in COUNTS] + [f"sum({c}) as {c}" for c in SUMS]
    extrema = [f"{'max' if c == 'max' else 'min'}({c}) as {c}" for c in EXTREMA]
    columns = ", ".join(["any_value(dtype) as dtype", *sums, *extrema])
    return f"select {by}, {columns} from {table} where {where} group by {by}"


def statistics(names: Iterable[str]) -> str:
    """A select list of named statistics over merged sketch columns."""
    return ", ".join(f"{STATISTICS[name].sql} as {_name(name)}" for name in names)


def _stages_view(merge: bool) -> str:
    source = merged(KEY, where="true") if merge else "select * from counted"
    columns = ", ".join((*KEY, *SITE_COLUMNS, "dtype"))
    names = [name for name, known in STATISTICS.items() if known.sql is not None]
    return f"select {columns}, {statistics(names)}, {STAGE} as stage from ({source})"


def _bins_view(merge: bool) -> str:
    columns = ", ".join((*KEY, *SITE_COLUMNS))
    rows = (
        f"select {columns}, unnest(bin_ids) as bin, unnest(bin_counts) as n "
        f"from counted where {STAGE} = '{FINAL}'"
    )
    if merge:
        rows = f"select {columns}, bin, sum(n)::bigint as n from ({rows}) group by {columns}, bin"
    return f"select {columns}, bin, low, high, n as count from ({rows}) join bin_edges using (bin)"


def _scalars_view(segments: Iterable[Segment], *, with_norms: bool) -> str:
    written = _numbers_view("module is null", "step, phase, name, value", segments)
    return f"{written} union all select * from ({norms(written)})" if with_norms else written


def _numbers_view(where: str, columns: str, segments: Iterable[Segment]) -> str:
    source = f"select * from numbers where not replaced and {where}"
    if must_merge(segments):
        source += (
            " qualify row_number() over (partition by step, phase, module, name"
            " order by rank, attempt desc, ordinal desc) = 1"
        )
    return f"select {columns} from ({source})"


def _sites_view() -> str:
    return (
        "select name, module, kind, call, slot, dtype, shape, module_type, "
        f"{STAGE} as stage, requires_grad, dropout_p from ("
        "select *, min(ordinal) over (partition by name) as place from all_sites "
        "qualify row_number() over ("
        "partition by name order by rank, attempt desc, ordinal desc) = 1"
        ") order by place, name"
    )


def _make_bin_edges(connection: Connection) -> None:
    """Edges of every bin; NaN has none, and the bins of infinities reach from 2**128 on."""
    positive = np.arange(_bins.INF_BIN + 1)
    low, high = _bins.EDGES, np.append(_bins.EDGES[1:], np.inf)
    edges = pa.table(
        {
            "bin": np.concatenate([positive, positive + _bins.HALF]).astype(np.int16),
            "low": np.concatenate([low, -high]),
            "high": np.concatenate([high, -low]),
        }
    )
    connection.from_arrow(edges).create("bin_edges")


def _sql_type(kind: pa.DataType) -> str:
    names = {
        pa.bool_(): "boolean",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.float64(): "double",
        pa.string(): "varchar",
    }
    if pa.types.is_list(kind):
        return f"{names[kind.value_type]}[]"
    return names[kind]


def _literal(path: str) -> str:
    """A path that DuckDB takes by the letter and not as a pattern."""
    return "".join(f"[{c}]" if c in "[*?" else c for c in path)


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
