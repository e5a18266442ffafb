"""Answers: which function answers which view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sonde.store.sql.inquiry import careful
from sonde.views.numbers import heat, kymograph, lines, movers, section
from sonde.views.runs import header
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.structure import level, panel, tint, tree
from sonde.views.traced import variable

_ANSWERS: Final[Mapping[str, Callable[[OpenedRun, Any], object]]] = {
    "run": header.answer,
    "spark": lines.spark,
    "tree": tree.answer,
    "level": level.answer,
    "panel": panel.answer,
    "search": tree.search,
    "lines": lines.answer,
    "heat": heat.answer,
    "kymograph": kymograph.answer,
    "section": section.answer,
    "variable": variable.answer,
    "tint": tint.answer,
    "movers": movers.answer,
}
ANSWERS: Final = {view: careful(answer) for view, answer in _ANSWERS.items()}
"""The views of one run. For `server`, `runs` and `state` see `sonde.views.runs.run_list`."""
