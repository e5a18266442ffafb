"""Histograms over the steps of a run: every tensor of a module, on edges that hold all steps."""

from __future__ import annotations

import re
from typing import cast

from sonde.record import Site
from sonde.sketch import Sketch
from sonde.sketch.histograms import HistogramHistory, history
from sonde.store.reading.run import Run


def of_module(run: Run, module: str, bins: int) -> dict[Site, HistogramHistory]:
    """The history of each tensor and parameter of the module itself, not of those inside it."""
    own = f"re:^{re.escape(module)}(\\.[^.]+)?$" if module else "re:^[^.]*$"
    sketches: dict[str, dict[int, Sketch]] = {}
    for key, sketch in run.merge(own, by=("name", "step"), missing="ok").items():
        name, step = cast("tuple[str, int]", key)
        sketches.setdefault(name, {})[step] = sketch
    known = [s for s in run.catalogue().sites if s.module == module and s.name in sketches]
    return {site: history(sketches[site.name], bins) for site in known}
