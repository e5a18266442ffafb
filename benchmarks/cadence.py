"""What watching all kinds costs at each cadence: one model, watched and plain in turns.

    python benchmarks/cadence.py [--rounds 45] [--seconds 2] [--model wide] [--every 10]

`overhead.py` gives each variant a copy of the model, and two copies differ by some percent by where
they lie in memory. That is too much to see a few percent. Here there is one model and one optimizer
per process: a plain block of steps, a watched one, a plain one, and so on. A ratio is that of a
watched block to the mean of the plain blocks before and after it; told is the median, with the
interval in which it lies at a confidence of 95 %, by resampling. `control` is the same for plain
blocks, each over the mean of its two neighbours: it should be one.

For a watched block a watch is opened, ten steps of warm-up pass, what a run has once is written,
and the block is timed while the watch writes as it always does, every two seconds. Blocks are as
long as `--seconds` says, in multiples of ten steps; `never` is a schedule that is never due.

`p50` and `p99` are of all single steps, in milliseconds: one step in a hundred takes longer than
the latter. Those that do met the writer at work, or another process.
"""

import argparse
import csv
import random
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional

import overhead
import sonde
from overhead import VOCABULARY, surroundings
from sonde.demo.scenarios import Shape
from sonde.demo.torch.transformer import Transformer

MODELS = overhead.MODELS | {
    # Of some milliseconds a step: the tail of single steps shows here.
    "tiny": (Shape(width=32, blocks=2, heads=2, context=16), 2)
}
DRAWS = 4000
CADENCES: dict[str, object] = {"1": 1, "10": 10, "never": lambda _: False}
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "threads", "model"),
    *("every", "plain_ms", "ratio", "ratio_from", "ratio_to"),
    *("control", "control_from", "control_to", "rounds", "block"),
    *("plain_p50_ms", "plain_p99_ms", "watched_p50_ms", "watched_p99_ms"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=45)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block, at least")
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
                f"({found['ratio_from']} to {found['ratio_to']})  control x{found['control']} "
                f"({found['control_from']} to {found['control_to']})  p50 and p99 in ms: "
                f"{found['plain_p50_ms']}, {found['plain_p99_ms']} plain, "
                f"{found['watched_p50_ms']}, {found['watched_p99_ms']} watched"
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

    def plain_s(self, steps: int) -> list[float]:
        """Seconds of plain steps."""
        self.train(2)
        return self._timed(steps)

    def watched_s(self, steps: int, every: object, folder: str) -> list[float]:
        """Seconds of watched steps."""
        with sonde.watch(self.model, self.optimizer, log="all", every=every, dir=folder) as watch:
            self.train(10)
            watch.flush()
            return self._timed(steps)

    def _timed(self, steps: int) -> list[float]:
        times = [time.perf_counter()]
        for _ in range(steps):
            self.train(1)
            times.append(time.perf_counter())
        return [after - before for before, after in pairwise(times)]


def trainer(name: str) -> Trainer:
    made = Trainer(name)
    made.train(10)
    return made


def measure(trainer: Trainer, every: object, rounds: int, seconds: float) -> dict[str, object]:
    steps = 10 * max(1, round(seconds / statistics.fmean(trainer.plain_s(10)) / 10))
    with tempfile.TemporaryDirectory() as folder:
        all_watched: list[list[float]] = []
        all_plain = [trainer.plain_s(steps)]
        for n in range(rounds):
            print(f"\r{n + 1} of {rounds} ", end="", flush=True, file=sys.stderr)
            all_watched.append(trainer.watched_s(steps, every, folder))
            all_plain.append(trainer.plain_s(steps))
    watched, plain = ([statistics.fmean(b) for b in each] for each in (all_watched, all_plain))
    ratios = [2 * w / (a + b) for w, (a, b) in zip(watched, pairwise(plain), strict=True)]
    control = [2 * b / (a + c) for a, b, c in zip(plain, plain[1:], plain[2:], strict=False)]
    found: dict[str, object] = {"plain_ms": f"{1e3 * statistics.median(plain):.2f}"}
    for name, values in (("ratio", ratios), ("control", control)):
        low, middle, high = median_of(values)
        found |= {name: f"{middle:.3f}", f"{name}_from": f"{low:.3f}", f"{name}_to": f"{high:.3f}"}
    for name, blocks in (("plain", all_plain), ("watched", all_watched)):
        times = [1e3 * s for block in blocks for s in block]
        found[f"{name}_p50_ms"] = f"{statistics.median(times):.2f}"
        found[f"{name}_p99_ms"] = f"{statistics.quantiles(times, n=100)[-1]:.2f}"
    return found | {"rounds": rounds, "block": steps}


def median_of(values: list[float]) -> tuple[float, float, float]:
    """The median, between the ends of its interval."""
    chance = random.Random(0)
    drawn = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    return drawn[DRAWS // 40], statistics.median(values), drawn[-DRAWS // 40]


if __name__ == "__main__":
    main()
