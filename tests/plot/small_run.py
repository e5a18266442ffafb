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
from sonde.store import Writer, packing
from sonde.store.packing import PackedArray
from sonde.store.tensors import TracedValue

STEPS = 10
PATHS = ("up", "act", "down")
NAN_STEP = 7
VARIABLE = "down/local/forward.y"


def values(site: int, step: int) -> np.ndarray:
    found = np.random.default_rng(100 * step + site).normal(size=400) * 2.0**site
    if step == NAN_STEP and site == 2:
        found[3] = np.nan
    return found


def _variable(step: int) -> TracedValue:
    dense = np.full((2, 3), step, np.float32)
    array = PackedArray("float32", dense.shape, dense.reshape(-1).view(np.uint8))
    tree, parts = packing.flatten(array)
    assert tree is not None
    return TracedValue(
        "down.forward.y", "down", "forward.y", step, "train", 0, 1, "tensor", None, parts
    )


def write(path: Path, *, scale: float = 1.0, is_traced: bool = False) -> None:
    """The run, its values times `scale`; with a traced variable that holds the step."""
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
            found = [scale * values(i, step) for i in range(len(PATHS))]
            rows = concatenate([sketch(x).columns() for x in found])
            writer.sketches(SketchBatch(step, "train", np.arange(len(PATHS), dtype=np.int32), rows))
            loss = np.array([np.nan if step == NAN_STEP else 1.0 / (step + 1)])
            writer.numbers(NumberBatch(step, "train", ["loss"], [None], loss))
            if is_traced:
                epoch = np.array([step**2 / 20])
                writer.numbers(NumberBatch(step, "train", ["epoch"], [None], epoch))
        if is_traced:
            writer.sites(
                [SiteInfo(9, Site("down", "local", 0, "forward.y"), "float32", (2, 3), "M")]
            )
            assert writer.tensors([_variable(step) for step in range(STEPS)], wait_s=10)
