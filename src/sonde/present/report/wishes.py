"""Wishes: what a report should hold of a run, the most important first.

A wish is answered as a whole or left out as a whole. How fine answers are follows from the size
limit and from how many tensors there are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, TypeVar

from sonde._errors import SondeError
from sonde._version import VERSION
from sonde.present.archive import Asked, Question, step_of
from sonde.present.report.comparisons import Comparisons
from sonde.present.report.wish import Wish
from sonde.sketch import STATISTICS, Sketch
from sonde.store.reading.run import Run
from sonde.views import envelope, ids
from sonde.views import questions as q
from sonde.views.answers import ANSWERS
from sonde.views.numbers import kymograph, section
from sonde.views.runs.opened_run import MAX_LABEL, OpenedRun, SiteEntry, shown
from sonde.views.runs.run_list import HOW_TO_RECORD, RunList
from sonde.views.specs import GraphLevel, RunHeader, Runs, RunStatus, Server, State, Variable
from sonde.views.traced import variable

TENSORS: Final = "histograms of tensors"
HEATMAPS: Final = "heatmaps"
LEVELS: Final = "levels of the graph"
PANELS: Final = "panels of modules"
INSIDES: Final = "modules inside repeated ones"
TINTS: Final = "colours of boxes"
METRICS: Final = "metrics of modules"
SCALARS: Final = "scalars"
VARIABLES: Final = "traced variables"
TABLES: Final = "tables of layers"
CLOCKS: Final = "time axes"

_AT_ONCE: Final = 100
_MOST_LEVELS: Final = 500
_MOST_PANELS: Final = 3000
_MOST_TINTS: Final = 60
_MOST_METRICS: Final = 2000
_MOST_CLOCKS: Final = 40
_TABLE_STEPS: Final = 4
_CELLS: Final = 64

_FORMATS: Final = ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float4_e2m1fn")
"""Number formats that the page offers."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Detail:
    """How fine answers are: columns of steps at most, and the steps at which tensors are shown."""

    heat_columns: int
    kymograph_columns: int
    steps: tuple[int, ...]
    skipped_steps: int

    @staticmethod
    def of(subject: OpenedRun, tensors: int, limit_bytes: int) -> Detail:
        """What fits: half of the size for histograms over time, a third for those at a step."""
        rows = max((len(subject.structure.sites_of_kind(k)) for k in _kinds(subject)), default=0)
        heat = _largest((2048, 1024, 512, 256), limit_bytes * 0.06 / (5 * max(rows, 1)))
        # 1.6 bytes a cell: two float32, a fifth of which is left after compression, as base64.
        column = 1.6 * _CELLS * max(tensors, 1)
        kymograph = _largest((512, 256, 128, 64), limit_bytes / 2 / column)
        n = int(limit_bytes / 3 / (2000 * max(tensors, 1)))
        recorded = _recorded(subject)
        steps = _spread(recorded, max(4, min(n, 64)))
        return Detail(heat, kymograph, steps, len(recorded) - len(steps))


