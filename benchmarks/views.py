"""How soon the explorer answers: `python benchmarks/views.py [--keep DIR]`.

A run of the shape of a transformer of 70 B parameters (see `large_runs.py`) is served by `sonde
view` and asked for every view: what the first paint needs, of a server that was just started; then
each view for the first time and the best of three after that. Memory is that of the server and its
workers together. Then a graph of 78,754 modules is stored, read, folded and opened. Writes
`results/views.csv`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from large_runs import RESULTS, Figure, Served, experts, keep, make_experts, make_transformer
from sonde.graph.folding import Folder, ModuleTree
from sonde.store import open_run
from sonde.views.envelope import unpack

FIRST_PAINT = ("runs", "run", "lines", "heat", "movers")
"""What the page asks for before it has something to look at."""


def questions(run: str, block: int, step: int) -> Iterator[tuple[str, str, dict]]:
    """Name, view and question of all that is asked, in the order in which a page asks."""
    yield "runs", "runs", {}
    for view in ("run", "tree", "level"):
        yield view, view, {"run": run}
    yield "lines", "lines", {"run": run, "columns": 2400}
    yield "heat", "heat", {"run": run, "columns": 2000}
    yield "heat of outputs", "heat", {"run": run, "kind": "output", "columns": 2000}
    yield "heat, folded", "heat", {"run": run, "kind": "output", "fold": 1}
    yield "movers", "movers", {"run": run, "kind": "param_grad"}
    yield "level of a block", "level", {"run": run, "node": f"model.layers.{block}"}
    node = "model"
    yield "tint", "tint", {"run": run, "node": node, "kind": "output", "step": step}
    yield (
        "tint without lines",
        "tint",
        {"run": run, "node": node, "kind": "output", "step": step - 7, "sparks": 0},
    )
    yield "panel", "panel", {"run": run, "node": f"model.layers.{block}.mlp"}
    site = f"model.layers.{block}.mlp.up_proj/output/0"
    yield "kymograph", "kymograph", {"run": run, "site": site, "columns": 600}
    yield (
        "kymograph of a part",
        "kymograph",
        {"run": run, "site": site, "first": step // 2, "last": step, "scale": "log"},
    )
    yield "section", "section", {"run": run, "site": site, "step": step}
    yield "search", "search", {"run": run, "q": "*.q_proj"}
    yield "spark", "spark", {"run": run}


def measure_first_paint(path: Path) -> Iterator[Figure]:
    """The questions of the overview, one after the other, to a server that has just started."""
    served = Served(path)
    try:
        time.sleep(3)  # a person takes as long to open the address
        start, cpu_s = time.perf_counter(), served.cpu_s()
        run = served.run_id()
        asked = {name: question for name, _, question in questions(run, 0, 0)}
        for view in FIRST_PAINT[1:]:
            served.get(view, **asked[view])
        yield "first paint: all answers, just started", time.perf_counter() - start, "s"
        yield "first paint: processor time", served.cpu_s() - cpu_s, "s"
        yield "memory after the first paint", served.memory() / 2**20, "MiB"
    finally:
        served.stop()


def measure_views(path: Path, block: int, step: int) -> Iterator[Figure]:
    served = Served(path)
    try:
        run = served.run_id()
        yield "memory of a server that nobody asked", served.memory() / 2**20, "MiB"
        highest = 0
        for name, view, question in questions(run, block, step):
            taken = []
            for _ in range(4):
                start = time.perf_counter()
                size = len(served.get(view, **question))
                taken.append(time.perf_counter() - start)
                highest = max(highest, served.memory())
            yield f"{name}: first answer", taken[0], "s"
            yield f"{name}: again", min(taken[1:]), "s"
            cpu_s = served.cpu_s()
            for _ in range(5):
                served.get(view, **question)
            yield f"{name}: processor time", (served.cpu_s() - cpu_s) / 5, "s"
            yield f"{name}: size", size / 1000, "kB"
        cursor = unpack(served.get("heat", run=run))["spec"]["columns"]["cursor"]
        start = time.perf_counter()
        served.get("heat", run=run, after=cursor)
        yield "heat: nothing new", time.perf_counter() - start, "s"
        yield "memory, highest seen", highest / 2**20, "MiB"
    finally:
        served.stop()


def measure_experts(path: Path) -> Iterator[Figure]:
    modules = experts()
    yield "many modules: modules", len(modules), ""
    if not path.exists():
        yield "many modules: graph stored", make_experts(path, modules), "s"
    with open_run(path, frame="arrow") as run:
        start = time.perf_counter()
        graph = run.graph
        yield "many modules: graph read", time.perf_counter() - start, "s"
        start = time.perf_counter()
        level = graph.level("model.layers.3.mlp")
        folded = Folder(graph).fold(level.nodes, level.edges)
        _ = ModuleTree(graph.modules).folded_path
        yield "many modules: graph and tree folded", time.perf_counter() - start, "s"
        yield "many modules: boxes of a block's experts", len(folded.folds), ""
    served = Served(path)
    try:
        run_id = served.run_id()
        cpu_s = served.cpu_s()
        for name, view, question in (
            ("header", "run", {}),
            ("tree", "tree", {}),
            ("level", "level", {}),
            ("level of experts", "level", {"node": "model.layers.3.mlp"}),
            ("heat", "heat", {}),
        ):
            start = time.perf_counter()
            size = len(served.get(view, run=run_id, **question))
            yield f"many modules: {name}", time.perf_counter() - start, "s"
            yield f"many modules: {name}, size", size / 1000, "kB"
        yield "many modules: processor time of all", served.cpu_s() - cpu_s, "s"
        yield "many modules: memory", served.memory() / 2**20, "MiB"
    finally:
        served.stop()


def measure(folder: Path, blocks: int, steps: int) -> Iterator[Figure]:
    path = folder / "transformer"
    if not path.exists():
        start = time.perf_counter()
        yield "sites", make_transformer(path, blocks, steps), ""
        yield "run made", time.perf_counter() - start, "s"
    yield "size of the run", sum(f.stat().st_size for f in path.rglob("*.parquet")) / 1e6, "MB"
    yield from measure_first_paint(path)
    yield from measure_views(path, blocks // 2, steps // 2)
    yield from measure_experts(folder / "experts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--keep", type=Path, help="make the runs here, or use those that are there")
    parser.add_argument("--out", type=Path, default=RESULTS / "views.csv")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        keep(measure(folder, asked.blocks, asked.steps), asked.out)


if __name__ == "__main__":
    main()
