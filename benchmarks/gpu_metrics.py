"""What metrics cost on a GPU: ten on all outputs and attention of 12 layers, every tenth step.

The model and step of `gpu_overhead.py`: GPT-2-small shape, batch 8 x 1024, bfloat16 autocast, fused
AdamW. Three variants take turns in rounds of whole tens of steps: plain, watched (what Sonde
records by default), and watched with metrics. After the first round every step runs with
`torch.cuda.set_sync_debug_mode("error")`: one that waits for the device anywhere ends the benchmark
with an error. With `--check`, the coordinate check is measured too.

    python benchmarks/gpu_metrics.py [--rounds 5] [--steps 20] [--out benchmarks/results] [--check]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import sonde
from gpu_overhead import BATCH, CONTEXT, VOCABULARY, Variant, write

METRICS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": torch.linalg.vector_norm,
    "max_abs": lambda x: torch.linalg.vector_norm(x, torch.inf),
    "mean_abs": lambda x: torch.linalg.vector_norm(x, 1) / x.numel(),
    "mean": lambda x: x.mean(),
    "max": lambda x: x.amax(),
    "min": lambda x: x.amin(),
    "first_token": lambda x: x[..., 0, :].mean(),
    "last_token": lambda x: x[..., -1, :].mean(),
    "row_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "sum": lambda x: x.sum(),
}
"""Ten functions that return tensors: all of them on every module's output."""


def plain(_watch: sonde.Watch | None) -> None: ...


def with_metrics(watch: sonde.Watch | None) -> None:
    assert watch is not None
    for name, fn in METRICS.items():
        watch.add_metric(name, fn)
    watch.add_metric("attention")


def with_check(watch: sonde.Watch | None) -> None:
    assert watch is not None
    watch.set_reference("init")
    watch.add_metric("rcc")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="benchmarks/results")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    tokens = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), device="cuda")
    targets = torch.randint(0, VOCABULARY, (BATCH, CONTEXT), device="cuda")
    made = {"plain": (None, plain), "watched": (10, plain), "with metrics": (10, with_metrics)}
    if asked.check:
        made["coordinate check"] = (10, with_check)
    with tempfile.TemporaryDirectory() as folder:
        variants = []
        for name, (every, add) in made.items():
            variants.append(Variant(name, every, compiled=False, folder=folder))
            add(variants[-1].watch)
        for variant in variants:
            # As in `gpu_overhead.py`: steps that are due are to lie within a block.
            variant.measure(tokens, targets, 15)
            variant.times.clear()
            variant.peak = 0.0
        # `measure` itself synchronises before and after, by functions that are not checked.
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(asked.rounds):
            for variant in variants:
                variant.measure(tokens, targets, asked.steps)
        torch.cuda.set_sync_debug_mode("default")
        rows = [row_of(variant, variants[0]) for variant in variants]
    write(Path(asked.out) / "gpu-metrics.csv", rows)


def row_of(variant: Variant, first: Variant) -> dict:
    ratios = [a / b for a, b in zip(variant.times, first.times, strict=True)]
    numbers = 0 if variant.watch is None else len(variant.watch.metrics())
    row = {
        "variant": variant.name,
        "ms": round(statistics.median(variant.times), 3),
        "ms_low": round(min(variant.times), 3),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_low": round(min(ratios), 4),
        "ratio_high": round(max(ratios), 4),
        "peak_gib": round(variant.peak, 2),
        "peak_ratio": round(variant.peak / first.peak, 4),
        "numbers": numbers,
        **variant.close(),
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