class Wishes:
    """Everything that a report of this run could hold.

    `names` are the tensors whose histograms are wanted, None for all. `others` are runs that it is
    compared with. What is still (a report) does not follow a run that is live; a widget does.
    """

    def __init__(
        self,
        run: Run,
        names: Sequence[str] | None,
        limit_bytes: int,
        *,
        others: Sequence[Run] = (),
        is_still: bool = True,
    ) -> None:
        listed = RunList(run.path).runs()
        self._listed: Runs = RunList(run.path).table()
        self.subject = OpenedRun(run, listed[0].id if listed else "run")
        entries = self.subject.structure.entries
        chosen = None if names is None else frozenset(names)
        self.sites = [e for e in entries if chosen is None or e.site.name in chosen]
        self.detail = Detail.of(self.subject, len(self.sites), limit_bytes)
        found = self.subject.state()
        self.was_live = found.status == "live"
        self._is_still = is_still
        self.state = replace(found, status=self._shown(found.status))
        self.header: RunHeader = self._ask("run", q.RunQuestion(run=self.id)).spec  # type: ignore[union-attr,assignment]
        self.pairs = Comparisons(self.subject, self.header, others)

    @property
    def id(self) -> str:
        return self.subject.id

    def needed(self) -> Iterator[Asked]:
        """Without these there is no page."""
        yield from self.fixed()
        yield from self.answers(self.first())
        yield from self.pairs.answers(self.pairs.first())

    def fixed(self) -> Iterator[Asked]:
        """What is known without asking a view."""
        name = shown(self.subject.run.name, MAX_LABEL)
        server = Server(VERSION, envelope.API, name, True, time.time() * 1e3, HOW_TO_RECORD)
        rows = tuple(
            replace(r, status=self._shown(r.status)) for r in (*self._listed.runs, *self.pairs.rows)
        )
        states = tuple(replace(s, status=self._shown(s.status)) for s in self.pairs.states)
        yield Asked("server", q.NoQuestion(), server)
        yield Asked("runs", q.NoQuestion(), replace(self._listed, folder=name, runs=rows))
        yield Asked("state", q.StateQuestion(), State("report", "", True, (self.state, *states)))
        header = replace(self.header, status=self._shown(self.header.status))
        yield Asked("run", q.RunQuestion(run=self.id), header)
        yield from self.pairs.fixed()

    def first(self) -> list[Question]:
        """What the page asks first."""
        asked: list[Question] = [
            ("tree", q.TreeQuestion(run=self.id)),
            ("search", q.SearchQuestion(run=self.id, limit=1 << 30)),
            ("level", q.LevelQuestion(run=self.id)),
            ("spark", q.SparkQuestion(run=self.id)),
            ("movers", q.MoversQuestion(run=self.id, limit=12)),
        ]
        if self.header.timeline is not None:
            asked.append(("lines", self._lines(self.header.timeline)))
        if self.header.kind is not None:
            asked.append(("heat", self._heat(self.header.kind, self.header.stat)))
            asked.append(("movers", self._movers(self.header.kind)))
        return asked

    def wishes(self) -> Iterator[Wish]:
        """The rest, the most important first."""
        others = [s.name for s in self.header.scalars if s.name != self.header.timeline]
        for some in _chunks(others):
            asked: list[Question] = [("lines", self._lines(name)) for name in some]
            yield Wish(SCALARS, partial(self.answers, asked), len(some))
        yield from self._clocks()
        yield from self.pairs.wishes(_kinds(self.subject), self.detail.steps)
        kinds = [k for k in _kinds(self.subject) if k != self.header.kind]
        for kind in kinds:
            both = [("heat", self._heat(kind, self.header.stat)), ("movers", self._movers(kind))]
            yield Wish(HEATMAPS, partial(self.answers, both))
        yield from self._structure()
        for kind in _kinds(self.subject):
            yield Wish(TABLES, partial(self._tables, kind))
        yield from self._tensors()
        for stat in _statistics(self.header.stat):
            for kind in _kinds(self.subject):
                asked = [("heat", self._heat(kind, stat)), ("movers", self._movers(kind, stat))]
                yield Wish(HEATMAPS, partial(self.answers, asked))
        yield from self._tints()
        yield from self._metrics()
        for phase in self.header.phases:
            if phase != "train" and self.header.kind is not None:
                asked = [("heat", self._heat(self.header.kind, self.header.stat, phase))]
                yield Wish(HEATMAPS, partial(self.answers, asked))

    # -- structure --------------------------------------------------------------------------------

    def _structure(self) -> Iterator[Wish]:
        for levels in _chunks(self._levels[1:]):
            yield Wish(LEVELS, partial(list, levels), len(levels))
        calls = self.subject.structure.graph.calls
        panels: list[Question] = []
        for path in self.subject.structure.tree.index:
            module = ids.of_name(path)
            nodes = [ids.of_name(node.id) for node in calls.get(path, ())]
            panels.append(("panel", q.PanelQuestion(run=self.id, module=module)))
            panels += [("panel", q.PanelQuestion(run=self.id, node=node)) for node in nodes]
        tensors = [
            ids.of_name(n.id) for n in self.subject.structure.graph.nodes if n.kind != "module"
        ]
        panels += [("panel", q.PanelQuestion(run=self.id, node=node)) for node in tensors]
        for some in _chunks(panels[:_MOST_PANELS]):
            yield Wish(PANELS, partial(self.answers, some), len(some))
        insides = self._insides()
        for some in _chunks(insides[:_MOST_PANELS]):
            yield Wish(INSIDES, partial(self.answers, some), len(some))

    @cached_property
    def _levels(self) -> list[Asked]:
        """The levels from the top down, as far as they are folded."""
        found: list[Asked] = []
        waiting: list[str | None] = [None]
        seen: set[str] = set()
        while waiting and len(found) < _MOST_LEVELS:
            node = waiting.pop(0)
            asked = self._ask("level", q.LevelQuestion(run=self.id, node=node))
            if asked is None:
                continue
            found.append(asked)
            level: GraphLevel = asked.spec  # type: ignore[assignment]  # of the view `level`
            for box in level.nodes:
                inside = [box.node, *(i.node for i in box.instances)] if box.can_open else []
                fresh = [n for n in inside if n is not None and n not in seen]
                seen.update(fresh)
                waiting += fresh
        return found

    def _insides(self) -> list[Question]:
        """Trees of repeated modules other than the first, which the tree holds itself."""
        tree = self.subject.structure.tree
        others = [
            i
            for at in range(len(tree.branches))
            for run in tree.runs(at)
            for i in run[1:]
            if tree.branches[i].children
        ]
        paths = [tree.branches[i].module.path for i in others]
        return [("tree", q.TreeQuestion(run=self.id, module=ids.of_name(path))) for path in paths]

    # -- numbers ----------------------------------------------------------------------------------

    def _clocks(self) -> Iterator[Wish]:
        """Other time axes: seconds, and every scalar."""
        names = ["time", *(s.name for s in self.header.scalars)]
        if self.header.last_step is None:
            return
        for name in names[:_MOST_CLOCKS]:
            asked: list[Question] = [("clock", q.ClockQuestion(run=self.id, name=name))]
            yield Wish(CLOCKS, partial(self.answers, asked))

    def _tables(self, kind: str) -> Iterator[Asked]:
        """All tensors of a kind: at some steps, and in each number format at the last one."""
        main = q.TableQuestion(run=self.id, kind=kind)
        steps = self.detail.steps[:: max(1, -(-len(self.detail.steps) // _TABLE_STEPS))]
        asked = [replace(main, step=step) for step in (*steps, None)]
        asked += [replace(main, format=one) for one in _FORMATS if one != main.format]
        yield from self.answers(("table", one) for one in asked)

    def _tensors(self) -> Iterator[Wish]:
        """Of each tensor its histogram over time, and those at some steps."""
        order = self.subject.structure.order
        for kind in _kinds(self.subject):
            entries = [e for e in self.sites if e.site.kind == kind]
            entries.sort(key=lambda e: order[e.site.name])
            for some in _chunks(entries):
                read = _ReadTensors(self.subject, some, self.detail)
                for entry in some:
                    yield Wish(TENSORS, partial(self._tensor, entry, read))
        for entry in variable.plain(self.subject):
            yield Wish(VARIABLES, partial(self._variable, ids.of_name(entry.site.name)))

    def _tensor(self, entry: SiteEntry, read: _ReadTensors) -> Iterator[Asked]:
        yield from read.of(entry)
        if entry.site.kind == "local":
            yield from self._variable(ids.of_name(entry.site.name))

    def _variable(self, site: str) -> Iterator[Asked]:
        """The values of a traced variable at its steps, the last ones first."""
        step: int | None = None
        for _ in range(max(len(self.detail.steps), 1)):
            asked = self._ask("variable", q.VariableQuestion(run=self.id, site=site, step=step))
            if asked is None:
                return
            yield asked
            step = asked.spec.previous if isinstance(asked.spec, Variable) else None
            if step is None:
                return

    def _tints(self) -> Iterator[Wish]:
        kind, stat = self.header.kind, self.header.stat
        if kind is None:
            return
        for asked in self._levels[:_MOST_TINTS]:
            node = asked.question.node  # type: ignore[attr-defined]  # a LevelQuestion
            steps: Sequence[int | None] = [None]
            if node is None:
                steps = [*self.detail.steps[:: max(1, len(self.detail.steps) // 8)], None]
            yield Wish(TINTS, partial(self._tint, node, kind, stat, steps))

    def _tint(
        self, node: str | None, kind: str, stat: str, steps: Sequence[int | None]
    ) -> Iterator[Asked]:
        asked = q.TintQuestion(run=self.id, node=node, kind=kind, stat=stat, columns=64)
        yield from self.answers([("tint", replace(asked, step=step)) for step in steps])

    def _metrics(self) -> Iterator[Wish]:
        for metric in self.header.metrics:
            question = q.HeatQuestion(
                run=self.id, metric=metric.name, columns=self.detail.heat_columns
            )
            yield Wish(METRICS, partial(self.answers, [("heat", question)]))
        if not self.header.metrics:
            return
        rows = self.subject.ask(
            f"select distinct module, name from metrics order by all limit {_MOST_METRICS}"
        ).to_pylist()
        asked = [
            (
                "lines",
                q.LinesQuestion(
                    run=self.id,
                    name=(shown(row["name"], MAX_LABEL),),
                    module=(ids.of_name(row["module"]),),
                    columns=512,
                ),
            )
            for row in rows
        ]
        for some in _chunks(asked):
            yield Wish(METRICS, partial(self.answers, some), len(some))

    def _shown(self, status: RunStatus) -> RunStatus:
        """What is still is as it was: nothing is known of what came after."""
        return "unknown" if status == "live" and self._is_still else status

    # -- questions --------------------------------------------------------------------------------

    def _lines(self, name: str) -> q.LinesQuestion:
        return q.LinesQuestion(run=self.id, name=(name,), columns=2048)

    def _heat(self, kind: str, stat: str, phase: str = "train") -> q.HeatQuestion:
        columns = self.detail.heat_columns
        return q.HeatQuestion(run=self.id, kind=kind, stat=stat, phase=phase, columns=columns)

    def _movers(self, kind: str, stat: str = "rms") -> q.MoversQuestion:
        return q.MoversQuestion(run=self.id, kind=kind, stat=stat, limit=40)

    def answers(self, asked: Iterable[Question]) -> Iterator[Asked]:
        """Those that there are, to questions by the names of their views."""
        for view, question in asked:
            found = self._ask(view, question)
            if found is not None:
                yield found

    def _ask(self, view: str, question: object) -> Asked | None:
        """The answer of a view; None where there is none, as the page would be told too."""
        try:
            spec = ANSWERS[view](self.subject, question)
        except SondeError:
            return None
        return Asked(view, question, spec, step_of(view, spec))


class _ReadTensors:
    """The histograms of some tensors, read together when the first of them is needed."""

    def __init__(self, subject: OpenedRun, entries: Sequence[SiteEntry], detail: Detail) -> None:
        self._subject = subject
        self._entries = entries
        self._detail = detail

    def of(self, entry: SiteEntry) -> Iterator[Asked]:
        """Over time, and at some steps."""
        site = ids.of_name(entry.site.name)
        if site in self._over_time:
            yield self._over_time[site]
        asked = q.SectionQuestion(run=self._subject.id, site=site)
        for spec in section.of_sketches(entry, asked, self._sketches.get(entry.site.name, {})):
            yield Asked("section", asked, spec, spec.step)

    @cached_property
    def _over_time(self) -> dict[str, Asked]:
        columns = self._detail.kymograph_columns
        asked = [
            q.KymographQuestion(
                run=self._subject.id,
                site=ids.of_name(entry.site.name),
                columns=columns,
                cells=_CELLS,
            )
            for entry in self._entries
        ]
        try:
            found = list(kymograph.several(self._subject, asked))
        except SondeError:
            return {}
        return {question.site: Asked("kymograph", question, spec) for question, spec in found}

    @cached_property
    def _sketches(self) -> dict[str, dict[int, Sketch]]:
        """By name and step."""
        found: dict[str, dict[int, Sketch]] = {}
        kind = str(self._entries[0].site.kind)
        if self._detail.steps:
            steps = list(self._detail.steps)
            merged = self._subject.run.merge(kind=kind, steps=steps, by=("name", "step"))
            wanted = {entry.site.name for entry in self._entries}
            for key, sketch in merged.items():
                name, step = key if isinstance(key, tuple) else (key, 0)
                if name in wanted:
                    found.setdefault(str(name), {})[int(step)] = sketch
        return found


def _kinds(subject: OpenedRun) -> list[str]:
    """Kinds that were recorded, the one that says most first."""
    present = list(dict.fromkeys(str(e.site.kind) for e in subject.structure.entries))
    order = ("param_grad", "output_grad", "output", "param", "update", "optim", "input")
    return sorted(present, key=lambda k: (order.index(k) if k in order else len(order), k))


def _statistics(but: str) -> list[str]:
    """Statistics that every tensor is shown with, if no bins are read for them."""
    known = [s for s in STATISTICS.values() if s.is_main and s.is_listed and not s.needs_bins]
    return [s.name for s in known if s.name != but]


def _recorded(subject: OpenedRun) -> list[int]:
    rows = subject.ask(
        "select distinct step from records where not replaced and phase = 'train' order by step"
    )
    found: list[int] = rows["step"].to_pylist()
    return found


def _spread(steps: Sequence[int], most: int) -> tuple[int, ...]:
    """At most so many of the steps, at equal distances, with the first and the last."""
    if len(steps) <= most:
        return tuple(steps)
    places = [round(i * (len(steps) - 1) / (most - 1)) for i in range(most)]
    return tuple(steps[i] for i in dict.fromkeys(places))


def _largest(sizes: Sequence[int], limit: float) -> int:
    return next((size for size in sizes if size <= limit), sizes[-1])


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for i in range(0, len(items), _AT_ONCE):
        yield items[i : i + _AT_ONCE]
