"""What watching adds to a step on 1, 2 and 4 ranks, and how much of it is placement.

    python benchmarks/ranks_overhead.py [--worlds 1,2,4] [--rounds 12] [--out FILE]

Each rank trains two copies of a transformer in blocks of steps, in turns: one is watched, one is
not. Gloo on the CPU; `ddp` and `fsdp2`, `alone` without either. `ratio` is the watched over the
unwatched step on rank 0, the median over rounds, `low` and `high` its quartiles. With more ranks
than cores steps take longer, and ratios say less.

Placement is timed apart, on rank 0 of the same model: `attach_ms` to find the layout of the model,
`sites_ms` to find the parts of all parameters once, `step_us` to take the local parts of all
gradients, which is what a recorded step adds.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import sonde
from sonde._version import VERSION
from sonde.capture.torch.ranks.local import locals_of
from sonde.capture.torch.ranks.placement import RankLayout

COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "note", "world", "kind"),
    *("every", "rounds", "step_ms", "ratio", "low", "high", "attach_ms", "sites_ms", "step_us"),
)
STEPS = 10
WIDTH, BLOCKS, TOKENS, BATCH = 128, 4, 64, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--note", default="")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--rank-out", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_out is not None:
        rank(options)
        return
    for world in map(int, options.worlds.split(",")):
        launch(world, options)


def launch(world: int, options: argparse.Namespace) -> None:
    """Start the ranks; their figures go to the terminal and to the file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.csv"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={world}", __file__, "--rounds", str(options.rounds)]
        command += ["--note", options.note, "--rank-out", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, env=environment, check=True)
        with out.open(newline="") as file:
            rows = list(csv.DictReader(file))
    for row in rows:
        print({c: row[c] for c in COLUMNS[8:]}, flush=True)
    if options.out is not None:
        is_new = not options.out.exists()
        with options.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            if is_new:
                writer.writeheader()
            writer.writerows(rows)


def rank(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = dist.get_world_size()
    kinds = ["alone"] if world == 1 else ["ddp", "fsdp2"]
    rows = [measured(kind, every, options) for kind in kinds for every in (1, 10)]
    if dist.get_rank() == 0:
        with options.rank_out.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    dist.barrier()
    dist.destroy_process_group()


class Trained:
    """A copy of the model and what trains it."""

    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model = wrapped(kind, transformer())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.x = torch.randn(BATCH, TOKENS, WIDTH)

    def block(self) -> float:
        """Seconds of a step, over a block of steps."""
        began = time.perf_counter()
        for _ in range(STEPS):
            self.step()
        return (time.perf_counter() - began) / STEPS

    def step(self) -> None:
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)


def wrapped(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)
    return model


def measured(kind: str, every: int, options: argparse.Namespace) -> dict[str, object]:
    plain, watched = Trained(kind), Trained(kind)
    with tempfile.TemporaryDirectory() as folder:
        name = {"dir": folder, "name": f"{kind}-{every}"}
        with sonde.watch(watched.model, watched.optimizer, every=every, **name):
            pairs = [turn(plain, watched, i) for i in range(options.rounds + 1)][1:]
    ratios = [b / a for a, b in pairs]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sonde": VERSION,
        "note": options.note,
        "world": dist.get_world_size(),
        "kind": kind,
        "every": every,
        "rounds": options.rounds,
        "step_ms": round(1e3 * statistics.median(a for a, _ in pairs), 2),
        "ratio": round(statistics.median(ratios), 3),
        "low": round(quartiles[0], 3),
        "high": round(quartiles[2], 3),
        **placement(plain),
    }


def turn(plain: Trained, watched: Trained, i: int) -> tuple[float, float]:
    """A block of each, the first one in turns."""
    if i % 2:
        b, a = watched.block(), plain.block()
    else:
        a, b = plain.block(), watched.block()
    return a, b


def placement(trained: Trained) -> dict[str, object]:
    """What deciding who holds what costs, when a model is attached and in a recorded step."""
    model = trained.model
    parameters = list(model.parameters())
    trained.model(trained.x).square().mean().backward()
    grads = [p.grad for p in parameters if p.grad is not None]
    layout = RankLayout(model)
    found = {
        "attach_ms": 1e3 * lasted(lambda: RankLayout(model)),
        "sites_ms": 1e3 * lasted(lambda: [layout.of_parameter(p) for p in parameters]),
        "step_us": 1e6 * lasted(lambda: locals_of(grads)),
    }
    trained.optimizer.zero_grad()
    return {name: round(value, 2) for name, value in found.items()}


def lasted(work: object) -> float:
    times = []
    for _ in range(20):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


if __name__ == "__main__":
    main()
