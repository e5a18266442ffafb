"""What a training step costs with each original tool and with its drop-in, on the same work.

    OMP_NUM_THREADS=1 python -W ignore benchmarks/dropins.py [--rounds 12] [--block 4] [--only TOOL]
    ... --originals FOLDER   where else to find the originals: a folder of unpacked packages

The transformer of the demo at width 128, four blocks, 8 x 128 tokens. Without a tool, with the
original and with the drop-in it is trained on a copy of its own; they take turns, a block of steps
each. `ratio` is the step over the plain one; `added` what the original adds over what the drop-in
adds: above 1 the drop-in is cheaper. A tool that cannot be imported has no numbers of its own.
Times are those on the clock; `cpu` is the same ratio of processor time, threads of tools included.

To add a tool, write a function `(package, model) -> step` and put it into `WORK`.
"""

from __future__ import annotations

import argparse
import copy
import csv
import datetime as dt
import importlib
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from torch import nn
from torch.nn import functional

import sonde
from sonde.demo.scenarios import Shape
from sonde.demo.torch.transformer import Transformer

SHAPE, BATCH, VOCABULARY = Shape(width=128, blocks=4, heads=8, context=128), 8, 64
Around = Callable[[int, Callable[[], None], Callable[[], None]], None]
"""A training step with a tool: its number, the forward and backward, and the update."""


def plain(_step: int, passes: Callable[[], None], update: Callable[[], None]) -> None:
    passes()
    update()


def monitored(*metrics: Callable[[torch.Tensor], torch.Tensor]):
    """torch-module-monitor with these metrics of activations, parameters and gradients."""

    def attach(package: ModuleType, model: nn.Module) -> Around:
        monitor = package.ModuleMonitor(monitor_step_fn=lambda step: True)
        monitor.set_module(model)
        for i, metric in enumerate(metrics):
            monitor.add_activation_metric(f"metric_{i}", metric)
            monitor.add_parameter_metric(f"metric_{i}", metric)
            monitor.add_gradient_metric(f"metric_{i}", metric)

        def step(n: int, passes: Callable[[], None], update: Callable[[], None]) -> None:
            monitor.begin_step(n)
            passes()
            monitor.monitor_parameters()
            monitor.monitor_gradients()
            update()
            monitor.end_step()
            monitor.get_step_metrics()

        return step

    return attach


def checked(package: ModuleType, model: nn.Module) -> Around:
    """torch-module-monitor with a reference and the refined coordinate check."""
    reference = copy.deepcopy(model)
    monitor = package.ModuleMonitor(monitor_step_fn=lambda step: True)
    monitor.set_module(model)
    monitor.set_reference_module(reference)
    monitor.add_activation_difference_metric("l2", lambda a, b: (a - b).norm(dim=-1))
    check = package.RefinedCoordinateCheck(monitor)
    model.register_forward_pre_hook(lambda _module, args: _reference(reference, args))

    def step(n: int, passes: Callable[[], None], update: Callable[[], None]) -> None:
        monitor.begin_step(n)
        passes()
        check.refined_coordinate_check()
        update()
        monitor.end_step()
        monitor.get_step_metrics()

    return step


