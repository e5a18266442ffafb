"""What watching costs compiled code while no step is due: models with graph breaks and without.

    python benchmarks/compiled.py [--rounds 30] [--seconds 1] [--case breaks]

Each case trains four copies of one small transformer, each compiled by itself: three plain, one
watched with a schedule that is never due. The copies take turns step by step, in a new order each
turn, so all meet the same clock speed and the same neighbours on the machine. A round is so many
turns that each copy trains for `--seconds`; its time is the median of its steps.

`ratio` is the watched copy over the mean of the first two plain ones, `control` the third plain
copy over the same: medians over rounds with 95 % intervals. Copies of one model differ by where
they lie in memory, and the control says by how much; a `ratio` means something to within it.
`graphs` and `watched_graphs` are how many graphs the compiler made for a plain copy and for the
watched one, each without its backward.
"""

import argparse
import csv
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import sonde
from cadence import median_of
from overhead import surroundings

WIDTH, HEADS, LAYERS, BATCH, CONTEXT, VOCABULARY = 128, 4, 12, 2, 64, 256
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "threads", "model"),
    *("case", "plain_ms", "ratio", "ratio_from", "ratio_to"),
    *("control", "control_from", "control_to", "graphs", "watched_graphs", "rounds", "block"),
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for y in self.qkv(self.norm(x)).split(c, 2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    def __init__(self, has_breaks: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.has_breaks = has_breaks

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
            if self.has_breaks:
                torch._dynamo.graph_break()
        return self.head(x)


def whole(model: Model) -> Callable[[Tensor], Tensor]:
    return torch.compile(model)


def by_layer(model: Model) -> Callable[[Tensor], Tensor]:
    for block in model.blocks:
        block.compile()
    return model


CASES = {"whole": (False, whole), "breaks": (True, whole), "layers": (False, by_layer)}


class Trainer:
    """One compiled copy of the model with its optimizer."""

    def __init__(self, case: str) -> None:
        has_breaks, compiled = CASES[case]
        torch.manual_seed(0)
        self.model = Model(has_breaks)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1))
        self.call = compiled(self.model)

    def seconds(self) -> float:
        """The time of a step."""
        began = time.perf_counter()
        scores = self.call(self.ids[:, :-1])
        nn.functional.cross_entropy(scores.flatten(0, 1), self.ids[:, 1:].flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - began


def warmed_up(case: str, folder: str | None) -> tuple[Trainer, int]:
    """A copy whose code is compiled, watched if there is a folder, and its number of graphs."""
    trainer = Trainer(case)
    if folder is not None:
        sonde.watch(trainer.model, trainer.optimizer, every=lambda _: False, dir=folder, name=case)
    counters.clear()
    for _ in range(5):
        trainer.seconds()
    return trainer, counters["stats"]["unique_graphs"]


def round_of(trainers: list[Trainer], turns: int, order: random.Random) -> list[float]:
    """The median time of a step of each, all of them taking turns."""
    times: list[list[float]] = [[] for _ in trainers]
    for _ in range(turns):
        for which in order.sample(range(len(trainers)), len(trainers)):
            times[which].append(trainers[which].seconds())
    return [statistics.median(each) for each in times]


def measure(case: str, rounds: int, seconds: float, folder: str) -> dict[str, object]:
    torch._dynamo.reset()
    made = [warmed_up(case, watched) for watched in (None, None, None, folder)]
    trainers, graphs = [trainer for trainer, _ in made], [count for _, count in made]
    order = random.Random(0)
    turns = max(1, round(seconds / round_of(trainers, 10, order)[0]))
    times = [round_of(trainers, turns, order) for _ in range(rounds)]
    sonde.unwatch(trainers[3].model)
    plain = [(a + b) / 2 for a, b, _, _ in times]
    found: dict[str, object] = {"case": case, "plain_ms": f"{1e3 * statistics.median(plain):.2f}"}
    for name, which in (("ratio", 3), ("control", 2)):
        ratios = [each[which] / p for each, p in zip(times, plain, strict=True)]
        low, middle, high = median_of(ratios)
        found |= {name: f"{middle:.3f}", f"{name}_from": f"{low:.3f}", f"{name}_to": f"{high:.3f}"}
    return found | {
        "graphs": graphs[0],
        "watched_graphs": graphs[3],
        "rounds": rounds,
        "block": turns,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each copy in a round, about")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/compiled-cpu.csv"))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in options.case or CASES:
            found = measure(case, options.rounds, options.seconds, folder)
            rows.append(surroundings("transformer") | found)
            print(found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
