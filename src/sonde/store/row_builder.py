"""Rows from batches: what was handed over, in the columns of the tables.

A `RowBuilder` belongs to one writer and is used by its thread alone. It remembers the declared
sites and notices when a key comes a second time, so that readers know whether there is anything to
merge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde.record import (
    COUNTS,
    EXTREMA,
    N_BINS,
    SUMS,
    CallPort,
    Event,
    GraphPart,
    NumberBatch,
    SiteInfo,
    SketchBatch,
    Sketches,
)
from sonde.store import arrays
from sonde.store.documents import to_plain
from sonde.store.schemas import EVENTS, GRAPH, NUMBERS, SITES, SKETCHES, Table
from sonde.store.segments import Attempt

_UNSEEN = np.iinfo(np.int64).min
_MAX_NUMBER_KEYS = 100_000
_MAX_NUMBER_LISTS = 16
_Numbered = tuple[Sequence[str], Sequence[str | None], NDArray[np.int64], bool]
"""Names and modules of a batch, a number for each pair, and whether there is one twice."""


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """Rows for one segment. `repeats`: a key may have come before in this attempt."""

    table: Table
    data: pa.Table
    repeats: bool
    last_step: int | None


class _Sites:
    """The declared sites as columns, so that rows of them are made without a loop: this runs while
    training runs, and a loop in Python would keep it waiting."""

    def __init__(self, infos: dict[int, SiteInfo]) -> None:
        self.infos = infos
        self.ids = np.sort(np.fromiter(infos, np.int64, len(infos)))
        # In the order of declaration, so that a name keeps its number when more are declared.
        self._rank = np.argsort(np.argsort(np.fromiter(infos, np.int64, len(infos))))
        known = list(infos.values())
        self._numbers = {
            "call": self._sorted([i.site.call for i in known], np.int32),
            "part": self._sorted([_or(i.part, -1) for i in known], np.int32),
            "parts": self._sorted([_or(i.parts, 0) for i in known], np.int32),
        }
        texts = {
            "name": [i.site.name for i in known],
            "module": [i.site.module for i in known],
            "kind": [str(i.site.kind) for i in known],
            "slot": [i.site.slot for i in known],
            "dtype": [i.dtype for i in known],
        }
        self._entries: dict[str, pa.Array] = {}
        self._codes: dict[str, NDArray[np.int32]] = {}
        for name, values in texts.items():
            entries: dict[str, int] = {}
            codes = [entries.setdefault(v, len(entries)) for v in values]
            self._entries[name] = arrays.strings(list(entries))
            self._codes[name] = self._sorted(codes, np.int32)

    def names(self, ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """A number for the name of each of these sites; the same as long as sites are added."""
        return self._codes["name"][np.searchsorted(self.ids, ids)]

    def columns(self, ids: NDArray[np.int32]) -> dict[str, object]:
        """What is known of these sites, a row each."""
        at = np.searchsorted(self.ids, ids)
        found: dict[str, object] = {name: values[at] for name, values in self._numbers.items()}
        for name, codes in self._codes.items():
            used, places = np.unique(codes[at], return_inverse=True)
            found[name] = arrays.dictionary(places, arrays.taken(self._entries[name], used))
        return found

    def _sorted(self, values: Sequence[int], dtype: type[np.int32]) -> NDArray[np.int32]:
        """By id."""
        found = np.empty(len(values), dtype)
        found[self._rank] = values
        return found


class _SeenIds(NamedTuple):
    """The ids of a batch, the codes of their names, and whether two of them share one."""

    sites: _Sites
    ids: NDArray[np.int32]
    codes: NDArray[np.int32]
    is_twice: bool


@dataclass(slots=True)
class RowBuilder:
    """Turns batches of one attempt into rows."""

    attempt: Attempt
    _sites: _Sites = field(default_factory=lambda: _Sites({}))
    _last_steps: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    _number_keys: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    _number_steps: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    _number_lists: dict[tuple[str, int], _Numbered] = field(default_factory=dict)
    _ordinals: dict[str, int] = field(default_factory=dict)
    _seen: _SeenIds | None = None

    def sites(self, declared: Sequence[tuple[SiteInfo, int]]) -> SegmentRows:
        """Rows of newly declared sites, each with its time. Their ids are known from here on."""
        infos = [info for info, _ in declared]
        self._sites = _Sites({**self._sites.infos, **{info.id: info for info in infos}})
        first = self._take_ordinals(SITES, len(infos))
        columns = {
            "ordinal": np.arange(first, first + len(infos)),
            "name": [i.site.name for i in infos],
            "module": [i.site.module for i in infos],
            "kind": [str(i.site.kind) for i in infos],
            "call": [int(i.site.call) for i in infos],
            "slot": [i.site.slot for i in infos],
            "dtype": [i.dtype for i in infos],
            "shape": [[int(n) for n in i.shape] for i in infos],
            "module_type": [i.module_type for i in infos],
            "t_ns": [t_ns for _, t_ns in declared],
            "requires_grad": [i.requires_grad for i in infos],
            "dropout_p": [i.dropout_p for i in infos],
            "part": [_or(i.part, -1) for i in infos],
            "parts": [_or(i.parts, 0) for i in infos],
        }
        return SegmentRows(SITES, self._table(SITES, len(infos), columns), False, None)

    def check(self, batch: SketchBatch) -> None:
        """Raise ValueError if the batch contradicts itself or names an undeclared site."""
        n, s = len(batch.ids), batch.sketches
        shapes = (s.counts.shape, s.sums.shape, s.extrema.shape, s.offsets.shape)
        if shapes != ((n, len(COUNTS)), (n, len(SUMS)), (n, len(EXTREMA)), (n + 1,)):
            raise ValueError(f"columns of {n} sketches have shapes {shapes}")
        ends = (int(s.offsets[0]), int(s.offsets[-1]), len(s.bin_counts))
        if ends != (0, len(s.bin_ids), len(s.bin_ids)) or (np.diff(s.offsets) < 0).any():
            raise ValueError("bins do not fit their offsets")
        if len(s.bin_ids) and not 0 <= s.bin_ids.min() <= s.bin_ids.max() < N_BINS:
            raise ValueError("bin ids lie outside 0..2047")
        self._known(batch.ids)

    def _known(self, ids: NDArray[np.int32]) -> _SeenIds:
        """What is known of these ids; most steps bring the very array of the step before.

        Raises:
            ValueError: if one of them was not declared.
        """
        seen = self._seen
        if seen is None or seen.ids is not ids or seen.sites is not self._sites:
            unknown = ids[~np.isin(ids, self._sites.ids)]
            if len(unknown):
                raise ValueError(f"site id {unknown[0]} was not declared")
            codes = self._sites.names(ids)
            is_twice = len(np.unique(codes)) < len(codes)
            seen = self._seen = _SeenIds(self._sites, ids, codes, is_twice)
        return seen

    def sketches(self, batches: Sequence[tuple[SketchBatch, int]]) -> SegmentRows:
        """Rows of checked batches, each with its time."""
        lengths = [len(b.ids) for b, _ in batches]
        repeats = [self._repeats(b) for b, _ in batches]
        ids = np.concatenate([b.ids for b, _ in batches])
        parts = [b.sketches for b, _ in batches]
        columns: dict[str, object] = {
            "step": np.repeat([np.int64(b.step) for b, _ in batches], lengths),
            "phase": _strings([b.phase for b, _ in batches], lengths),
            **self._sites.columns(ids),
            **_sketch_columns(parts),
            "t_ns": np.repeat([np.int64(t) for _, t in batches], lengths),
        }
        data = self._table(SKETCHES, len(ids), columns)
        return SegmentRows(SKETCHES, data, any(repeats), max(int(b.step) for b, _ in batches))

    def numbers(self, batches: Sequence[tuple[NumberBatch, int]]) -> SegmentRows:
        """Rows of scalars and metrics, each batch with its time."""
        lengths = [len(b.names) for b, _ in batches]
        repeats = [self._number_repeats(b) for b, _ in batches]
        n = sum(lengths)
        first = self._take_ordinals(NUMBERS, n)
        columns: dict[str, object] = {
            "step": np.repeat([np.int64(b.step) for b, _ in batches], lengths),
            "phase": _strings([b.phase for b, _ in batches], lengths),
            "module": [m for b, _ in batches for m in b.modules],
            "name": [str(m) for b, _ in batches for m in b.names],
            "value": np.concatenate([np.asarray(b.values, np.float64) for b, _ in batches]),
            "ordinal": np.arange(first, first + n, dtype=np.int64),
            "t_ns": np.repeat([np.int64(t) for _, t in batches], lengths),
        }
        data = self._table(NUMBERS, n, columns)
        return SegmentRows(NUMBERS, data, any(repeats), max(int(b.step) for b, _ in batches))

    def events(self, events: Sequence[tuple[Event, int]]) -> SegmentRows:
        """Rows of events, each with its time."""
        first = self._take_ordinals(EVENTS, len(events))
        columns = {
            "ordinal": np.arange(first, first + len(events)),
            "step": [int(e.step) for e, _ in events],
            "level": [str(e.level) for e, _ in events],
            "code": [str(e.code) for e, _ in events],
            "place": [str(e.where) for e, _ in events],
            "message": [str(e.message) for e, _ in events],
            "count": [int(e.count) for e, _ in events],
            "data": [json.dumps(to_plain(dict(e.data))) for e, _ in events],
            "t_ns": [t_ns for _, t_ns in events],
        }
        return SegmentRows(EVENTS, self._table(EVENTS, len(events), columns), False, None)

    def graph(self, parts: Sequence[tuple[GraphPart, int]]) -> SegmentRows:
        """Rows of what was newly seen of the graph, each part with its time."""
        rows = [
            {"step": int(p.step), "t_ns": t_ns, **row}
            for p, t_ns in parts
            for row in _graph_rows(p)
        ]
        first = self._take_ordinals(GRAPH, len(rows))
        names = [n for n in GRAPH.schema.names if n not in {"rank", "attempt", "ordinal"}]
        columns: dict[str, object] = {n: [row.get(n) for row in rows] for n in names}
        columns["ordinal"] = np.arange(first, first + len(rows))
        return SegmentRows(GRAPH, self._table(GRAPH, len(rows), columns), False, None)

    def _table(self, table: Table, n: int, columns: dict[str, object]) -> pa.Table:
        who = {
            "rank": np.full(n, self.attempt.rank, np.int32),
            "attempt": np.full(n, self.attempt.number, np.int32),
        }
        made = []
        for schema_field in table.schema:
            values = columns.get(schema_field.name, who.get(schema_field.name))
            made.append(arrays.of_type(values, schema_field.type))
        return pa.Table.from_arrays(made, names=table.schema.names)

    def _take_ordinals(self, table: Table, n: int) -> int:
        first = self._ordinals.get(table.name, 0)
        self._ordinals[table.name] = first + n
        return first

    def _repeats(self, batch: SketchBatch) -> bool:
        """Whether a (step, phase, name) may have come before. Notes this batch as come."""
        codes, is_twice = self._known(batch.ids)[2:]
        last = self._last_steps.get(batch.phase, np.empty(0, np.int64))
        if len(last) < len(self._sites.ids):
            grown = np.full(2 * len(self._sites.ids), _UNSEEN)
            grown[: len(last)] = last
            last = self._last_steps[batch.phase] = grown
        again = is_twice or bool((last[codes] >= batch.step).any())
        last[codes] = np.maximum(last[codes], batch.step)
        return again

    def _number_repeats(self, batch: NumberBatch) -> bool:
        """Whether a (step, phase, name, module) may have come before. Notes this batch as come."""
        if len(self._number_keys) > _MAX_NUMBER_KEYS:
            return True  # no longer remembered: readers look for themselves
        numbered = self._number_lists.get((batch.phase, len(batch.names)))
        if numbered is None or numbered[:2] != (batch.names, batch.modules):
            numbered = self._numbered(batch)
        codes, is_twice = numbered[2:]
        if len(self._number_steps) < len(self._number_keys):
            more = 2 * len(self._number_keys) - len(self._number_steps)
            self._number_steps = np.append(self._number_steps, np.full(more, _UNSEEN))
        last = self._number_steps
        again = is_twice or bool((last[codes] >= batch.step).any())
        last[codes] = np.maximum(last[codes], batch.step)
        return again

    def _numbered(self, batch: NumberBatch) -> _Numbered:
        """The batch's keys as numbers. Most of the time the next one has the same."""
        keys = self._number_keys
        who = zip(batch.names, batch.modules, strict=True)
        found = [keys.setdefault((batch.phase, *each), len(keys)) for each in who]
        codes = np.array(found, np.int64)
        if len(self._number_lists) >= _MAX_NUMBER_LISTS:
            self._number_lists.clear()
        numbered = (batch.names, batch.modules, codes, len(set(found)) < len(found))
        self._number_lists[batch.phase, len(found)] = numbered
        return numbered