def _reference(reference: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    with torch.no_grad():
        reference(*args)


class NullRun:
    """A run that keeps nothing."""

    def log_metrics(self, data: dict[str, float], step: float) -> None:
        assert data

    def log_histograms(self, histograms: dict[str, object], step: float) -> None:
        assert histograms


def watched(*stats: str):
    def attach(package: ModuleType, model: nn.Module) -> Around:
        watcher = package.TorchWatcher(model, NullRun(), tensor_stats=list(stats))

        def step(n: int, passes: Callable[[], None], update: Callable[[], None]) -> None:
            passes()
            update()
            watcher.watch(step=n, track_parameters=True)

        return step

    return attach


def traced(package: ModuleType, model: nn.Module) -> Around:
    """TensorTracer on the outputs of four blocks, gathered every 8 iterations."""
    tracer = package.ModelTracer(model, ["blocks.*"], gathering_interval=8)
    tracer.__enter__()

    def step(_n: int, passes: Callable[[], None], update: Callable[[], None]) -> None:
        passes()
        update()
        for result in tracer.results.values():
            result.values.clear()

    return step


def explored(package: ModuleType, model: nn.Module) -> Around:
    """TorchExplorer at every step, without a server."""
    package.watch(model, log_freq=1, backend="none")
    return plain


def tracked(package: ModuleType, model: nn.Module) -> Around:
    """Track & Visualize of activations, gradients and weights."""
    tracker = package.track(model, track_gradients=True)
    tracker.__enter__()

    def step(_n: int, passes: Callable[[], None], update: Callable[[], None]) -> None:
        passes()
        update()
        tracker.step()

    return step


ALL_STATS = ("mean", "std", "norm", "min", "max", "var", "abs_mean")
WORK: dict[str, tuple[str, str, Callable[[ModuleType, nn.Module], Around]]] = {
    "torch-module-monitor: one norm": (
        *("torch_module_monitor", "torch_module_monitor"),
        monitored(torch.norm),
    ),
    "torch-module-monitor: seven statistics": (
        *("torch_module_monitor", "torch_module_monitor"),
        monitored(
            *(torch.mean, torch.std, torch.norm, torch.amin, torch.amax, torch.var),
            lambda x: x.abs().mean(),
        ),
    ),
    "torch-module-monitor: coordinate check": (
        *("torch_module_monitor", "torch_module_monitor"),
        checked,
    ),
    "TorchWatcher: mean": ("neptune_torchwatcher", "torchwatcher", watched("mean")),
    "TorchWatcher: seven statistics": (
        *("neptune_torchwatcher", "torchwatcher"),
        watched(*ALL_STATS),
    ),
    "TensorTracer: outputs of blocks": ("tensortrace", "tensortrace", traced),
    "TorchExplorer: all histograms": ("torchexplorer", "torchexplorer", explored),
    "Track & Visualize: all statistics": ("tandv.track.torch", "tandv.track.torch", tracked),
}
"""By work: the original package, the drop-in, and how it is attached to a model."""


class Contender:
    """A training with a tool, on its own copy of the model."""

    def __init__(self, attach: Callable[[nn.Module], Around]) -> None:
        torch.manual_seed(0)
        self.model = Transformer(SHAPE, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.around = attach(self.model)
        self.times: list[float] = []
        self.cpu_times: list[float] = []
        self.step = 0

    def block(self, tokens: torch.Tensor, targets: torch.Tensor, steps: int) -> None:
        def passes() -> None:
            logits = self.model(tokens).flatten(0, 1)
            functional.cross_entropy(logits, targets.flatten()).backward()

        def update() -> None:
            self.optimizer.step()
            self.optimizer.zero_grad()

        began, began_cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.around(self.step, passes, update)
            self.step += 1
        self.times.append((time.perf_counter() - began) / steps)
        self.cpu_times.append((time.process_time() - began_cpu) / steps)


def original(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def measure(work: str, rounds: int, block: int) -> dict[str, object]:
    theirs_name, ours_name, attach = WORK[work]
    theirs, ours = original(theirs_name), importlib.import_module(f"sonde.compat.{ours_name}")
    contenders = {"plain": Contender(lambda _model: plain)}
    if theirs is not None:
        contenders["original"] = Contender(lambda model: attach(theirs, model))
    contenders["drop_in"] = Contender(lambda model: attach(ours, model))
    generator = torch.Generator().manual_seed(0)
    tokens, targets = (
        torch.randint(0, VOCABULARY, (BATCH, SHAPE.context), generator=generator) for _ in range(2)
    )
    order = list(contenders)
    for i in range(rounds + 1):
        for k in range(len(order)):
            contenders[order[(i + k) % len(order)]].block(tokens, targets, block)
    times = {name: contender.times[1:] for name, contender in contenders.items()}
    base = times["plain"]
    found: dict[str, object] = {"work": work, "plain_ms": _ms(base)}
    added = {}
    for name in ("original", "drop_in"):
        own = times.get(name)
        found[f"{name}_ms"] = "" if own is None else _ms(own)
        found[f"{name}_ratio"] = "" if own is None else _ratio(own, base)
        found[f"{name}_cpu"] = ""
        if own is not None:
            cpu = contenders[name].cpu_times[1:]
            found[f"{name}_cpu"] = _ratio(cpu, contenders["plain"].cpu_times[1:])
            added[name] = statistics.median(a - b for a, b in zip(own, base, strict=True))
    is_known = "original" in added and added["drop_in"] > 0
    found["added"] = round(added["original"] / added["drop_in"], 2) if is_known else ""
    found["version"] = "" if theirs is None else getattr(theirs, "__version__", "")
    return found


def _ms(times: list[float]) -> float:
    return round(statistics.median(times) * 1e3, 2)


def _ratio(own: list[float], base: list[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(own, base, strict=True)), 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--only", default="", help="work whose name has this in it")
    parser.add_argument("--originals", action="append", default=[], metavar="FOLDER")
    asked = parser.parse_args()
    sys.path.extend(asked.originals)
    rows = []
    out = Path(asked.out).resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # runs are written here
        for work in WORK:
            if asked.only.lower() in work.lower():
                rows.append(measure(work, asked.rounds, asked.block) | about())
                print(rows[-1], flush=True)
        os.chdir(out)
    with (out / "dropins.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def about() -> dict[str, object]:
    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "sonde": sonde.__version__,
    }


if __name__ == "__main__":
    main()
