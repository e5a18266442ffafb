"""Answers: the function behind each view of a run."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from sonde.store.sql.inquiry import careful
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun

Answer = Callable[[OpenedRun, Any], object]


def _function(by: str) -> Answer:
    module, _, name = by.partition(":")
    found: Answer = getattr(import_module(f"sonde.views.{module}"), name)
    return found


ANSWERS: Final = {r.name: careful(_function(r.by)) for r in ROUTES.values() if r.of_run}
"""The views of one run. For `server`, `runs` and `state` see `sonde.views.runs.run_list`."""
