"""Answers: the function behind each view of a run, and behind each view of several."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from sonde.store.sql.inquiry import careful
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.runs.several import SeveralRuns

Answer = Callable[[OpenedRun, Any], object]
AnswerOfSeveral = Callable[[SeveralRuns, Any], object]
"""`Any`: the question of the view."""


def _function(by: str) -> Any:  # Any: its first argument is what the route says
    module, _, name = by.partition(":")
    return getattr(import_module(f"sonde.views.{module}"), name)


ANSWERS: Final[dict[str, Answer]] = {
    r.name: careful(_function(r.by)) for r in ROUTES.values() if r.of_run and not r.of_several
}
"""The views of one run. For `server`, `runs` and `state` see `sonde.views.runs.run_list`."""

ANSWERS_OF_SEVERAL: Final[dict[str, AnswerOfSeveral]] = {
    r.name: careful(_function(r.by)) for r in ROUTES.values() if r.of_several
}
"""The views of two runs and more."""
