"""How fast the CUDA kernel reads: bandwidth against a device copy, and time on small tensors.

python benchmarks/gpu_kernels.py [--out benchmarks/results]
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import sonde
from sonde.capture.torch.rows import cuda
from sonde.capture.torch.rows.host import TensorCopies


def device_us(act: Callable[[], object], repeats: int = 25) -> float:
    """Median time on the device. The sleep lets the launch be ready before it is timed."""
    times = []
    for _ in range(repeats):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(400_000)
        first.record()
        act()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) * 1e3)
    return statistics.median(times[3:])


def host_us(act: Callable[[], object], repeats: int = 500) -> float:
    """Mean time on the host of a launch."""
    for _ in range(20):
        act()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        act()
    spent = (time.perf_counter() - began) / repeats * 1e6
    torch.cuda.synchronize()
    return spent


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="benchmarks/results")
    asked = parser.parse_args()
    table = cuda.table_for(torch.device("cuda"))
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.numel() / device_us(functools.partial(target.copy_, source)) / 1e6
    del source, target
    rows = []
    for dtype in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float64,
        torch.int64,
    ):
        width = torch.empty(0, dtype=dtype).element_size()
        for size in (16 << 10, 256 << 10, 2 << 20, 16 << 20, 256 << 20, 1 << 30):
            x = torch.randn(size // width, device="cuda").to(dtype)
            us = device_us(lambda x=x: table.add(0, x))
            rows.append(
                {
                    "what": "one",
                    "dtype": str(dtype).removeprefix("torch."),
                    "bytes": size,
                    "us": round(us, 2),
                    "tb_per_s": round(size / us / 1e6, 3),
                    "share_of_copy": round(size / us / 1e6 / copy, 3),
                    "host_us": round(host_us(lambda x=x: table.add(0, x)), 2)
                    if size <= 2 << 20
                    else "",
                }
            )
            print(rows[-1], flush=True)
            del x
    rows += many(table, copy)
    write(Path(asked.out) / "gpu-kernels.csv", rows, copy)


def many(table: cuda.CudaTable, copy: float) -> list[dict]:
    """One launch over the parameters of GPT-2 small."""
    layer = [(768, 2304), (2304,), (768, 768), (768,), (768, 3072), (3072,), (3072, 768), (768,)]
    shapes = [(50304, 768), (1024, 768), *(layer + [(768,)] * 4) * 12, (768,), (768,)]
    tensors = [torch.randn(s, device="cuda") for s in shapes]
    offsets = TensorCopies.offsets_of(tensors)
    olds, copies = TensorCopies(tensors, offsets), TensorCopies(tensors, offsets)
    for i, x in enumerate(tensors):
        olds.like(i, x).copy_(x + 1e-3)
    indices = np.arange(len(tensors))
    table.ensure(len(tensors))
    size = sum(x.nbytes for x in tensors)
    rows = []
    for name, moved, extra in (
        ("many", size, {}),
        ("many, copied on the way", 2 * size, {"copies": copies}),
        ("many, difference", 2 * size, {"olds": olds}),
    ):
        us = device_us(lambda e=extra: table.add_many(indices, tensors, **e))
        rows.append(
            {
                "what": name,
                "dtype": "float32",
                "bytes": moved,
                "us": round(us, 2),
                "tb_per_s": round(moved / us / 1e6, 3),
                "share_of_copy": round(moved / us / 1e6 / copy, 3),
                "host_us": round(host_us(lambda e=extra: table.add_many(indices, tensors, **e)), 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def write(path: Path, rows: list[dict], copy: float) -> None:
    common = {
        "copy_tb_per_s": round(copy, 3),
        "device": torch.cuda.get_device_name(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "sonde": sonde.__version__,
        "torch": torch.__version__,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [*rows[0], *common])
        out.writeheader()
        out.writerows({**row, **common} for row in rows)


if __name__ == "__main__":
    main()
