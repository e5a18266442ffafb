"""A traced variable at a step: its value, and the line of source that gave it.

Values are kept when they change, so the one at a step is the last one at or before it. A tensor is
read from its file, checked and shown as a matrix of cells; what is too large for a question is said
and not read.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Final, TypedDict

from sonde.record import Site
from sonde.store import packing
from sonde.store.documents import DamagedError
from sonde.store.reading.selection import Selection
from sonde.store.tensors import TensorReader, TraceRow
from sonde.views import ids
from sonde.views.questions import VariableQuestion
from sonde.views.runs.opened_run import (
    MAX_LABEL,
    MAX_PATH,
    OpenedRun,
    SiteEntry,
    shape_text,
    shown,
    site_ref,
)
from sonde.views.specs import Matrix, SourceLine, Variable
from sonde.views.traced import source
from sonde.views.traced.matrix import matrix, sides

MAX_BYTES: Final = 256 << 20
"""A value that is larger is not read."""

MAX_ELEMENTS: Final = 1 << 26
"""A matrix of more elements is not drawn."""

MAX_TEXT: Final = 2000
_MAX_JSON: Final = 1_000_000
_MAX_PARTS: Final = 10_000
_MAX_PLAIN: Final = 10_000

_LAST: Final = 1 << 62
_ROW: Final = (
    "rank, attempt, ordinal, name, line, kind, part, dtype, shape, nbytes, file, "
    f'"offset", crc, case when length(value) <= {_MAX_JSON} then value end as value'
)


class NearestSteps(TypedDict):
    """The step of a value that is meant, None if there is none, and the steps beside it."""

    rank: int
    ranks: int
    step: int | None
    before: int | None
    after: int | None


def answer(subject: OpenedRun, question: VariableQuestion) -> Variable:
    """The last value at or before a step, of one rank: the first that has any, if none is named."""
    entry = _entry(subject, question.site)
    chosen = Selection(["not replaced", "kind in ('tensor', 'value')"])
    chosen.equal("module", entry.site.module).equal("slot", entry.site.slot)
    chosen.equal("call", entry.site.call)
    chosen.equal("phase", question.phase).equal("rank", question.rank)
    if entry.site.kind != "local":
        chosen.add("false")
    when = _nearest(subject, chosen, question.step)
    bare = Variable(
        site=site_ref(entry),
        name="",
        asked=question.step,
        step=when["step"],
        previous=when["before"],
        next=when["after"],
        rank=when["rank"],
        nth=0,
        of=0,
        dtype="",
        shape=None,
        text="",
        matrix=None,
        method="",
        lines=(),
        notes=_when_notes(entry, question, when),
    )
    if when["step"] is None:
        return bare
    chosen.equal("rank", when["rank"]).equal("step", when["step"])
    return _filled(subject, question, chosen, bare)


def plain(subject: OpenedRun, module: str | None = None) -> list[SiteEntry]:
    """Variables, of a module or of all, that never were a tensor: no site tells of them."""
    chosen = Selection(["not replaced", "kind = 'value'"]).equal("module", module)
    rows = subject.ask(
        f"select module, call, slot from traces where {chosen.where} group by all "
        f"order by min(step), min(ordinal) limit {_MAX_PLAIN}",
        chosen.parameters,
    ).to_pylist()
    sites = [Site(str(r["module"] or ""), "local", r["call"] or 0, str(r["slot"])) for r in rows]
    known = subject.structure.by_name
    return [SiteEntry(site, "", (), "") for site in sites if site.name not in known]


def _entry(subject: OpenedRun, id: str) -> SiteEntry:
    """The site with that id, or the variable that has none."""
    if id not in subject.structure.by_id:
        for entry in plain(subject):
            if ids.of_name(entry.site.name) == id:
                return entry
    return subject.site(id)


def _filled(
    subject: OpenedRun, question: VariableQuestion, chosen: Selection, bare: Variable
) -> Variable:
    """The answer with the value that was chosen."""
    counted = subject.ask(
        f"select count(*) as n from traces where {chosen.where}", chosen.parameters
    )
    of = int(counted["n"][0].as_py())
    nth = of - 1 if question.nth is None else min(question.nth, of - 1)
    row = subject.ask(
        f"select {_ROW} from traces where {chosen.where} "
        "order by attempt, ordinal limit 1 offset ?",
        [*chosen.parameters, nth],
    ).to_pylist()[0]
    value = _tensor(subject, row, question) if row["kind"] == "tensor" else _plain(subject, row)
    method, lines = source.around(subject.run, row, question.context)
    if not lines:
        value.notes.append("the source of its line was not kept")
    return replace(
        bare,
        name=shown(row["name"] or "", MAX_PATH),
        nth=nth,
        of=of,
        dtype=value.dtype,
        shape=value.shape,
        text=value.text,
        matrix=value.matrix,
        method=shown(method, MAX_PATH),
        lines=tuple(
            SourceLine(n, shown(text, MAX_LABEL), is_here=n == row["line"]) for n, text in lines
        ),
        notes=(*bare.notes, *value.notes),
    )


@dataclass(frozen=True, slots=True)
class _Value:
    """What there is to show of a value."""

    notes: list[str]
    dtype: str = ""
    shape: tuple[int, ...] | None = None
    text: str = ""
    matrix: Matrix | None = None


def _tensor(subject: OpenedRun, row: TraceRow, question: VariableQuestion) -> _Value:
    dtype, shape = shown(str(row["dtype"] or ""), 60), tuple(n or 0 for n in row["shape"] or ())
    how = f'`run.trace("{shown(row["name"] or "", MAX_LABEL)}")` reads it'
    if (row["nbytes"] or 0) > MAX_BYTES:
        return _Value([f"too large to draw ({row['nbytes']:,} bytes): {how}"], dtype, shape[:64])
    elements = math.prod(sides(shape))
    if elements > MAX_ELEMENTS:
        return _Value([f"too large to draw ({elements:,} elements): {how}"], dtype, shape[:64])
    try:
        array = TensorReader(subject.run.path).read(row)
    except (DamagedError, OSError) as error:  # an OSError would tell a path of this machine
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return _Value([f"cannot be read: {shown(reason or '', 300)}"], dtype, shape[:64])
    found = matrix(array, item=question.item, rows=question.rows, columns=question.columns)
    return _Value(_cell_notes(dtype, found), dtype, shape, "", found)


def _plain(subject: OpenedRun, row: TraceRow) -> _Value:
    """What is no tensor, as a text. Tensors inside it are told by dtype and shape."""
    if row["value"] is None:
        return _Value(["too long to show"])
    parts = subject.ask(
        "select dtype, shape from traces where kind = 'part' and rank = ? and attempt = ? "
        f"and ordinal = ? order by part limit {_MAX_PARTS}",
        [row["rank"], row["attempt"], row["ordinal"]],
    ).to_pylist()
    try:
        arrays = [_Inner(str(p["dtype"]), tuple(p["shape"] or ())) for p in parts]
        value = packing.unflatten(json.loads(row["value"]), arrays)
    except (DamagedError, ValueError, TypeError, RecursionError) as error:
        return _Value([f"cannot be read: {shown(str(error), 300)}"])
    return _Value([], text=source.text_of(value, MAX_TEXT))


@dataclass(frozen=True, slots=True, repr=False)
class _Inner:
    """In place of a tensor inside a value."""

    dtype: str
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<{self.dtype} {shape_text(self.shape)}>"


def _nearest(subject: OpenedRun, chosen: Selection, step: int | None) -> NearestSteps:
    """Rank and step of the value that is meant, the steps beside it, how many ranks have any."""
    at = _LAST if step is None else step
    found: NearestSteps = subject.ask(
        f"""
        with kept as (select step, rank from traces where {chosen.where}),
        who as (select min(rank) as rank, count(distinct rank) as ranks from kept),
        mine as (select distinct step from kept where rank = (select rank from who)),
        here as (select max(step) as step from mine where step <= ?)
        select who.rank as rank, who.ranks as ranks, here.step as step,
            (select max(m.step) from mine m where m.step < here.step) as before,
            (select min(m.step) from mine m where m.step > coalesce(here.step, ?)) as after
        from who, here
        """,
        [*chosen.parameters, at, at],
    ).to_pylist()[0]
    return found


def _when_notes(
    entry: SiteEntry, question: VariableQuestion, when: NearestSteps
) -> tuple[str, ...]:
    if entry.site.kind != "local":
        return ("whole values are kept of variables that `sonde.trace` follows, not of this",)
    if when["step"] is None and when["after"] is None:
        return ("no value was kept in this phase and rank",)
    if when["step"] is None:
        return (f"no value was kept up to here: the first is of step {when['after']:,}",)
    notes = []
    if question.step is not None and when["step"] != question.step:
        notes.append(f"kept at step {when['step']:,}, the last one up to step {question.step:,}")
    if when["ranks"] > 1 or question.rank is not None:
        notes.append(f"rank {when['rank']}")
    return tuple(notes)


def _cell_notes(dtype: str, found: Matrix) -> list[str]:
    notes = []
    if not found.items:
        notes.append("has no elements")
    if found.cell_rows * found.cell_columns > 1:
        size = f"{found.cell_rows}×{found.cell_columns}"
        notes.append(f"each cell = {size} elements, the one farthest from zero")
    if dtype.startswith("complex"):
        notes.append("magnitudes of complex numbers")
    if found.not_finite:
        notes.append(f"{found.not_finite:,} of {found.height * found.width:,} not finite")
    return notes
