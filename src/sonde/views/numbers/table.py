"""The table of layers: what is worth knowing of each tensor at a step, one row each."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import Sketches
from sonde.sketch import statistic
from sonde.sketch.formats import format_named
from sonde.sketch.model import row as sketch_at
from sonde.store.reading import sketch_rows
from sonde.store.reading.selection import Selection
from sonde.views.numbers.heat import default_kind, is_under
from sonde.views.numbers.movers import changes, nonfinite
from sonde.views.numbers.pooling import of_kind
from sonde.views.questions import TableQuestion
from sonde.views.runs.opened_run import NotFoundError, OpenedRun, site_ref
from sonde.views.specs import LayerRow, LayerTable

_MAX_ROWS: Final = 20_000


def answer(subject: OpenedRun, question: TableQuestion) -> LayerTable:
    """All tensors of a kind at the recorded step at or before the one asked for."""
    structure = subject.structure
    kind = question.kind or default_kind(structure)
    form = format_named(question.format)
    path = "" if question.under is None else subject.path(question.under)
    entries = [e for e in of_kind(structure.entries, kind) if is_under(e.site.module, path)]
    entries = sorted(entries, key=lambda e: structure.order[e.site.name])
    chosen = Selection().equal("phase", question.phase).equal("kind", kind)
    window = Selection([*chosen.conditions], [*chosen.parameters])
    window.steps((question.first, question.last))
    step, ends = _step(subject, window, question.step)
    here = _at(subject, chosen, step)
    bad, _ = nonfinite(subject, window, _MAX_ROWS)
    moved = changes(subject, window, "rms", ends, _MAX_ROWS)
    rows = []
    for e in entries[:_MAX_ROWS]:
        name = e.site.name
        found = here.get(name)
        lost = None if found is None else sketch_at(found, 0).loss(form.name)
        rows.append(
            LayerRow(
                site=site_ref(e),
                node=structure.node_of(e.site.module, e.site.call),
                rms=_one("rms", found),
                max_abs=_one("max_abs", found),
                change=moved.get(name, {}).get("change"),
                zeros=_one("sparsity", found),
                first_nonfinite_step=bad.get(name, {}).get("first"),
                underflow=None if lost is None else _number(lost.underflow),
                overflow=None if lost is None else _number(lost.overflow),
            )
        )
    notes = [f"step {step:,}; change of rms between steps {ends[0]:,} and {ends[1]:,}, as log2"]
    return LayerTable(kind, step, form.name, tuple(rows), tuple(notes))


def _step(subject: OpenedRun, window: Selection, asked: int | None) -> tuple[int, tuple[int, int]]:
    steps: NDArray[np.int64] = subject.ask(
        f"select distinct step from counted where {window.where} order by step",
        window.parameters,
    )["step"].to_numpy()
    if len(steps) == 0:
        raise NotFoundError("no_such_step", "Nothing was recorded here in this phase.")
    at = len(steps) if asked is None else int(np.searchsorted(steps, asked, side="right"))
    return int(steps[max(at - 1, 0)]), (int(steps[0]), int(steps[-1]))


def _at(subject: OpenedRun, chosen: Selection, step: int) -> dict[str, Sketches]:
    """The sketch of each site at a step, ranks together."""
    rows = subject.ask(
        f"select name, step, {sketch_rows.COLUMNS} from counted where {chosen.where} and step = ?",
        [*chosen.parameters, step],
    )
    keys, merged = sketch_rows.merge_by(rows, ("name", "step"))
    return {str(name): sketch_at(merged, i).columns() for i, (name, _) in enumerate(keys)}


def _one(name: str, found: Sketches | None) -> float | None:
    return None if found is None else _number(float(statistic(name)(found)[0]))


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
