"""What each part that is there for speed gives: the same training step with it and without it.

    python benchmarks/ablation.py [--minutes 6] [--case eager ...] [--part NAME ...] [--every 10]

On a GPU: the model and step of `gpu_overhead.py`; else: the transformer of `sonde demo`. Cases:

    eager      all kinds of tensors are watched
    metrics    the ten metrics of `gpu_metrics.py` and attention too; GPU only
    compiled   as `eager`, under `torch.compile`; one copy of the model for each part that is in the
               compiled code, since code is made once; that takes some 25 s each time on a GPU, and
               comes on top of `--minutes`

A block of steps with everything is followed by one without a part, then again one with everything,
and so on through all parts, round after round until the time is up. A part gives how much longer a
step takes without it, in percent of a step with it: of a block without it to the mean of the blocks
before and after. Told is the median, with the interval in which it lies at a confidence of 95 %, by
resampling. `control` is a block with everything, on a CPU also one of another copy of the model: it
should give nothing. `cpu` columns are the same for the processor time of the whole process, its
background thread included: they say more where the machine is busy.

A part is switched off where its user calls it, from here: the product has no option for that. Parts
that work on steps are switched while the watch runs, so they leave a hook's own check behind, which
a build without them would not have.
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import gpu_metrics
import gpu_overhead
import sonde
from sonde.capture.torch import steps as state_machine
from sonde.capture.torch.compile import graph_passes, hooks
from sonde.capture.torch.metrics import replay
from sonde.capture.torch.rows import cuda as cuda_rows
from sonde.demo.scenarios import HEALTHY
from sonde.demo.torch.transformer import Transformer

ON_GPU = torch.cuda.is_available()
VOCABULARY = 64
DRAWS = 4000
MIN_ROUNDS = 3
BLOCKS = {1: 10, 10: 10} if ON_GPU else {1: 2, 10: 10}
"""Steps of a block by cadence: short where other processes come and go."""
COLUMNS = (
    *("date", "machine", "load", "torch", "sonde", "case", "every", "part", "step_ms"),
    *("gives", "gives_from", "gives_to", "cpu_gives", "cpu_from", "cpu_to", "rounds", "block"),
)

Door = Callable[[], AbstractContextManager[object]]


# -- the parts -----------------------------------------------------------------------------------


@contextmanager
def replaced(*doors: tuple[object, str, object]) -> Iterator[None]:
    """Inside, attributes of objects are others."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in doors]
    for owner, name, value in doors:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def nothing(*_: object, **__: object) -> None: ...


def without_native(*, hooks_too: bool = True, gradients_too: bool = True) -> Door:
    """Hooks take the way through Python: on modules and in compiled code, on gradients, or both."""
    settle = state_machine.settle

    def settle_less(path, *args) -> None:
        settle(path, *args)
        path.live &= not hooks_too
        path.hears_gradients &= not gradients_too

    return lambda: replaced((state_machine, "settle", settle_less))


def without_c_launches() -> AbstractContextManager[None]:
    """Kernels are launched and the driver is called through ctypes."""
    return replaced((cuda_rows.kernel_on(0), "_is_native", False))


@dataclass(frozen=True)
class Part:
    name: str
    cases: tuple[str, ...]
    door: Door
    is_compiled: bool = False
    needs_gpu: bool | None = None


PARTS = (
    Part("control", ("eager", "metrics", "compiled"), nullcontext),
    Part("native path", ("eager", "metrics", "compiled"), without_native()),
    Part("native path of module hooks", ("eager",), without_native(gradients_too=False)),
    Part("native path of gradient hooks", ("eager",), without_native(hooks_too=False)),
    Part("launches from C", ("eager",), without_c_launches, needs_gpu=True),
    Part("replays", ("metrics",), lambda: replaced((replay.Replays, "follow", nothing))),
    # On a CPU two copies differ by where they lie in memory.
    Part("control copy", ("compiled",), nullcontext, is_compiled=True, needs_gpu=False),
    Part(
        "gathering",
        ("compiled",),
        lambda: replaced((graph_passes, "gather", nothing)),
        is_compiled=True,
    ),
    Part(
        "dual code",
        ("compiled",),
        lambda: replaced((hooks, "both", lambda compiler, *_: compiler)),
        is_compiled=True,
    ),
)


# -- a training ----------------------------------------------------------------------------------


class Training:
    """A model with its optimizer, watched at every tenth step to begin with."""

    def __init__(self, case: str, folder: str, name: str) -> None:
        torch.manual_seed(0)
        self.model = gpu_overhead.Gpt().cuda() if ON_GPU else Transformer(HEALTHY.shape, VOCABULARY)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=ON_GPU or None)
        self.watch = sonde.watch(
            self.model, self.optimizer, log="all", every=10, dir=folder, name=name
        )
        if case == "metrics":
            gpu_metrics.with_metrics(self.watch)
        self.forward: nn.Module | Callable[..., Tensor] = self.model
        if case == "compiled":
            self.forward = torch.compile(self.model, fullgraph=True)
        generator = torch.Generator().manual_seed(0)
        values = gpu_overhead.VOCABULARY if ON_GPU else VOCABULARY
        shape = (
            (gpu_overhead.BATCH, gpu_overhead.CONTEXT)
            if ON_GPU
            else (HEALTHY.batch, HEALTHY.shape.context)
        )
        self.tokens, self.targets = (
            torch.randint(values, shape, generator=generator).to("cuda" if ON_GPU else "cpu")
            for _ in range(2)
        )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=ON_GPU):
                scores = self.forward(self.tokens)
            flat = scores.float().flatten(0, 1)
            functional.cross_entropy(flat, self.targets.flatten()).backward()
            self.optimizer.step()
        if ON_GPU:
            torch.cuda.synchronize()

    def timed(self, steps: int) -> tuple[float, float]:
        """Milliseconds of a step, and of processor time."""
        began, began_cpu = time.perf_counter(), time.process_time()
        self.train(steps)
        ended, ended_cpu = time.perf_counter(), time.process_time()
        return (ended - began) / steps * 1e3, (ended_cpu - began_cpu) / steps * 1e3


