"""Answers: which function answers which view."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sonde.store.inquiry import careful
from sonde.views import (
    header,
    heat,
    kymograph,
    level,
    lines,
    movers,
    panel,
    section,
    tint,
    tree,
    variable,
)
from sonde.views.subject import Subject

_ANSWERS: Final[Mapping[str, Callable[[Subject, Any], object]]] = {
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
"""The views of one run. `server`, `runs` and `state` are of none: see `sonde.views.shelf`."""
