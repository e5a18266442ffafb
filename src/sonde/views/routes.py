"""Routes: every view by name, with the question that it takes and the spec that it answers.

The server makes its addresses from this table and the page its types, so neither can know a view
that the other does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sonde.views import questions as q
from sonde.views import specs as s


@dataclass(frozen=True, slots=True)
class Route:
    """A view: `api/<name>`. `of_run` if the question names one run by `run`."""

    name: str
    question: type[Any]
    answer: type[Any]
    of_run: bool = True


ROUTES: Final[Mapping[str, Route]] = {
    route.name: route
    for route in (
        Route("server", q.NoQuestion, s.Server, of_run=False),
        Route("runs", q.NoQuestion, s.Runs, of_run=False),
        Route("state", q.StateQuestion, s.State, of_run=False),
        Route("run", q.RunQuestion, s.RunHeader),
        Route("spark", q.SparkQuestion, s.Spark),
        Route("tree", q.TreeQuestion, s.Tree),
        Route("level", q.LevelQuestion, s.GraphLevel),
        Route("panel", q.PanelQuestion, s.Panel),
        Route("search", q.SearchQuestion, s.Hits),
        Route("lines", q.LinesQuestion, s.Lines),
        Route("heat", q.HeatQuestion, s.Heat),
        Route("kymograph", q.KymographQuestion, s.Kymograph),
        Route("section", q.SectionQuestion, s.CrossSection),
        Route("variable", q.VariableQuestion, s.Variable),
        Route("tint", q.TintQuestion, s.Tint),
        Route("movers", q.MoversQuestion, s.Movers),
    )
}
