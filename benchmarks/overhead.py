"""What watching costs: the same training step plain, with Sonde, and with what one would pick else.

    python benchmarks/overhead.py [--rounds 11] [--block 20] [--model wide] [--model demo]

One process, one model after the other; every variant has its own copy of model and optimizer and
they take turns: a block of steps each, round after round, in an order that moves on by one each
time, so that whatever else the machine does hits all alike. The first round is a warm-up. A ratio
is the median step of a variant over the median plain step of the same run; its spread are the
quartiles of the ratios of single rounds. After each block a variant may finish what it does in the
background, untimed, so that it does not disturb the next one; blocks are long enough for that to
happen inside them too. `cpu_ratio` is the same for the processor time of the whole process, what
is done in the background included (in other processes, as wandb does, not); threads that spin while
they wait count too, so it says most with OMP_NUM_THREADS=1.

`times_sonde` is the time that a variant adds, over what Sonde adds when it captures the same kinds
of tensors (each tensor whole, and more of it).

Variants that take several plain steps per step get shorter blocks. One that cannot be run here
is in the results with the reason. `make bench` installs all of them.
"""

import argparse
import csv
import datetime as dt
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.demo.scenarios import HEALTHY, Shape
from sonde.demo.torch.transformer import Transformer
from sonde.kernels import c

VOCABULARY = 64
SLOW = 3.0  # plain blocks that a block of any variant may take
MODELS = {
    "wide": (Shape(width=256, blocks=4, heads=8, context=128), 8),
    "demo": (HEALTHY.shape, HEALTHY.batch),
}
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "kernel", "model", "variant"),
    *("version", "captures", "step_ms", "ratio", "ratio_low", "ratio_high", "cpu_ratio"),
    *("added_ms", "times_sonde", "threads", "rounds", "block", "note"),
)


def nothing(*_: object) -> None: ...


@dataclass(frozen=True)
class Watcher:
    """Where a variant comes into the loop."""

    begin: Callable[[int], None] = nothing
    graded: Callable[[int], None] = nothing
    end: Callable[[int, Tensor], None] = nothing
    settle: Callable[[], object] = nothing


Start = Callable[[nn.Module, torch.optim.Optimizer, Path], AbstractContextManager[Watcher]]


@dataclass(frozen=True)
class Variant:
    name: str
    captures: str
    start: Start
    package: str = "sonde"
    like: str = ""
    """The variant of Sonde that captures what this one does, to which its cost is compared."""


@dataclass
class Contender:
    """A variant at work on its own copy of the model."""

    variant: Variant
    model: nn.Module
    optimizer: torch.optim.Optimizer
    watcher: Watcher
    block: int = 0
    step: int = 0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


# -- variants ------------------------------------------------------------------------------------


@contextmanager
def plain(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> Iterator[Watcher]:
    yield Watcher()


def with_sonde(log: str | tuple[str, ...], every: object) -> Start:
    @contextmanager
    def start(
        model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
    ) -> Iterator[Watcher]:
        with sonde.watch(model, optimizer, log=log, every=every, dir=folder) as watch:
            yield Watcher(end=lambda _, loss: watch.log(loss=loss), settle=watch.flush)

    return start


@contextmanager
def with_wandb(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
) -> Iterator[Watcher]:
    import wandb

    run = wandb.init(mode="offline", dir=folder, settings=wandb.Settings(silent=True))
    run.watch(model, log="all", log_freq=1)
    yield Watcher(end=lambda _, loss: run.log({"loss": loss.item()}), settle=settle_others)
    run.unwatch(model)
    run.finish()


def with_module_monitor(metrics: dict[str, Callable[[Tensor], Tensor]]) -> Start:
    @contextmanager
    def start(
        model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
    ) -> Iterator[Watcher]:
        from torch_module_monitor import ModuleMonitor

        monitor = ModuleMonitor(monitor_step_fn=lambda _: True)
        monitor.set_module(model)
        for name, metric in metrics.items():
            monitor.add_activation_metric(name, metric)
            monitor.add_parameter_metric(name, metric)
            monitor.add_gradient_metric(name, metric)

        def graded(_: int) -> None:
            monitor.monitor_parameters()
            monitor.monitor_gradients()

        def end(_step: int, loss: Tensor) -> None:
            monitor.end_step()
            monitor.get_step_metrics()

        yield Watcher(begin=monitor.begin_step, graded=graded, end=end)

    return start


@contextmanager
def with_torchexplorer(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
) -> Iterator[Watcher]:
    if shutil.which("dot") is None:
        make_dot(folder)
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    import torchexplorer

    torchexplorer.watch(model, log_freq=1, backend="none", verbose=False)
    yield Watcher()


@contextmanager
def with_tensorboard(
    model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path
) -> Iterator[Watcher]:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)
    at = 0

    def begin(step: int) -> None:
        nonlocal at
        at = step

    def graded(step: int) -> None:
        for name, parameter in model.named_parameters():
            writer.add_histogram(f"parameter/{name}", parameter, step)
            writer.add_histogram(f"gradient/{name}", parameter.grad, step)

    def hook(name: str) -> Callable[[nn.Module, object, Tensor], None]:
        return lambda _module, _args, output: writer.add_histogram(f"output/{name}", output, at)

    for name, module in model.named_modules():
        module.register_forward_hook(hook(name))
    yield Watcher(
        begin=begin,
        graded=graded,
        end=lambda step, loss: writer.add_scalar("loss", loss, step),
        settle=lambda: (writer.flush(), settle_others()),
    )
    writer.close()


