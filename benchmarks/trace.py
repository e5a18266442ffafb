"""What a trace costs: the forward of 100 small Linears plain, and with single variables traced.

    python benchmarks/trace.py [--rounds 200] [--block 5]

One process, one thread. The variants take turns: a block of forwards each, round after round, in an
order that moves on by one each time. A trace is begun before its block and ended after it, with a
few forwards that do not count: the code of a class is shared, and plain has to be plain. Time is
that of the processor, so that what else the machine does matters less. A ratio is that of a block
to the plain block of the same round: its median, with quartiles; `ratio_best` is that of the two
fastest blocks. Variables change at every forward, so each is compared and copied.

`settrace` is what a tracer through `sys.settrace` does at least: a Python function for each call
and line of everything below the model.
"""

import argparse
import csv
import datetime as dt
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

import sonde
from sonde.tracing import Trace

LAYERS, WIDTH, BATCH = 100, 32, 8
WARM_UP = 5
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "variant", "values"),
    *(
        "forward_us",
        "ratio",
        "ratio_low",
        "ratio_high",
        "ratio_best",
        "added_us",
        "rounds",
        "block",
    ),
)


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        y = h.relu()
        return y


class Model(nn.Module):
    """100 Linears: 99 in a loop, and one in a module that has a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS - 1)))
        self.head = Head()

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        y = self.head(h)
        return y


class Loop(Model):
    """The same with the loop in the method that is traced: each round of it is two lines."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        y = self.head(x)
        return y


Start = Callable[[nn.Module], AbstractContextManager[object]]


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    yield


@contextmanager
def after(model: nn.Module) -> Iterator[None]:
    """There was a trace, and there is none any more."""
    with sonde.trace(model, ["forward.y", "layers.*.forward.input", "head.forward.h"]) as trace:
        model(torch.randn(BATCH, WIDTH))
        trace.flush()
    yield


def traced(*paths: str) -> Start:
    @contextmanager
    def start(model: nn.Module) -> Iterator[Trace]:
        # A callback that lets go of the values: what is kept in memory is no cost of tracing.
        with sonde.trace(model, list(paths), before_save=lambda name, value, i: i) as trace:
            yield trace

    return start


@contextmanager
def with_settrace(model: nn.Module) -> Iterator[None]:
    wanted = {id(m) for m in model.modules()}

    def local(frame: object, event: str, argument: object) -> object:
        frame.f_locals.get("y")  # type: ignore[attr-defined]
        return local

    def trace(frame: object, event: str, argument: object) -> object:
        return local if id(frame.f_locals.get("self")) in wanted else None  # type: ignore[attr-defined]

    before = model.forward

    def forward(x: Tensor) -> Tensor:
        sys.settrace(trace)
        try:
            return before(x)
        finally:
            sys.settrace(None)

    model.forward = forward
    yield
    del model.forward


VARIANTS: dict[str, tuple[type[Model], Start]] = {
    "plain": (Model, plain),
    "no active trace": (Model, after),
    "local of the model's forward": (Model, traced("forward.y")),
    "local of one module's method": (Model, traced("head.forward.h")),
    "output of one Linear": (Model, traced("layers.50")),
    "argument of one of 100 Linears": (Model, traced("layers.50.forward.input")),
    "loop, plain": (Loop, plain),
    "loop, local of the method that loops": (Loop, traced("forward.y")),
    "settrace": (Model, with_settrace),
}


@dataclass
class Contender:
    name: str
    start: Start
    model: nn.Module
    seconds: list[float] = field(default_factory=list)
    values: int = 0

    def run(self, xs: list[Tensor]) -> float:
        """Seconds of a block."""
        with self.start(self.model) as handle:
            for x in xs[:WARM_UP]:
                self.model(x + 1)
            seconds = timed(self.model, xs)
        results = handle.results if isinstance(handle, Trace) else {}
        self.values += sum(len(result) for result in results.values())
        return seconds


def measure(rounds: int, block: int) -> list[Contender]:
    torch.set_num_threads(1)
    contenders = []
    for name, (kind, start) in VARIANTS.items():
        torch.manual_seed(0)
        contenders.append(Contender(name, start, kind()))
    xs = [torch.randn(BATCH, WIDTH) for _ in range(block)]
    with torch.no_grad():
        for n in range(rounds + 1):
            at = n % len(contenders)
            for each in contenders[at:] + contenders[:at]:
                seconds = each.run(xs)
                if n:
                    each.seconds.append(seconds / block)
    return contenders


def timed(model: nn.Module, xs: list[Tensor]) -> float:
    begin = time.thread_time()
    for x in xs:
        model(x)
    return time.thread_time() - begin


def rows(contenders: list[Contender], block: int) -> Iterator[dict[str, object]]:
    found = {each.name: each for each in contenders}
    for each in contenders:
        base = found["loop, plain" if each.name.startswith("loop") else "plain"]
        ratios = [a / b for a, b in zip(each.seconds, base.seconds, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        own, plain_s = statistics.median(each.seconds), statistics.median(base.seconds)
        yield {
            "date": dt.date.today().isoformat(),  # noqa: DTZ011
            "machine": machine(),
            "cores": os.cpu_count(),
            "load": f"{os.getloadavg()[0]:.1f}",
            "python": platform.python_version(),
            "torch": torch.__version__,
            "sonde": sonde.__version__,
            "variant": each.name,
            "values": each.values,
            "forward_us": f"{own * 1e6:.1f}",
            "ratio": f"{middle:.3f}",
            "ratio_low": f"{low:.3f}",
            "ratio_high": f"{high:.3f}",
            "ratio_best": f"{min(each.seconds) / min(base.seconds):.3f}",
            "added_us": f"{(own - plain_s) * 1e6:.1f}",
            "rounds": len(each.seconds),
            "block": block,
        }


def machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":")[1].strip() for line in lines if "model name" in line)
        return " ".join(name.split()[:2])
    except (OSError, StopIteration):
        return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "trace.csv")
    options = parser.parse_args()
    found = list(rows(measure(options.rounds, options.block), options.block))
    for row in found:
        ratios = f"×{row['ratio']} (best ×{row['ratio_best']})"
        print(f"{row['variant']:38} {row['forward_us']:>9} µs  {ratios}  +{row['added_us']} µs")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    # The rows of other versions of Python stay.
    kept = []
    if options.out.exists():
        with options.out.open(newline="") as file:
            kept = [
                row for row in csv.DictReader(file) if row["python"] != platform.python_version()
            ]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows([*kept, *found])


if __name__ == "__main__":
    main()
