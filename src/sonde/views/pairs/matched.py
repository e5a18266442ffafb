"""Two runs, with the sites of one matched to those of the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sonde.comparison.result import Comparison, compare
from sonde.views.questions import QuestionError
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.runs.several import SeveralRuns


class AsksAboutTwo(Protocol):
    """A question that names two runs."""

    @property
    def run(self) -> str: ...
    @property
    def other(self) -> str: ...
    @property
    def name(self) -> tuple[str, ...]: ...
    @property
    def phase(self) -> str: ...


def matched(
    runs: SeveralRuns, question: AsksAboutTwo, twin: str | None = None
) -> tuple[OpenedRun, OpenedRun, Comparison]:
    """Both runs and their comparison."""
    a, b = runs.run(question.run), runs.run(question.other)
    other = None if twin is None else runs.run(twin).run
    found = compare(a.run, b.run, names=_names(question.name), twin=other, phase=question.phase)
    return a, b, found


def _names(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in given:
        old, equals, new = pair.partition("=")
        if not equals:
            raise QuestionError(f"`name` must be two paths, such as `encoder=backbone`: {pair}.")
        found[old] = new
    return found
