"""Comparisons in a report or a widget: what the Compare page asks about a run and some others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sonde._errors import SondeError
from sonde.present.archive import Asked, Question, step_of
from sonde.present.report.wish import Wish
from sonde.store.reading.run import Run
from sonde.views import ids
from sonde.views import questions as q
from sonde.views.answers import ANSWERS, ANSWERS_OF_SEVERAL
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.runs.run_list import RunList
from sonde.views.runs.several import SeveralRuns
from sonde.views.specs import ComparedRuns, Measure, RunHeader, RunRow, RunState

COMPARISONS: Final = "heatmaps of two runs"
PAIRS: Final = "histograms of two runs"
_MOST_STEPS: Final = 4
_MOST_FAR: Final = 12
_MOST_SITES: Final = 200


class Comparisons:
    """The run beside each of the others. Of those nothing else is kept but their scalars."""

    def __init__(self, first: OpenedRun, header: RunHeader, others: Sequence[Run]) -> None:
        listed = [RunList(run.path) for run in others]
        self.rows: tuple[RunRow, ...] = tuple(row for one in listed for row in one.table().runs)
        self._first = first
        self._header = header
        self._others = [
            OpenedRun(run, one.runs()[0].id) for run, one in zip(others, listed, strict=True)
        ]
        opened = {one.id: one for one in (first, *self._others)}
        if len(opened) <= len(others):
            raise SondeError("A run cannot be compared with itself. Name other runs, each once.")
        self._runs = SeveralRuns(opened.__getitem__)

    @property
    def states(self) -> tuple[RunState, ...]:
        """How far the others have come."""
        return tuple(one.state() for one in self._others)

    def first(
        self, kind: str | None = None, stat: str | None = None, measure: Measure = "ratio"
    ) -> list[Question]:
        """What the Compare page shows first."""
        run, found = self._first.id, list[Question]()
        for one in self._others:
            found.append(("compare", q.CompareQuestion(run=run, other=one.id)))
            heat = self._heat(one, kind or self._header.kind)
            if heat is not None:
                heat = replace(heat, stat=stat or heat.stat, measure=measure)
                found.append(("paired_heat", heat))
        return found

    def histograms(self, site: str, step: int | None) -> list[Question]:
        """Both histograms of a tensor, for each of the others."""
        return [("paired_section", self._pair(one, site, step)) for one in self._others]

    def fixed(self) -> Iterator[Asked]:
        """The line of each of the others in the timeline, and its name."""
        name = self._header.timeline
        for one in self._others:
            asked: list[Question] = [("run", q.RunQuestion(run=one.id))]
            if name is not None:
                asked.append(("lines", q.LinesQuestion(run=one.id, name=(name,), columns=2048)))
            for view, question in asked:
                spec = ANSWERS[view](one, question)
                yield Asked(view, question, spec, state=one.state())

    def wishes(self, kinds: Sequence[str], steps: Sequence[int]) -> Iterator[Wish]:
        """All kinds, how far values are apart, then both histograms of each tensor."""
        for one in self._others:
            main = self._heat(one, self._header.kind)
            some = [self._heat(one, kind) for kind in kinds if kind != self._header.kind]
            some += [] if main is None else [replace(main, measure="distance")]
            for heat in (heat for heat in some if heat is not None):
                yield Wish(COMPARISONS, partial(self.answers, [("paired_heat", heat)]))
        few = steps[:: max(1, -(-len(steps) // _MOST_STEPS))]
        for one in self._others:
            far = self._far_sites(one)
            rest = [ids.of_name(e.site.name) for e in self._first.structure.entries]
            for site in list(dict.fromkeys([*far, *rest]))[:_MOST_SITES]:
                at = dict.fromkeys((*few, far[site])) if site in far else ()
                asked = [("paired_section", self._pair(one, site, step)) for step in (*at, None)]
                yield Wish(PAIRS, partial(self.answers, asked))

    def answers(self, asked: Sequence[Question]) -> Iterator[Asked]:
        """Those that there are: one run may lack what the other has."""
        for view, question in asked:
            try:
                spec = ANSWERS_OF_SEVERAL[view](self._runs, question)
            except SondeError:
                continue
            yield Asked(view, question, spec, step_of(view, spec))

    def _far_sites(self, other: OpenedRun) -> dict[str, int]:
        """The first tensor that differs and those that are farthest apart, by id: at which step."""
        question = q.CompareQuestion(run=self._first.id, other=other.id)
        found: ComparedRuns = ANSWERS_OF_SEVERAL["compare"](self._runs, question)  # type: ignore[assignment]  # of the view `compare`
        far = {row.site.id: row.step for row in found.farthest[:_MOST_FAR]}
        return far if found.first is None else {**far, found.first.site.id: found.first.step}

    def _heat(self, other: OpenedRun, kind: str | None) -> q.PairedHeatQuestion | None:
        if kind is None:
            return None
        return q.PairedHeatQuestion(
            run=self._first.id, other=other.id, kind=kind, stat=self._header.stat, columns=512
        )

    def _pair(self, other: OpenedRun, site: str, step: int | None) -> q.PairedSectionQuestion:
        return q.PairedSectionQuestion(run=self._first.id, other=other.id, site=site, step=step)
