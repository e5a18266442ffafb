"""What a trace costs: the forward of 100 small Linears plain, and with single variables traced.

    python benchmarks/trace.py [--rounds 50] [--block 20]

One process, one thread. Each variant has two models of the same kind, one plain and one traced, and
they take turns, forward by forward, so that whatever else the machine does hits both alike. No code
is shared between the two: what is traced is the code of a class. A ratio is that of two forwards
next to each other: its median, with quartiles; `ratio_best` is that of the two fastest. Time is
that of the processor; a busy machine still makes ratios larger, as caches are cold whenever a trace
gets its turn. Variables change at every forward, so each is compared and copied.

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
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import sonde
from sonde.tracing import Trace

LAYERS, WIDTH, BATCH = 100, 32, 8
COLUMNS = (
    *("date", "machine", "cores", "load", "python", "torch", "sonde", "variant", "values"),
    *("plain_us", "forward_us", "ratio", "ratio_low", "ratio_high", "ratio_best", "added_us"),
    "forwards",
)


def kinds() -> tuple[type[nn.Module], type[nn.Module]]:
    """Two classes of models, with code of their own."""

    class Linear(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return functional.linear(input, self.weight, self.bias)

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            h = self.fc(x)
            y = h.relu()
            return y

    class Model(nn.Module):
        """100 Linears: 99 in a row, and one in a module that has a method of its own."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(*(Linear(WIDTH, WIDTH) for _ in range(LAYERS - 1)))
            self.head = Head()

        def forward(self, x: Tensor) -> Tensor:
            h = self.layers(x)
            y = self.head(h)
            return y

    class Loop(Model):
        """The same with the loop in the method that is traced."""

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            y = self.head(x)
            return y

    for kind in (Linear, Head, Model, Loop):
        kind.forward.__code__ = kind.forward.__code__.replace()
    return Model, Loop


Start = Callable[[nn.Module], AbstractContextManager[object]]


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


VARIANTS: dict[str, tuple[bool, Start]] = {
    "no active trace": (False, after),
    "local of the model's forward": (False, traced("forward.y")),
    "local of one module's method": (False, traced("head.forward.h")),
    "output of one Linear": (False, traced("layers.50")),
    "argument of one of 100 Linears": (False, traced("layers.50.forward.input")),
    "local of a forward that loops": (True, traced("forward.y")),
    "settrace": (False, with_settrace),
}


@dataclass
class Contender:
    name: str
    plain: nn.Module
    traced: nn.Module
    handle: object
    plain_s: list[float] = field(default_factory=list)
    traced_s: list[float] = field(default_factory=list)

    @property
    def values(self) -> int:
        if not isinstance(self.handle, Trace):
            return 0
        return sum(len(result) for result in self.handle.results.values())


def measure(rounds: int, block: int) -> list[Contender]:
    torch.set_num_threads(1)
    contenders = []
    xs = [torch.randn(BATCH, WIDTH) for _ in range(block)]
    with ExitStack() as stack, torch.no_grad():
        for name, (is_loop, start) in VARIANTS.items():
            pair = []
            for _ in range(2):
                torch.manual_seed(0)
                pair.append(kinds()[is_loop]())
            contenders.append(Contender(name, *pair, stack.enter_context(start(pair[1]))))
        for n in range(rounds + 1):
            for each in contenders:
                for i, x in enumerate(xs):
                    turn(each, x, is_plain_first=i % 2 == 0, counts=n > 0)
    return contenders


def turn(each: Contender, x: Tensor, *, is_plain_first: bool, counts: bool) -> None:
    pair = [(each.plain, each.plain_s), (each.traced, each.traced_s)]
    for model, seconds in pair if is_plain_first else pair[::-1]:
        begin = time.thread_time()
        model(x)
        took = time.thread_time() - begin
        if counts:
            seconds.append(took)


def rows(contenders: list[Contender]) -> Iterator[dict[str, object]]:
    for each in contenders:
        pairs = zip(each.traced_s, each.plain_s, strict=True)
        ratios = [a / b for a, b in pairs if b > 0]  # a virtual machine's clock may stand still
        low, middle, high = statistics.quantiles(ratios, n=4)
        own, plain = statistics.median(each.traced_s), statistics.median(each.plain_s)
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
            "plain_us": f"{plain * 1e6:.1f}",
            "forward_us": f"{own * 1e6:.1f}",
            "ratio": f"{middle:.3f}",
            "ratio_low": f"{low:.3f}",
            "ratio_high": f"{high:.3f}",
            "ratio_best": f"{min(each.traced_s) / min(each.plain_s):.3f}",
            "added_us": f"{(own - plain) * 1e6:.1f}",
            "forwards": len(ratios),
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
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--block", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "trace.csv")
    options = parser.parse_args()
    found = list(rows(measure(options.rounds, options.block)))
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
