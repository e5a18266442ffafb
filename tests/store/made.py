"""Runs made for tests: batches whose every value follows from step, site and rank, so that any row
that is read back can be judged by itself."""

from __future__ import annotations

import numpy as np

from sonde.kernels.reference import sketch
from sonde.record import NumberBatch, Site, SiteInfo, SketchBatch, Sketches
from sonde.sketch import Sketch, concatenate

KINDS = ("output", "output_grad", "param", "param_grad")


def sites(n: int, dtype: str = "float32") -> list[SiteInfo]:
    found = []
    for i in range(n):
        kind = KINDS[i % 4]
        slot = "weight" if kind.startswith("param") else "0"
        found.append(SiteInfo(i, Site(f"h.{i // 4}", kind, 0, slot), dtype, (2, i), "Linear"))
    return found


def plain_sketches(step: int, n: int, rank: int = 0) -> Sketches:
    """Cheap sketches with one to three bins, all of it computed from step, site and rank."""
    site = np.arange(n)
    count = 1000 * step + 10 * site + rank + 1
    counts = np.zeros((n, 6), np.int64)
    counts[:, 0] = count
    counts[:, 1] = site % 3
    sums = np.stack([count * 0.5, count * 0.75, count * 1.25, count * 2.5], axis=1)
    extrema = np.stack([-1.0 - site, 1.0 + site + step, np.full(n, 0.001)], axis=1)
    lengths = 1 + site % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    first = np.repeat((7 * site + step) % 1000, lengths)
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    ids = (first + within).astype(np.int16)
    bin_counts = np.where(within == 0, np.repeat(count - lengths + 1, lengths), 1).astype(np.int64)
    return Sketches(counts, sums, extrema, offsets, ids, bin_counts)


def batch(step: int, n: int = 4, *, rank: int = 0, phase: str = "train") -> SketchBatch:
    return SketchBatch(step, phase, np.arange(n, dtype=np.int32), plain_sketches(step, n, rank))


def loss(
    step: int, *, rank: int = 0, phase: str = "train", value: float | None = None
) -> NumberBatch:
    known = 1.0 / (step + 1) + rank if value is None else value
    return NumberBatch(step, phase, ["loss"], [None], np.array([known]))


def real_sketches(rng: np.random.Generator, n: int) -> list[Sketch]:
    """Sketches of small tensors with everything in them that tensors can hold."""
    found = []
    for _ in range(n):
        x = rng.normal(size=rng.integers(0, 60)) * 10.0 ** rng.integers(-9, 9)
        for odd in (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42):
            if len(x) and rng.random() < 0.3:
                x[rng.integers(0, len(x))] = odd
        found.append(sketch(x))
    return found


def columns(sketches: list[Sketch]) -> Sketches:
    return concatenate([s.columns() for s in sketches])
