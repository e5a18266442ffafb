"""Runs for the tests of views, with every value that went into them kept aside, so that an answer
can be judged by plain numpy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sonde.graph.model import node_id
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
from sonde.store import Writer, open_run
from sonde.views.answers import ANSWERS
from sonde.views.questions import parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun

BLOCKS = 4
TYPES = {"": "Block", "attn": "Attention", "mlp": "Linear"}
MODULES = {
    "": "Model",
    "embed": "Embedding",
    **{
        f"h.{i}" + (f".{name}" if name else ""): kind
        for i in range(BLOCKS)
        for name, kind in TYPES.items()
    },
    "head": "Linear",
}
OUTPUTS = [Site(path, "output") for path in MODULES]
GRADS = [Site(path, "param_grad", 0, "weight") for path, t in MODULES.items() if t == "Linear"]
SITES = [*OUTPUTS, *GRADS]
STEPS = [*range(30), *range(30, 60, 3)]

ALL_NAN, SOME_NAN, SOME_INF, EMPTY, ZEROS = (
    "h.2.mlp/output/0",
    "h.1.attn/output/0",
    "h.1.mlp/output/0",
    "h.3.attn/output/0",
    "h.0.attn/output/0",
)


@dataclass
class Told:
    """A run, and what it was told: `values[name, step, phase]` is one array per rank."""

    path: Path
    values: dict[tuple[str, int, str], list[np.ndarray]] = field(default_factory=dict)
    numbers: dict[tuple[str, str | None, str, int], float] = field(default_factory=dict)

    def seen(self, name: str, steps: int | Iterable[int], phase: str = "train") -> np.ndarray:
        """All values of a site in these steps, ranks together."""
        some = [steps] if isinstance(steps, int) else steps
        parts = [x for step in some for x in self.values.get((name, step, phase), [])]
        return np.concatenate(parts) if parts else np.empty(0)

    def subject(self) -> OpenedRun:
        return OpenedRun(open_run(self.path, frame="arrow"), "id")

    def open(self):
        return open_run(self.path, frame="arrow")


def asked(subject: OpenedRun, view: str, **question: object):
    """The answer to a question whose parameters come as text, as from a page."""
    pairs = [("run", subject.id)]
    for name, value in question.items():
        several = value if isinstance(value, list) else [value]
        pairs += [(name, str(int(v)) if isinstance(v, bool) else str(v)) for v in several]
    return ANSWERS[view](subject, parse(ROUTES[view].question, pairs))


def tensor(name: str, step: int, rank: int = 0) -> np.ndarray:
    """What a site holds at a step: other numbers for each, and strange ones at known places."""
    rng = np.random.default_rng([abs(hash_of(name)), step, rank])
    x = rng.normal(size=40) * 2.0 ** (hash_of(name) % 7 - 3) * (1 + step / 20)
    if name == ALL_NAN and step == 21:
        x[:] = np.nan
    if name == SOME_NAN and 12 <= step < 15:
        x[3] = np.nan
    if name == SOME_INF and step == 17:
        x[:2] = np.inf, -np.inf
    if name == EMPTY and step == 5:
        x = x[:0]
    if name == ZEROS:
        x[::2] = 0.0
    return x.astype(np.float32).astype(np.float64)


def hash_of(name: str) -> int:
    return sum((i + 1) * ord(c) for i, c in enumerate(name))


def infos(sites: list[Site] = SITES) -> list[SiteInfo]:
    return [
        SiteInfo(i, site, "float32", (5, 8), MODULES.get(site.module, "Linear"))
        for i, site in enumerate(sites)
    ]


def write_step(
    told: Told,
    writer: Writer,
    step: int,
    *,
    sites: list[Site] = SITES,
    rank: int = 0,
    phase: str = "train",
    scale: float = 1.0,
) -> None:
    """One step of sketches and numbers."""
    made = []
    for site in sites:
        x = tensor(site.name, step, rank) * scale
        told.values.setdefault((site.name, step, phase), []).append(x)
        made.append(sketch(x).columns())
    ids = np.arange(len(sites), dtype=np.int32)
    writer.sketches(SketchBatch(step, phase, ids, concatenate(made)))
    loss = np.nan if step == 20 else scale * 10 / (1 + step) + rank
    names, modules, values = ["loss"], [None], [loss]
    if phase == "train":
        names += ["lr", "norm", "norm"]
        modules += [None, "h.0", "h.1"]
        values += [1e-3 * step, np.sin(step), -float(step)]
    for name, module, value in zip(names, modules, values, strict=True):
        told.numbers.setdefault((name, module, phase, step), value)
    writer.numbers(NumberBatch(step, phase, names, modules, np.array(values)))


def graph() -> GraphPart:
    """Blocks in a chain; attention and MLP in a chain inside each, with a residual."""
    port = (CallPort("0", "float32", (5, 8)),)

    def call(path: str) -> GraphNode:
        parent = path.rpartition(".")[0]
        above = "" if not path else "." if parent in {"", "h"} else node_id(parent, 0)
        return GraphNode(node_id(path, 0), path, 0, "module", above, port, port, 3)

    def port_of(path: str, kind: str) -> GraphNode:
        return GraphNode(f"{path or '.'}/{kind}/0", path, 0, kind, path or ".", port, port, 3)

    ways = [("./input/0", "embed"), ("embed", "h.0"), ("head", "./output/0")]
    ways += [(f"h.{i}", f"h.{i + 1}" if i + 1 < BLOCKS else "head") for i in range(BLOCKS)]
    nodes = [call(""), port_of("", "input")]
    for path in list(MODULES)[1:]:
        nodes.append(call(path))
        if path.count(".") == 1:
            nodes += [port_of(path, "input"), port_of(path, "output")]
            ways += [(f"{path}/input/0", f"{path}.attn"), (f"{path}.attn", f"{path}.mlp")]
            ways += [(f"{path}.mlp", f"{path}/output/0")]
    nodes.append(port_of("", "output"))
    modules = [
        GraphModule(path, kind, "8, 8, bias=False" if kind == "Linear" else "", 64)
        for path, kind in MODULES.items()
    ]
    edges = [GraphEdge(a, b, 3 - (a == "embed")) for a, b in ways]
    return GraphPart(0, modules, nodes, edges, 3)


def recorded(path: Path, steps: Iterable[int] = STEPS, ranks: int = 1, **options: object) -> Told:
    """A run of the model above, a phase `eval` every tenth step, by one rank or several."""
    told = Told(path)
    steps = list(steps)
    for rank in range(ranks):
        with Writer(path, rank=rank, world_size=ranks, compact=False, **options) as writer:
            writer.sites(infos())
            if rank == 0:
                writer.graph(graph())
            for step in steps:
                write_step(told, writer, step, rank=rank)
                if step % 10 == 9:
                    write_step(told, writer, step, rank=rank, phase="eval", scale=0.5)
    return told


def finite(x: np.ndarray) -> np.ndarray:
    return x[np.isfinite(x)]


def rms(x: np.ndarray) -> float:
    some = finite(x)
    return float(np.sqrt(np.mean(some**2))) if len(some) else np.nan
