"""What metrics cost on a CPU: a training step with and without each of them, in forwards.

    OMP_NUM_THREADS=1 python benchmarks/metrics.py [--rounds 15] [--block 4] [--only VARIANT ...]

The transformer of the demo at width 256, four blocks, 8 x 128 tokens. Every variant has its own
copy and they take turns, a block of steps each. `base` is a step that is recorded without any
sketch but those of parameters; `added_forwards` is what a variant adds to it, in forwards of the
model as measured in the same run. The refined coordinate check must not add more than three: the
reference's own forward, each module once more, and norms. Processor time of the whole process, so
that a busy machine does less harm.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import sonde
from sonde.demo.scenarios import Shape
from sonde.demo.torch.transformer import Transformer

SHAPE, BATCH, VOCABULARY = Shape(width=256, blocks=4, heads=8, context=128), 8, 64


def ten(watch: sonde.Watch) -> None:
    """Ten scalar metrics on all outputs."""
    for i in range(10):
        watch.add_metric(f"norm_{i}", torch.linalg.vector_norm)


def difference(watch: sonde.Watch) -> None:
    watch.set_reference("init")
    watch.add_metric("l2", lambda a, b: (a - b).norm(dim=-1), against="reference")


def rcc(watch: sonde.Watch) -> None:
    watch.set_reference("init")
    watch.add_metric("rcc")


def named(name: str) -> Callable[[sonde.Watch], None]:
    return lambda watch: watch.add_metric(name)


VARIANTS: dict[str, Callable[[sonde.Watch], None]] = {
    "base": lambda _watch: None,
    "ten metrics of outputs": ten,
    "difference to a reference": difference,
    "refined coordinate check": rcc,
    "attention": named("attention"),
    "gradient pipeline": named("gradient_pipeline"),
    "update ratio": named("update_ratio"),
    "stable rank": named("stable_rank"),
}


class Contender:
    """A variant at work on its own copy of the model."""

    def __init__(self, name: str, folder: str) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model = Transformer(SHAPE, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.watch = sonde.watch(
            self.model, self.optimizer, every=1, log="parameters", dir=folder, name=name
        )
        VARIANTS[name](self.watch)
        self.times: list[float] = []

    def block(self, tokens, targets, steps: int) -> None:
        began = time.process_time()
        for _ in range(steps):
            loss_of(self.model, tokens, targets).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.times.append((time.process_time() - began) / steps)
        self.watch.flush()


def loss_of(model: nn.Module, tokens, targets):
    return functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def forward_seconds(tokens, times: int = 20) -> float:
    torch.manual_seed(0)
    model = Transformer(SHAPE, VOCABULARY)
    found = []
    with torch.no_grad():
        for _ in range(times):
            began = time.process_time()
            model(tokens)
            found.append(time.process_time() - began)
    return statistics.median(found[times // 4 :])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), metavar="VARIANT")
    asked = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (
        torch.randint(0, VOCABULARY, (BATCH, SHAPE.context), generator=generator) for _ in range(2)
    )
    with tempfile.TemporaryDirectory() as folder:
        contenders = [Contender(n, folder) for n in VARIANTS if n in {"base", *asked.only}]
        forwards = [forward_seconds(tokens)]
        for i in range(asked.rounds + 1):
            for k in range(len(contenders)):
                contenders[(i + k) % len(contenders)].block(tokens, targets, asked.block)
            forwards.append(forward_seconds(tokens, 4))
        for contender in contenders:
            contender.watch.close()
    forward = statistics.median(forwards)
    base = contenders[0].times[1:]
    rows = []
    for contender in contenders:
        own = contender.times[1:]
        added = [a - b for a, b in zip(own, base, strict=True)]
        rows.append(
            {
                "variant": contender.name,
                "step_ms": round(statistics.median(own) * 1e3, 2),
                "ratio": round(statistics.median(own) / statistics.median(base), 3),
                "added_forwards": round(statistics.median(added) / forward, 2),
                "forward_ms": round(forward * 1e3, 2),
            }
        )
        print(rows[-1], flush=True)
    write(Path(asked.out) / "metrics-cpu.csv", rows)


def write(path: Path, rows: list[dict]) -> None:
    common = {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "sonde": sonde.__version__,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [*rows[0], *common])
        out.writeheader()
        out.writerows({**row, **common} for row in rows)


def _processor() -> str:
    about = Path("/proc/cpuinfo")
    names = [line for line in about.read_text().splitlines() if line.startswith("model name")]
    return names[0].split(":")[1].strip() if names else platform.machine()


if __name__ == "__main__":
    main()