def settle_others() -> None:
    """Their queues cannot be asked whether they are empty."""
    time.sleep(0.3)


def make_dot(folder: Path) -> None:
    """The program `dot`, from the Graphviz inside pygraphviz: torchexplorer calls it once."""
    program = folder / "dot"
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 2)\n"
        "import pygraphviz\n"
        "graph = pygraphviz.AGraph(string=sys.stdin.read())\n"
        "sys.stdout.buffer.write(graph.draw(prog='dot', format=sys.argv[1].removeprefix('-T')))\n"
    )
    program.chmod(0o755)


ALL = "inputs, outputs, their gradients, parameters, gradients, updates, optimizer state: sketches"
DEFAULT = "outputs, their gradients, parameters, gradients, updates, optimizer state: sketches"
FULL = "sonde, all kinds, every step"
AS_WANDB = "sonde, what wandb.watch captures"
AS_TENSORBOARD = "sonde, what add_histogram captures"
AS_TORCHEXPLORER = "sonde, what torchexplorer captures"
SEVEN: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "var": lambda x: x.var(),
    "norm": lambda x: x.norm(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "abs_mean": lambda x: x.abs().mean(),
}
"""The statistics of TorchWatcher."""
FLOWING = ("input", "output", "input_grad", "output_grad")
VARIANTS = (
    Variant("plain", "nothing", plain),
    Variant(FULL, ALL, with_sonde("all", 1)),
    Variant("sonde, default kinds, every step", DEFAULT, with_sonde("default", 1)),
    Variant("sonde, all kinds, every 10th step", ALL, with_sonde("all", 10)),
    Variant("sonde, watching, no step due", "nothing", with_sonde("all", lambda _: False)),
    Variant(AS_WANDB, "parameters, gradients: sketches", with_sonde(("param", "param_grad"), 1)),
    Variant(
        AS_TENSORBOARD,
        "outputs, parameters, gradients: sketches",
        with_sonde(("output", "param", "param_grad"), 1),
    ),
    Variant(
        AS_TORCHEXPLORER,
        "inputs, outputs, their gradients, parameters, gradients: sketches",
        with_sonde((*FLOWING, "param", "param_grad"), 1),
    ),
    Variant(
        "wandb.watch, log='all', log_freq=1",
        "parameters, gradients: 64 bins",
        with_wandb,
        "wandb",
        AS_WANDB,
    ),
    Variant(
        "torch-module-monitor, norm",
        "outputs, parameters, gradients: norm",
        with_module_monitor({"norm": lambda x: x.norm()}),
        "torch-module-monitor",
        AS_TENSORBOARD,
    ),
    Variant(
        "torch-module-monitor, seven statistics",
        "outputs, parameters, gradients: mean, std, var, norm, min, max, mean of absolutes",
        with_module_monitor(SEVEN),
        "torch-module-monitor",
        AS_TENSORBOARD,
    ),
    Variant(
        "torchexplorer, log_freq=1, backend='none'",
        "inputs, outputs, parameters, gradients: 30 bins of up to 1,000 sampled values; "
        "input and output gradients: 30 bins of norms",
        with_torchexplorer,
        "torchexplorer",
        AS_TORCHEXPLORER,
    ),
    Variant(
        "TensorBoard add_histogram, every step",
        "outputs, parameters, gradients: some 1,500 bins at most",
        with_tensorboard,
        "tensorboard",
        AS_TENSORBOARD,
    ),
)


# -- measuring -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--block", type=int, default=20, help="steps, a multiple of 10")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_argument("--only", default="", help="plain, and the variants that begin with this")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/overhead-cpu.csv"))
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in arguments.model or MODELS:
        rows += measure(name, arguments.rounds, arguments.block, arguments.only)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"\n{len(rows)} rows to {arguments.out}")


