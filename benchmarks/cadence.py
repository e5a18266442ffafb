"""What watching all kinds costs at each cadence: one model, watched and plain in turns.

    python benchmarks/cadence.py [--rounds 15] [--seconds 3] [--model wide] [--every 10]

`overhead.py` gives each variant a copy of the model, and two copies differ by some percent by where
they lie in memory. That is too much to see a few percent. Here there is one model and one optimizer
per process: a plain block of steps, a watched one, a plain one, and so on. A ratio is that of a
watched block to the mean of the plain blocks before and after it; told are the median and the
quartiles. `control` is the same for plain blocks: each over the mean of its two neighbours. How far
its quartiles are from one says what this machine can tell apart.

For a watched block a watch is opened and ten steps of warm-up pass; then the block is timed, until
all that was recorded is safe on disk. Ten steps of warm-up precede a plain block too. Blocks are as
long as `--seconds` says, in multiples of ten steps; `never` is a schedule that is never due.
"""

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional

import sonde
from overhead import MODELS, VOCABULARY, surroundings
from sonde.demo.torch.transformer import Transformer

CADENCES: dict[str, object] = {"1": 1, "10": 10, "never": lambda _: False}
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "threads", "model"),
    *("every", "plain_ms", "ratio", "ratio_low", "ratio_high"),
    *("control", "control_low", "control_high", "rounds", "block"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a block, at least")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--every", choices=CADENCES, action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cadence-cpu.csv"))
    options = parser.parse_args()
    rows = []
    for name in options.model or MODELS:
        train = trainer(name)
        for every in options.every or CADENCES:
            found = measure(train, CADENCES[every], options.rounds, options.seconds)
            rows.append(surroundings(name) | {"every": every} | found)
            print(
                f"{name:5} every {every:5} {found['plain_ms']:>7} ms  x{found['ratio']} "
                f"({found['ratio_low']} to {found['ratio_high']})  control x{found['control']} "
                f"({found['control_low']} to {found['control_high']})"
            )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


class Trainer:
    """One model, one optimizer, one batch."""

    def __init__(self, name: str) -> None:
        shape, batch = MODELS[name]
        torch.manual_seed(0)
        self.model = Transformer(shape, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.ids = torch.randint(VOCABULARY, (batch, shape.context + 1))

    def train(self, steps: int) -> None:
        for _ in range(steps):
            scores = self.model(self.ids[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), self.ids[:, 1:].flatten())
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def plain_s(self, steps: int) -> float:
        """Seconds of a plain step."""
        self.train(10)
        return timed(lambda: self.train(steps)) / steps

    def watched_s(self, steps: int, every: object, folder: str) -> float:
        """Seconds of a watched step."""
        with sonde.watch(self.model, self.optimizer, log="all", every=every, dir=folder) as watch:
            self.train(10)
            watch.flush()

            def work() -> None:
                self.train(steps)
                watch.flush()

            return timed(work) / steps


def trainer(name: str) -> Trainer:
    made = Trainer(name)
    made.train(10)
    return made


def measure(trainer: Trainer, every: object, rounds: int, seconds: float) -> dict[str, object]:
    steps = 10 * max(1, round(seconds / trainer.plain_s(10) / 10))
    with tempfile.TemporaryDirectory() as folder:
        watched: list[float] = []
        plain = [trainer.plain_s(steps)]
        for n in range(rounds):
            print(f"\r{n + 1} of {rounds} ", end="", flush=True, file=sys.stderr)
            watched.append(trainer.watched_s(steps, every, folder))
            plain.append(trainer.plain_s(steps))
    ratios = [2 * w / (a + b) for w, (a, b) in zip(watched, pairwise(plain), strict=True)]
    control = [2 * b / (a + c) for a, b, c in zip(plain, plain[1:], plain[2:], strict=False)]
    found: dict[str, object] = {"plain_ms": f"{1e3 * statistics.median(plain):.2f}"}
    for name, values in (("ratio", ratios), ("control", control)):
        low, middle, high = statistics.quantiles(values, n=4)
        found |= {name: f"{middle:.3f}", f"{name}_low": f"{low:.3f}", f"{name}_high": f"{high:.3f}"}
    return found | {"rounds": rounds, "block": steps}


def timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
