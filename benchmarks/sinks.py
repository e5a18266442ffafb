"""What sinks add to watching: one model, watched with sinks and without in turns.

    python benchmarks/sinks.py [--rounds 30] [--seconds 2] [--case two]

As in `cadence.py`, there is one model and one optimizer. A block of steps is watched with sinks,
the blocks before and after it without; a ratio is that of the block to the mean of its neighbours.
Told is the median, with its interval at a confidence of 95 %. `control` is the same for blocks
without sinks. `cpu_ratio` is the same of the processor time of the process, all its threads
included, which other processes on the machine disturb less.

`two` are TensorBoard event files and an offline run of W&B, with the default selection of series,
every tenth step recorded. In the other cases one sink raises, hangs, or sleeps in every call.
`lost` is what the run says was not delivered, over all blocks.
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
from itertools import pairwise
from pathlib import Path

import wandb

import sonde
from cadence import Trainer, median_of
from overhead import surroundings
from sonde.sinks import Callback, TensorBoard, WandB

COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "threads", "model"),
    *("case", "every", "watched_ms", "ratio", "ratio_from", "ratio_to"),
    *("control", "control_from", "control_to", "cpu_ratio", "cpu_ratio_from", "cpu_ratio_to"),
    *("rounds", "block", "lost"),
)


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
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sinks-cpu.csv"))
    options = parser.parse_args()
    os.environ["WANDB_SILENT"] = "true"
    warnings.simplefilter("ignore", sonde.SondeWarning)  # sinks that fail are what is measured
    trainer = Trainer("demo")
    trainer.train(10)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        wandb.init(mode="offline", dir=folder, project="benchmark")
        for name in options.case or CASES:
            found = measure(trainer, CASES[name], options.rounds, options.seconds, Path(folder))
            rows.append(surroundings("demo") | {"case": name, "every": 10} | found)
            print(
                f"{name:7} {found['watched_ms']} ms  x{found['ratio']} ({found['ratio_from']} to "
                f"{found['ratio_to']})  control x{found['control']} ({found['control_from']} to "
                f"{found['control_to']})  cpu x{found['cpu_ratio']} ({found['cpu_ratio_from']} to "
                f"{found['cpu_ratio_to']})  lost {found['lost']}"
            )
        wandb.finish()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("w", newline="") as file:
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
    return found | {"rounds": rounds, "block": steps, "lost": lost}


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
    found = sonde.open(watch.path).sql("select sum(count) from events where code = 'sink_lost'")
    return taken_s / steps, cpu_s / steps, int(found.fillna(0).iloc[0, 0])


if __name__ == "__main__":
    main()