def _or(value: int | None, default: int) -> int:
    return default if value is None else int(value)


def size_bytes(batch: SketchBatch | NumberBatch) -> int:
    """About how much memory a batch holds."""
    if isinstance(batch, NumberBatch):
        return 100 * len(batch.names)
    return 10 * len(batch.sketches.bin_ids) + 120 * len(batch.ids)


def graph_rows(part: GraphPart) -> int:
    """How many rows a part of the graph makes."""
    return len(part.modules) + len(part.nodes) + len(part.edges) + len(part.notes) + 1


def _graph_rows(part: GraphPart) -> Iterator[dict[str, object]]:
    for m in part.modules:
        yield {
            "what": "module",
            "id": m.path,
            "module": m.path,
            "type": m.type,
            "text": m.extra,
            "count": int(m.parameters),
        }
    for n in part.nodes:
        yield {
            "what": "node",
            "id": n.id,
            "module": n.module,
            "call": int(n.call),
            "kind": n.kind,
            "parent": n.parent,
            "count": int(n.count),
            "inputs": _ports(n.inputs),
            "outputs": _ports(n.outputs),
        }
    for e in part.edges:
        yield {"what": "edge", "id": e.source, "target": e.target, "count": int(e.count)}
    for word, text in part.notes:
        yield {"what": "note", "id": word, "text": text}
    yield {"what": "pass", "id": "", "count": int(part.passes)}


