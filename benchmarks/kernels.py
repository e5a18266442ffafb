"""What a sketch costs on the CPU, against what torch and numpy take for less.

    python benchmarks/kernels.py [--repeats 15] [--out benchmarks/results/kernels-cpu.csv]

Each method sees the same normal values, in turns, and its median counts. `c` is the fused pass: all
counts, sums, extrema and 2048 bins. `statistics` are the seven that TorchWatcher takes (mean, std,
norm, min, max, var, abs_mean), `histogram` is `torch.histogram` with 50 bins (after a conversion to
float32 where torch has none for the format), `sum` is torch's sum alone, and `reference` is the
definition in numpy, given float64. The last part packs the rows of a table into columns.

`load` is the load average of the last minute, this script included: where it is above `threads` the
machine had other work, times are too long, and calls on several threads may wait for a core.
"""

import argparse
import csv
import datetime as dt
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from sonde._version import VERSION
from sonde.kernels import c, reference
from sonde.kernels.layout import clear, new_table, unpack

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = (1_000, 10_000, 100_000, 1_000_000, 16_000_000)
AT_LEAST_S = 0.001  # short calls are timed in groups of this length
SURROUNDINGS = ("date", "sonde", "torch", "machine", "cores")
COLUMNS = (
    *SURROUNDINGS,
    "method",
    "dtype",
    "n",
    "threads",
    "ns_per_value",
    "us_per_call",
    "times_c",
    "load",
)

Method = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/kernels-cpu.csv"))
    arguments = parser.parse_args()
    rows = [*tensor_rows(arguments.repeats), *pack_rows(arguments.repeats)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**surroundings(), **row} for row in rows)
    show_ratios(rows)


def tensor_rows(repeats: int) -> Iterator[dict]:
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        for dtype in DTYPES:
            for n in SIZES:
                x = torch.randn(n, generator=torch.Generator().manual_seed(0)).to(dtype)
                methods = methods_for(x, threads)
                if threads > 1:
                    del methods["reference"]
                yield from timed_rows(methods, n, name_of(dtype), threads, repeats)


def methods_for(x: torch.Tensor, threads: int) -> dict[str, Method]:
    table = new_table(1)
    x64 = x.double().numpy()
    given = (table.ctypes.data, x.data_ptr(), x.numel(), c.DTYPES[name_of(x.dtype)], 1, threads)
    has_histogram = x.dtype in (torch.float32, torch.float64)

    def seven() -> None:
        _ = (x.mean(), x.std(), x.norm(), x.min(), x.max(), x.var(), x.abs().mean())

    def seven_and_histogram() -> None:
        seven()
        torch.histogram(x if has_histogram else x.float(), 50)

    return {
        "c": lambda: (c.add(*given), table)[0],  # the table lives as long as this function
        "statistics and histogram": seven_and_histogram,
        "statistics": seven,
        "sum": x.sum,
        "reference": lambda: reference.sketch(x64),
    }


def pack_rows(repeats: int) -> Iterator[dict]:
    """A thousand rows with the bins of normal values, emptied and filled again each time."""
    x = np.random.default_rng(0).normal(size=(1000, 4096)).astype(np.float32)
    full = new_table(len(x))
    for row, values in zip(full, x, strict=True):
        c.add(row.ctypes.data, values.ctypes.data, values.size, c.DTYPES["float32"], 1, 1)
    table, every = full.copy(), np.arange(len(full))

    def by_numpy() -> None:
        unpack(table[every])
        clear(table)

    methods = {"c": lambda: c.pack(table, every), "numpy": by_numpy}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(repeats):
        for name, method in methods.items():
            table[:] = full
            start = time.perf_counter()
            method()
            times[name].append(time.perf_counter() - start)
    yield from as_rows(times, len(full), "pack a row", 1)


def timed_rows(
    methods: dict[str, Method], n: int, dtype: str, threads: int, repeats: int
) -> Iterator[dict]:
    calls = {name: calls_in_a_group(method) for name, method in methods.items()}
    times: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(repeats):
        for name, method in methods.items():
            if name == "reference" and turn > 2:
                continue  # a hundred times slower, and not what is asked
            start = time.perf_counter()
            for _ in range(calls[name]):
                method()
            times[name].append((time.perf_counter() - start) / calls[name])
    yield from as_rows(times, n, dtype, threads)


def calls_in_a_group(method: Method) -> int:
    method()
    start = time.perf_counter()
    method()
    return max(1, round(AT_LEAST_S / max(time.perf_counter() - start, 1e-7)))


def as_rows(times: dict[str, list[float]], n: int, dtype: str, threads: int) -> Iterator[dict]:
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, seconds in medians.items():
        yield {
            "method": name,
            "dtype": dtype,
            "n": n,
            "threads": threads,
            "ns_per_value": f"{seconds / n * 1e9:.3f}",
            "us_per_call": f"{seconds * 1e6:.2f}",
            "times_c": f"{seconds / medians['c']:.2f}",
            "load": f"{os.getloadavg()[0]:.1f}",
        }
    line = "  ".join(f"{name} {seconds / n * 1e9:.3g}" for name, seconds in medians.items())
    print(f"{dtype:>10} {n:>9} x{threads}  ns: {line}", flush=True)


def show_ratios(rows: list[dict]) -> None:
    for method in ("statistics and histogram", "statistics", "sum"):
        ratios = [float(row["times_c"]) for row in rows if row["method"] == method]
        middle = statistics.median(ratios)
        print(f"{method}: at least {min(ratios):.1f}, mostly {middle:.1f} times the fused pass")


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def surroundings() -> dict:
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    here = (today, VERSION, torch.__version__, cpu_model(), os.cpu_count())
    return dict(zip(SURROUNDINGS, here, strict=True))


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


if __name__ == "__main__":
    main()