@dataclass
class Contender:
    """A training without a part."""

    name: str
    training: Training
    door: Door
    gives: list[float] = field(default_factory=list)
    cpu_gives: list[float] = field(default_factory=list)

    def block(self, steps: int) -> tuple[float, float]:
        with self.door():
            return self.training.timed(steps)


# -- measuring -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="of blocks, in all")
    parser.add_argument("--case", choices=("eager", "metrics", "compiled"), action="append")
    parser.add_argument("--part", choices=[p.name for p in PARTS], action="append")
    parser.add_argument("--every", type=int, choices=tuple(BLOCKS), action="append")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ablation.csv"))
    asked = parser.parse_args()
    cases = asked.case or (["eager", "metrics", "compiled"] if ON_GPU else ["eager", "compiled"])
    # Nothing in these models is written to in place, so older compilers trace the hooks too.
    hooks.TRACES_HOOKS = True
    cadences = asked.every or list(BLOCKS)
    seconds = 60 * asked.minutes / (len(cadences) * len(cases))
    rows = [] if not asked.out.exists() else others(asked.out, cases)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/compiled"
        for case in cases:
            parts = [
                part
                for part in PARTS
                if case in part.cases
                and part.needs_gpu in (None, ON_GPU)
                and (part.name in (asked.part or [part.name]) or part.name.startswith("control"))
            ]
            for row in measure(case, parts, folder, cadences, seconds):
                rows.append(row)
                write(asked.out, rows)
            if ON_GPU:
                torch.cuda.empty_cache()


def measure(
    case: str, parts: list[Part], folder: str, cadences: list[int], seconds: float
) -> Iterator[dict[str, object]]:
    began = time.perf_counter()
    whole = Training(case, folder, f"{case} whole")
    whole.train(15)  # so that steps that are due lie within a block
    trainings = [whole]
    contenders = []
    for part in parts:
        training = whole
        if part.is_compiled:
            with part.door():
                training = Training(case, folder, f"{case} {part.name}")
                training.train(15)
            trainings.append(training)
        contenders.append(Contender(part.name, training, part.door))
    print(f"{case}: ready after {time.perf_counter() - began:.0f} s", flush=True)
    for every in cadences:
        steps = BLOCKS[every]
        for training in trainings:
            training.watch.every = every
        for contender in contenders:
            contender.gives.clear()
            contender.cpu_gives.clear()
            contender.block(steps)  # what is made once is made
        on = alternate(whole, contenders, steps, seconds)
        for contender in contenders:
            row = row_of(contender) | {"case": case, "every": every, "step_ms": on, "block": steps}
            print(
                f"{case:8} every {every:2}  {row['step_ms']:>7} ms  {contender.name:30} gives "
                f"{row['gives']:>6} % ({row['gives_from']} to {row['gives_to']}), processor "
                f"{row['cpu_gives']} % ({row['cpu_from']} to {row['cpu_to']})",
                flush=True,
            )
            yield surroundings() | row
    with ExitStack() as stack:
        for training in trainings:
            stack.callback(training.watch.close)


def alternate(whole: Training, contenders: list[Contender], steps: int, seconds: float) -> str:
    """Blocks in turns until the time is up; a step with everything, in milliseconds."""
    ends = time.perf_counter() + seconds
    rounds = 0
    all_on = []
    order = list(contenders)
    before = whole.timed(steps)
    while rounds < MIN_ROUNDS or time.perf_counter() < ends:
        for contender in order:
            found = contender.block(steps)
            after = whole.timed(steps)
            wall, cpu = ((a + b) / 2 for a, b in zip(before, after, strict=True))
            contender.gives.append(100 * (found[0] / wall - 1))
            contender.cpu_gives.append(100 * (found[1] / cpu - 1))
            all_on.append(after[0])
            before = after
        order.append(order.pop(0))
        rounds += 1
    return f"{statistics.median(all_on):.2f}"


def row_of(contender: Contender) -> dict[str, object]:
    found: dict[str, object] = {"part": contender.name, "rounds": len(contender.gives)}
    for name, begin, values in (
        ("gives", "gives", contender.gives),
        ("cpu_gives", "cpu", contender.cpu_gives),
    ):
        low, middle, high = median_of(values)
        found |= {
            name: f"{middle:.1f}",
            f"{begin}_from": f"{low:.1f}",
            f"{begin}_to": f"{high:.1f}",
        }
    return found


def median_of(values: list[float]) -> tuple[float, float, float]:
    """The median, between the ends of its interval."""
    chance = random.Random(0)
    drawn = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(DRAWS))
    return drawn[DRAWS // 40], statistics.median(values), drawn[-DRAWS // 40]


def surroundings() -> dict[str, object]:
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "sonde": sonde.__version__,
    }


def machine() -> str:
    if ON_GPU:
        return torch.cuda.get_device_name()
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    found = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{found[0] if found else platform.machine()}, {os.cpu_count()} cores"


def others(path: Path, cases: list[str]) -> list[dict[str, object]]:
    """Rows of the file that this run does not replace: of another machine, of other cases, and of
    parts that are no more."""
    known = {part.name for part in PARTS}
    with path.open(newline="") as file:
        return [
            dict(row)
            for row in csv.DictReader(file)
            if row["machine"] != machine() or row["case"] not in cases or row["part"] not in known
        ]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