def _ports(ports: Sequence[CallPort]) -> str:
    return json.dumps([[p.slot, p.dtype, [int(n) for n in p.shape]] for p in ports])


def _sketch_columns(parts: Sequence[Sketches]) -> dict[str, object]:
    counts = np.concatenate([p.counts for p in parts])
    sums = np.concatenate([p.sums for p in parts])
    extrema = np.concatenate([p.extrema for p in parts])
    lengths = np.concatenate([np.diff(p.offsets) for p in parts])
    ids = arrays.of_type(np.concatenate([p.bin_ids for p in parts]), pa.int16())
    bin_counts = arrays.of_type(np.concatenate([p.bin_counts for p in parts]), pa.int64())
    return {
        **{name: np.ascontiguousarray(counts[:, i]) for i, name in enumerate(COUNTS)},
        **{name: np.ascontiguousarray(sums[:, i]) for i, name in enumerate(SUMS)},
        **{name: np.ascontiguousarray(extrema[:, i]) for i, name in enumerate(EXTREMA)},
        "bin_ids": arrays.lists(lengths, ids),
        "bin_counts": arrays.lists(lengths, bin_counts),
    }


def _strings(values: Sequence[str], lengths: Sequence[int]) -> pa.Array:
    return _dictionary([str(v) for v in values], np.repeat(np.arange(len(values)), lengths))


def _dictionary(values: Sequence[str], at: NDArray[np.int64]) -> pa.Array:
    """`values[at]` without a copy per row. Equal values share an entry, as Parquet expects."""
    entries: dict[str, int] = {}
    codes = np.array([entries.setdefault(v, len(entries)) for v in values], np.int32)
    return arrays.dictionary(codes[at] if len(codes) else codes, arrays.strings(list(entries)))
