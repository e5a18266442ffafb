"""Traced values of a run, read back: which variable, when, on which rank, and what it was.

Values are loaded when they are looked at, as numpy arrays and plain Python values; no framework is
needed. bfloat16 and float8 come as float32, exactly, and `dtypes` says what they were.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast, overload

from sonde._errors import SondeError, SondeWarning
from sonde.store import packing, patterns
from sonde.store.documents import DamagedError
from sonde.store.listing import Damage
from sonde.store.reading.selection import Selection, Steps
from sonde.store.reading.stat_queries import ask
from sonde.store.segments import rank_folder
from sonde.store.tensors import FOLDER, TensorReader, TraceRow

if TYPE_CHECKING:
    import pyarrow as pa

    from sonde.store.reading.run import Run

_COLUMNS: Final = (
    "rank, attempt, ordinal, step, phase, call, name, line, kind, part, dtype, shape, nbytes, "
    'file, "offset", crc, value'
)
_SHOWN: Final = 5
_CACHED: Final = 8


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of a value that cannot be read: why."""

    reason: str


@dataclass(frozen=True, slots=True)
class TracedSource:
    """The text of a method that was traced."""

    name: str
    first_line: int
    text: str


@dataclass(frozen=True, slots=True)
class Traced:
    """The values of a variable (or of several, by a pattern), in the order in which they appeared.

    All lists go together: `values[i]` was seen at `iterations[i]` on `ranks[i]`.
    """

    names: list[str]
    iterations: list[int]
    ranks: list[int]
    values: Values
    calls: list[int]
    lines: list[int]
    phases: list[str]
    dtypes: list[str | None]
    """Of tensors, as they were; None for everything else."""
    shapes: list[tuple[int, ...] | None]

    def __len__(self) -> int:
        return len(self.names)


class Values(Sequence[Any]):
    """Values that are read from disk when they are asked for. `Any`: whatever was traced."""

    def __init__(self, reader: TensorReader, rows: Sequence[Sequence[TraceRow]]) -> None:
        self._reader = reader
        self._rows = rows
        self._recent: dict[int, Any] = {}
        self._has_warned = False

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, at: int) -> Any: ...

    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...

    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        n = at + len(self) if at < 0 else at
        if not 0 <= n < len(self):
            raise IndexError(f"there are {len(self)} values, got index {at}")
        if n not in self._recent:
            while len(self._recent) >= _CACHED:
                del self._recent[next(iter(self._recent))]
            self._recent[n] = self._load(self._rows[n])
        return self._recent[n]

    def __iter__(self) -> Iterator[Any]:
        for n in range(len(self)):
            yield self[n]

    def _load(self, rows: Sequence[TraceRow]) -> object:
        first = rows[0]
        try:
            arrays = [self._reader.read(row).numpy() for row in rows if row["part"] >= 0]
            if first["kind"] == "tensor":
                return arrays[0]
            return packing.unflatten(json.loads(cast("str", first["value"])), arrays)
        except (DamagedError, OSError, ValueError, TypeError, RecursionError, IndexError) as error:
            if not self._has_warned:
                self._has_warned = True
                where = f"`{first['name']}` at step {first['step']}"
                message = f"A value of {where} cannot be read: {error}. The others are."
                warnings.warn(message, SondeWarning, stacklevel=4)
            return Lost(str(error))


@dataclass(slots=True)
class _TraceGroup:
    rows: list[TraceRow] = field(default_factory=list)


def read(
    run: Run,
    name: str,
    *,
    steps: Steps = None,
    phase: str | None = None,
    rank: int | None = None,
    call: int | None = None,
) -> Traced:
    """Values of a name, or of all names that a pattern with `*` stands for, in order of steps."""
    chosen = Selection(["not replaced", "kind <> 'source'"]).steps(steps)
    chosen.equal("phase", phase).equal("rank", rank).equal("call", call)
    names = _names(run, name)
    chosen.add(f"name in ({', '.join('?' * len(names))})", *names)
    found = ask(
        run,
        f"select {_COLUMNS} from traces where {chosen.where} "
        "order by step, rank, attempt, ordinal, part",
        chosen.parameters,
    )
    return _traced(run, found)


def latest(run: Run, *, step: int | None = None, rank: int | None = None) -> Traced:
    """The last value of each name on each line that gave it one, up to a step."""
    chosen = Selection(["not replaced", "kind in ('tensor', 'value')"]).equal("rank", rank)
    if step is not None:
        chosen.add("step <= ?", step)
    found = ask(
        run,
        "with last as (select rank, attempt, ordinal from traces "
        f"where {chosen.where} qualify row_number() over (partition by name, line "
        "order by step desc, attempt desc, rank, ordinal desc) = 1) "
        f"select {_COLUMNS} from traces join last using (rank, attempt, ordinal) "
        "order by line, ordinal, part",
        chosen.parameters,
    )
    return _traced(run, found)


