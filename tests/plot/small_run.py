"""A run with known values: three modules, ten steps, one of which holds NaN."""

from pathlib import Path

import numpy as np

from sonde.kernels.reference import sketch
from sonde.record import (
    CallPort,
    GraphEdge,
    GraphModule,
    GraphNode,
    GraphPart,
    NumberBatch,
    Site,
    SiteInfo,
    SketchBatch,
)
from sonde.sketch import concatenate
from sonde.store import Writer

STEPS = 10
PATHS = ("up", "act", "down")
NAN_STEP = 7


def values(site: int, step: int) -> np.ndarray:
    found = np.random.default_rng(100 * step + site).normal(size=400) * 2.0**site
    if step == NAN_STEP and site == 2:
        found[3] = np.nan
    return found


def write(path: Path) -> None:
    port = (CallPort("0", "float32", (2, 4)),)
    with Writer(path, compact=False) as writer:
        writer.sites(
            [
                SiteInfo(i, Site(p, "output"), "float32", (400,), "Linear")
                for i, p in enumerate(PATHS)
            ]
        )
        writer.graph(
            GraphPart(
                0,
                modules=[GraphModule(p, "Linear" if p else "Model", "", 20) for p in ("", *PATHS)],
                nodes=[
                    GraphNode(p or ".", p, 0, "module", "." if p else "", port, port, 1)
                    for p in ("", *PATHS)
                ],
                edges=[GraphEdge("up", "act", 1), GraphEdge("act", "down", 1)],
                passes=1,
                notes=[],
            )
        )
        for step in range(STEPS):
            rows = concatenate([sketch(values(i, step)).columns() for i in range(len(PATHS))])
            writer.sketches(SketchBatch(step, "train", np.arange(len(PATHS), dtype=np.int32), rows))
            loss = np.array([np.nan if step == NAN_STEP else 1.0 / (step + 1)])
            writer.numbers(NumberBatch(step, "train", ["loss"], [None], loss))
