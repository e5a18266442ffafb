"""Routes: every view by name, with the question that it takes and the spec that it answers.

The server makes its addresses from this table and the page its types, so neither can know a view
that the other does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sonde.views import questions as q
from sonde.views import specs as s


@dataclass(frozen=True, slots=True)
class Route:
    """A view: `api/<name>` takes a question and answers with a spec.

    `by` names the function that makes the answer from an opened run, by its place in this package:
    only the processes that read runs load it. The server answers the others itself. With
    `of_several` the function gets all runs, by id.
    """

    name: str
    question: type
    answer: type
    by: str = ""
    of_several: bool = False

    @property
    def of_run(self) -> bool:
        """Whether the question names one run by `run`."""
        return bool(self.by)


ROUTES: Final[Mapping[str, Route]] = {
    route.name: route
    for route in (
        Route("server", q.NoQuestion, s.Server),
        Route("runs", q.NoQuestion, s.Runs),
        Route("state", q.StateQuestion, s.State),
        Route("run", q.RunQuestion, s.RunHeader, "header:answer"),
        Route("spark", q.SparkQuestion, s.Spark, "numbers.lines:spark"),
        Route("clock", q.ClockQuestion, s.TimeAxis, "numbers.clock:answer"),
        Route("tree", q.TreeQuestion, s.Tree, "structure.tree:answer"),
        Route("level", q.LevelQuestion, s.GraphLevel, "structure.level:answer"),
        Route("panel", q.PanelQuestion, s.Panel, "structure.panel:answer"),
        Route("search", q.SearchQuestion, s.Hits, "structure.tree:search"),
        Route("lines", q.LinesQuestion, s.Lines, "numbers.lines:answer"),
        Route("heat", q.HeatQuestion, s.Heat, "numbers.heat:answer"),
        Route("kymograph", q.KymographQuestion, s.Kymograph, "numbers.kymograph:answer"),
        Route("section", q.SectionQuestion, s.CrossSection, "numbers.section:answer"),
        Route("variable", q.VariableQuestion, s.Variable, "traced.variable:answer"),
        Route("tint", q.TintQuestion, s.Tint, "structure.tint:answer"),
        Route("table", q.TableQuestion, s.LayerTable, "numbers.table:answer"),
        Route("movers", q.MoversQuestion, s.Movers, "numbers.movers:answer"),
        Route("compare", q.CompareQuestion, s.ComparedRuns, "pairs.summary:answer", True),
        Route("paired_heat", q.PairedHeatQuestion, s.PairedHeat, "pairs.heat:answer", True),
        Route(
            "paired_section", q.PairedSectionQuestion, s.PairedSection, "pairs.section:answer", True
        ),
    )
}