def listing(run: Run) -> pa.Table:
    """One row per traced name."""
    return ask(
        run,
        'select name, module, slot, count(*) as "values", min(step) as first_step, '
        "max(step) as last_step, list_sort(list(distinct rank)) as ranks, "
        "arg_max(dtype, ordinal) as dtype, arg_max(shape, ordinal) as shape, "
        "arg_max(line, ordinal) as line, coalesce(sum(nbytes), 0)::bigint as nbytes from traces "
        "where not replaced and kind in ('tensor', 'value') "
        "group by name, module, slot order by name",
    )


def missing_files(run: Run) -> list[Damage]:
    """Files of arrays that rows point to and that are not there: of a run that was copied in part,
    for example. What is inside the others is checked when a value is read."""
    rows = ask(
        run,
        "select rank, attempt, list_sort(list(distinct file)) as files from traces "
        "where file is not null group by rank, attempt order by rank, attempt",
    )
    reader = TensorReader(run.path)
    found = []
    for row in rows.to_pylist():
        rank, attempt = row["rank"], row["attempt"]
        if rank is None or attempt is None:  # which no writer leaves out
            found.append(Damage("traces", "holds rows of no rank or attempt, with files"))
            continue
        lost = reader.missing(rank, attempt, row["files"])
        if lost:
            folder = f"{FOLDER}/{rank_folder(rank)}"
            some = ", ".join(map(str, lost[:_SHOWN])) + (" ..." if len(lost) > _SHOWN else "")
            problem = f"lacks {len(lost)} of {len(row['files'])} files of traced values ({some})"
            found.append(Damage(f"{folder}/a{attempt:04d}", problem))
    return found


def sources(run: Run, chosen: Selection | None = None) -> dict[str, TracedSource]:
    """The methods that were traced, by name; those of some rows of kind `source`, or of all."""
    chosen = chosen or Selection(["kind = 'source'"])
    rows = ask(
        run,
        f"select name, line, value from traces where {chosen.where} order by attempt, rank desc",
        chosen.parameters,
    )
    found = {}
    for row in rows.to_pylist():
        try:
            text = json.loads(row["value"])
        except (ValueError, TypeError):
            continue
        if isinstance(text, str):
            found[row["name"]] = TracedSource(row["name"], row["line"], text)
    return found


def _traced(run: Run, found: pa.Table) -> Traced:
    """Values, each put together from its rows."""
    groups: dict[tuple[int, int, int], _TraceGroup] = {}
    for row in found.to_pylist():
        key = (row["rank"], row["attempt"], row["ordinal"])
        groups.setdefault(key, _TraceGroup()).rows.append(row)
    whole = [g.rows for g in groups.values() if g.rows[0]["kind"] in ("tensor", "value")]
    firsts = [rows[0] for rows in whole]
    is_tensor = [row["kind"] == "tensor" for row in firsts]
    return Traced(
        names=[row["name"] for row in firsts],
        iterations=[row["step"] for row in firsts],
        ranks=[row["rank"] for row in firsts],
        values=Values(TensorReader(run.path), whole),
        calls=[row["call"] for row in firsts],
        lines=[row["line"] for row in firsts],
        phases=[row["phase"] for row in firsts],
        dtypes=[row["dtype"] if t else None for row, t in zip(firsts, is_tensor, strict=True)],
        shapes=[
            tuple(cast("list[int]", row["shape"])) if t else None
            for row, t in zip(firsts, is_tensor, strict=True)
        ],
    )


def _names(run: Run, pattern: str) -> list[str]:
    """The names that were traced and are meant."""
    rows = ask(run, "select distinct name from traces where kind <> 'source' order by name")
    known: list[str] = rows["name"].to_pylist()
    if pattern in known:
        return [pattern]
    if not known:
        raise SondeError(f"Nothing was traced in `{run.name}`. `sonde.trace(model, [...])` does.")
    found = [name for name in known if matches(pattern, name)]
    if not found:
        near = patterns.nearest(pattern, known, _SHOWN, cutoff=0.4) or known[:_SHOWN]
        shown = ", ".join(f"`{n}`" for n in near)
        raise SondeError(f"`{pattern}` was not traced in `{run.name}`. Traced were: {shown}.")
    return found


def matches(pattern: str, name: str) -> bool:
    """As in `sonde.trace`: `*` is one component of a name, `**` any number of them."""
    return patterns.components_match(
        pattern.split("."), name.split("."), lambda part, one: part in {"*", one}
    )
