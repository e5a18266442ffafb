"""A whole run for tests: rows in every table, and all that can be asked of it."""

from __future__ import annotations

import os

import numpy as np
from faulty import QuickFiles
from made import batch, loss, sites

from sonde.record import CallPort, Event, GraphEdge, GraphModule, GraphNode, GraphPart, NumberBatch
from sonde.store import Run, Writer
from sonde.store.packing import flatten
from sonde.store.tensors import TracedValue
from sonde.store.writing.compaction import compact


def traced(step: int, value: object, *, name: str = "h.0.forward.q", line: int = 7) -> TracedValue:
    """A traced value; a numpy array is a plain tensor."""
    tree, arrays = flatten(value)
    kind = "tensor" if isinstance(value, np.ndarray) else "value"
    module, _, slot = name.partition(".forward.")
    slot = f"forward.{slot}"
    tree = None if kind == "tensor" else tree
    return TracedValue(name, module, slot, step, "train", 0, line, kind, tree, arrays)


def source(name: str = "h.0.forward", text: str = "def forward(self, x):\n") -> TracedValue:
    return TracedValue(name, "h.0", "forward", -1, "", 0, 1, "source", text)


def graph_part(step: int = 0) -> GraphPart:
    """A model of two modules, one after the other."""
    port = (CallPort("0", "float32", (2, 4)),)
    paths = ("", "h.0", "h.1")
    return GraphPart(
        step,
        modules=[GraphModule(p, "Linear" if p else "Model", "in=4", 20) for p in paths],
        nodes=[GraphNode(p or ".", p, 0, "module", "." if p else "", port, port, 1) for p in paths],
        edges=[GraphEdge("h.0", "h.1", 1)],
        passes=1,
        notes=[("eager", "Nothing was compiled.")],
    )


def write(path: str | os.PathLike[str], *, steps: int = 9, n_sites: int = 4) -> None:
    """A finished run with rows in every table, of two ranks, of which one was resumed; some of it
    compacted. All follows from `steps` and `n_sites`."""
    every = (
        (0, None, range(steps)),
        (1, None, range(steps)),
        (0, steps - 2, range(steps - 2, steps + 1)),
    )
    for rank, resume, some in every:
        with Writer(
            path,
            rank=rank,
            world_size=2,
            flush_s=60,
            compact=False,
            resume_from_step=resume,
            files=QuickFiles(),
        ) as writer:
            writer.sites(sites(n_sites))
            writer.graph(graph_part())
            writer.tensors([source()])
            for step in some:
                writer.sketches(batch(step, n_sites, rank=rank))
                writer.numbers(loss(step, rank=rank))
                known = np.array([step + rank, step - rank], float)
                writer.numbers(NumberBatch(step, "train", ["rcc", "gain"], ["h.0", "h.1"], known))
                x = np.arange(6, dtype=np.float32).reshape(2, 3) + step + rank
                writer.tensors(
                    [traced(step, x), traced(step, {"k": [step, x]}, name="h.0.forward.d")]
                )
                writer.flush()
            writer.event(Event("skipped", "a meta tensor", where="h.0", step=1, count=3))
        if rank == 1:
            compact(str(path))


def answers(run: Run) -> dict[str, list[str]]:
    """Everything that a run answers, as sorted lists of rows, so that two can be compared."""
    tables = {
        "stats": run.stats(stat=["count", "sum", "min", "max", "p50"], phase=None, frame="arrow"),
        "rank 1": run.stats(stat=["count", "sum"], rank=1, frame="arrow"),
        "attempts": run.stats(stat="count", all_attempts=True, frame="arrow"),
        "scalars": run.scalars(frame="arrow"),
        "metrics": run.metrics(frame="arrow"),
        **{
            view: run.sql(f"select * exclude ({hidden}) from {view}", frame="arrow")
            for view, hidden in {
                "sites": "module_type",
                "bins": "high",
                "events": "t_ns",
                "graph": "t_ns",
                "records": "t_ns",
                "numbers": "t_ns",
                "traces": "t_ns",
            }.items()
        },
    }
    found = {name: sorted(map(repr, table.to_pylist())) for name, table in tables.items()}
    found["steps"] = [repr(run.steps)]
    found["values"] = [
        repr((t, v))
        for name in ("h.0.forward.q", "h.0.forward.d")
        for t, v in zip(run.trace(name).iterations, run.trace(name).values, strict=True)
    ]
    found["nodes"] = [repr(node) for node in run.graph.nodes]
    found["edges"] = [repr(edge) for edge in run.graph.edges]
    return found
