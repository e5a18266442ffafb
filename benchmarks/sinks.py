"""What sinks add to watching: one model, watched with sinks and without in turns.

    python benchmarks/sinks.py [--rounds 30] [--seconds 2] [--case two] [--model gpt2]

As in `cadence.py`, there is one model and one optimizer. A block of steps is watched with sinks,
the blocks before and after it without; a ratio is that of the block to the mean of its neighbours.
Told is the median, with its interval at a confidence of 95 %. `control` is the same for blocks
without sinks. `cpu_ratio` is the same of the processor time of the process, all its threads
included, which other processes on the machine disturb less.

`two` are TensorBoard event files and an offline run of W&B, with the default selection of series,
every tenth step recorded. In the other cases one sink raises, hangs, or sleeps in every call.
`lost` is what the run says was not delivered, over all blocks; empty where runs cannot be read.

`--model gpt2` is the training step of `gpu_overhead.py` on a GPU: 12 layers of width 768, batch
8 x 1024, bfloat16 autocast, fused AdamW. A block ends when the device has done its work.
"""

import argparse
import csv
import os
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
import wandb

import sonde
from cadence import Trainer, median_of
from gpu_overhead import BATCH, CONTEXT, VOCABULARY, Gpt
from overhead import surroundings
from sonde.sinks import Callback, TensorBoard, WandB

COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "threads", "model"),
    *("case", "every", "watched_ms", "ratio", "ratio_from", "ratio_to"),
    *("control", "control_from", "control_to", "cpu_ratio", "cpu_ratio_from", "cpu_ratio_to"),
    *("rounds", "block", "lost"),
)

CAN_READ = find_spec("duckdb") is not None and find_spec("pandas") is not None


class GptTrainer(Trainer):
    """A model of the shape of GPT-2 small, on a GPU."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Gpt().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.ids = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), device="cuda")

    def train(self, steps: int) -> None:
        for _ in range(steps):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                scores = self.model(self.ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(
                scores.float().flatten(0, 1), self.ids[:, 1:].flatten()
            )
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        torch.cuda.synchronize()


MODELS: dict[str, Callable[[], Trainer]] = {"demo": lambda: Trainer("demo"), "gpt2": GptTrainer}


def two(folder: Path) -> list[sonde.Sink]:
    return [TensorBoard(folder / "board"), WandB(steps="own")]


def raises(_: Path) -> list[sonde.Sink]:
    def fail(_: object) -> None:
        raise RuntimeError("no network")

    return [Callback(fail)]


def hangs(_: Path) -> list[sonde.Sink]:
    return [Callback(lambda _: threading.Event().wait(), timeout_s=0.2)]


def slow(_: Path) -> list[sonde.Sink]:
    return [Callback(lambda _: time.sleep(1.0), timeout_s=0.2)]


CASES: dict[str, Callable[[Path], list[sonde.Sink]]] = {
    "two": two,
    "raises": raises,
    "hangs": hangs,
    "slow": slow,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a block, at least")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--model", choices=MODELS, default="demo")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/sinks-{cpu,gpu}.csv")
    options = parser.parse_args()
    is_gpu = options.model == "gpt2"
    out = options.out or Path("benchmarks/results", f"sinks-{'gpu' if is_gpu else 'cpu'}.csv")
    where = {"machine": torch.cuda.get_device_name(), "kernel": "cuda"} if is_gpu else {}
    os.environ["WANDB_SILENT"] = "true"
    warnings.simplefilter("ignore", sonde.SondeWarning)  # sinks that fail are what is measured
    trainer = MODELS[options.model]()
    trainer.train(10)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        wandb.init(mode="offline", dir=folder, project="benchmark")
        for name in options.case or CASES:
            found = measure(trainer, CASES[name], options.rounds, options.seconds, Path(folder))
            row = surroundings(options.model) | where | {"case": name, "every": 10} | found
            rows.append(row)
            print(
                f"{name:7} {found['watched_ms']} ms  x{found['ratio']} ({found['ratio_from']} to "
                f"{found['ratio_to']})  control x{found['control']} ({found['control_from']} to "
                f"{found['control_to']})  cpu x{found['cpu_ratio']} ({found['cpu_ratio_from']} to "
                f"{found['cpu_ratio_to']})  lost {found['lost']}"
            )
        wandb.finish()
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def measure(
    trainer: Trainer,
    make: Callable[[Path], list[sonde.Sink]],
    rounds: int,
    seconds: float,
    folder: Path,
) -> dict[str, object]:
    steps = 10 * max(1, round(seconds / statistics.fmean(trainer.plain_s(10)) / 10))
    lost = 0
    alone = [block_s(trainer, [], steps, folder)[:2]]
    fed = []
    for n in range(rounds):
        print(f"\r{n + 1} of {rounds} ", end="", flush=True, file=sys.stderr)
        *times, missing = block_s(trainer, make(folder), steps, folder)
        lost += missing
        fed.append(times)
        alone.append(block_s(trainer, [], steps, folder)[:2])
    walls = [wall for wall, _ in alone]
    ratios, cpu_ratios = (
        [2 * w[i] / (a[i] + b[i]) for w, (a, b) in zip(fed, pairwise(alone), strict=True)]
        for i in (0, 1)
    )
    control = [2 * b / (a + c) for a, b, c in zip(walls, walls[1:], walls[2:], strict=False)]
    found: dict[str, object] = {"watched_ms": f"{1e3 * statistics.median(walls):.2f}"}
    named = {"ratio": ratios, "control": control, "cpu_ratio": cpu_ratios}
    for name, values in named.items():
        low, middle, high = median_of(values)
        found |= {name: f"{middle:.3f}", f"{name}_from": f"{low:.3f}", f"{name}_to": f"{high:.3f}"}
    return found | {"rounds": rounds, "block": steps, "lost": lost if CAN_READ else ""}


def block_s(trainer, sinks, steps, folder) -> tuple[float, float, int]:
    """Mean seconds of a step of a watched block, by the clock and of the processor, and records
    that were not delivered."""
    model, optimizer = trainer.model, trainer.optimizer
    with sonde.watch(model, optimizer, every=10, dir=folder / "runs", sinks=sinks) as watch:
        trainer.train(10)
        watch.flush()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        trainer.train(steps)
        taken_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return taken_s / steps, cpu_s / steps, lost_in(watch.path)


def lost_in(path: Path) -> int:
    """Readings that were not delivered; 0 where runs cannot be read."""
    if not CAN_READ:
        return 0
    found = sonde.open(path).sql("select sum(count) from events where code = 'sink_lost'")
    return int(found.fillna(0).iloc[0, 0])


if __name__ == "__main__":
    main()