def measure(name: str, rounds: int, block: int, only: str) -> list[dict[str, object]]:
    """All variants on one model; a row for each."""
    variants = [v for v in VARIANTS if v.name == "plain" or v.name.startswith(only)]
    shape, batch = MODELS[name]
    about = surroundings(name)
    problems: dict[str, str] = {}
    ids = torch.randint(VOCABULARY, (batch, shape.context + 1), generator=torch.Generator())
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        contenders: list[Contender] = []
        plain_s = 0.0
        for i, variant in enumerate(variants):
            own = Path(folder, str(i))
            own.mkdir()
            try:
                contender = enter(stack, variant, shape, own)
                seconds = warm_up(contender, ids)
            except Exception as error:  # the others are measured all the same
                problems[variant.name] = f"could not be run: {type(error).__name__}: {error}"
                continue
            plain_s = plain_s or seconds
            slow = seconds > SLOW * plain_s
            contender.block = max(2, int(block * SLOW * plain_s / seconds)) if slow else block
            contenders.append(contender)
        for number in range(rounds):
            print(f"\r{name}: round {number + 1} of {rounds}", end="", flush=True, file=sys.stderr)
            start = number % len(contenders)
            for contender in contenders[start:] + contenders[:start]:
                run_block(contender, ids, contender.block)
        print(file=sys.stderr)
    return [about | row for row in report(variants, contenders, problems, rounds)]


def enter(stack: ExitStack, variant: Variant, shape: Shape, folder: Path) -> Contender:
    torch.manual_seed(0)
    model = Transformer(shape, VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    watcher = stack.enter_context(variant.start(model, optimizer, folder))
    return Contender(variant, model, optimizer, watcher)


def warm_up(contender: Contender, ids: Tensor) -> float:
    """Ten steps, so that blocks begin where each tenth step is due; seconds per later step."""
    run_block(contender, ids, 5)
    seconds = run_block(contender, ids, 5)
    contender.seconds.clear()
    contender.cpu_seconds.clear()
    return seconds


def run_block(contender: Contender, ids: Tensor, steps: int) -> float:
    """Seconds per step over a block."""
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(steps):
        train(contender, ids)
    seconds = (time.perf_counter() - began) / steps
    contender.watcher.settle()
    contender.seconds.append(seconds)
    contender.cpu_seconds.append((time.process_time() - cpu_began) / steps)
    return seconds


def train(contender: Contender, ids: Tensor) -> None:
    step, watcher = contender.step, contender.watcher
    watcher.begin(step)
    scores = contender.model(ids[:, :-1])
    loss = functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    watcher.graded(step)
    contender.optimizer.step()
    contender.optimizer.zero_grad()
    watcher.end(step, loss.detach())
    contender.step += 1


# -- telling -------------------------------------------------------------------------------------


def report(
    variants: list[Variant], contenders: list[Contender], problems: dict[str, str], rounds: int
) -> list[dict[str, object]]:
    """A row per variant, in order, printed as well."""
    measured = {contender.variant.name: contender for contender in contenders}
    base = measured["plain"]
    rows = []
    for variant in variants:
        row: dict[str, object] = {
            "variant": variant.name,
            "version": version(variant.package),
            "captures": variant.captures,
            "rounds": rounds,
            "note": problems.get(variant.name, ""),
        }
        if variant.name in measured:
            contender = measured[variant.name]
            like = measured[variant.like or FULL]
            own_s = statistics.median(like.seconds) - statistics.median(base.seconds)
            row |= figures(contender, base, own_s)
        rows.append(row)
        print(line(row))
    return rows


def figures(contender: Contender, base: Contender, own_s: float) -> dict[str, object]:
    median_s, base_s = statistics.median(contender.seconds), statistics.median(base.seconds)
    ratios = [s / b for s, b in zip(contender.seconds, base.seconds, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    cpu = statistics.median(contender.cpu_seconds) / statistics.median(base.cpu_seconds)
    return {
        "step_ms": f"{1e3 * median_s:.2f}",
        "ratio": f"{median_s / base_s:.3f}",
        "ratio_low": f"{low:.3f}",
        "ratio_high": f"{high:.3f}",
        "cpu_ratio": f"{cpu:.3f}",
        "added_ms": f"{1e3 * (median_s - base_s):.2f}",
        "times_sonde": f"{(median_s - base_s) / own_s:.2f}" if own_s > 0 else "",
        "block": contender.block,
    }


def line(row: dict[str, object]) -> str:
    if "ratio" not in row:
        return f"  {row['variant']:<44} {row['note']}"
    return (
        f"  {row['variant']:<44} {row['step_ms']:>9} ms  {row['ratio']:>7} x  "
        f"({row['ratio_low']} to {row['ratio_high']})  "
        f"cpu {row['cpu_ratio']:>7} x  added {row['times_sonde']} x sonde's"
    )


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def surroundings(model: str) -> dict[str, object]:
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": processor(),
        "cores": os.cpu_count(),
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sonde": sonde.__version__,
        "kernel": "c" if c.available() else "torch",
        "threads": torch.get_num_threads(),
        "model": model,
    }


def processor() -> str:
    """The model's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


if __name__ == "__main__":
    main()
