"""A LogFrame as a run: so that the page and all that reads runs can show it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.logframe.rates import rates
from sonde.logframe.schema import TENSOR_TYPES, Frame, exponent, frexp_shift, validate
from sonde.record import (
    COUNTS,
    EXTREMA,
    N_BINS,
    SUMS,
    Event,
    NumberBatch,
    Site,
    SiteInfo,
    SketchBatch,
    Sketches,
)
from sonde.sketch import bins
from sonde.sketch.columns import from_dense, merge_groups
from sonde.store.writing.writer import Writer

KINDS: Final = {
    **{name: kind for kind, name in TENSOR_TYPES.items()},
    "Weight": "param",
    "Weight_Gradient": "param_grad",
}
"""The kind of each tensor type, also as the document of Track & Visualize spells it."""
_OPTIMIZER: Final = "Optimiser_State"
_NOTE: Final = (
    "Made from a LogFrame: statistics are those of the file, counts are known by power of two, and "
    "signs, zeros and NaN are not known. Quantiles and histograms are within a factor of two."
)


def to_run(
    frame: Frame,
    path: str | os.PathLike[str],
    *,
    scalars: Mapping[str, Mapping[int, float]] | None = None,
) -> str:
    """Write a LogFrame to a new run directory. Returns its path.

    Statistics read back as they are in the frame, as far as a sketch holds them (mean, rm2, rm4,
    mean_abs, max_abs, min_abs), and so do the counts of exponents. The scalars
    `underflow_rate/<type>` and `overflow_rate/<type>` are those of `rates`. Further scalars are
    given by step: `{"loss": {0: 2.3}}`.
    """
    validate(frame)
    with Writer(path, config={"imported": "LogFrame"}) as writer:
        ids = _declare(writer, frame)
        shift = frexp_shift(frame)
        writer.event(Event("imported", _NOTE))
        for step, rows in frame.groupby(frame["metadata", "step"], sort=True):
            writer.sketches(_batch(int(step), rows, ids, shift))
        for (kind, step), row in rates(frame).iterrows():
            names = [f"{rate}/{kind}" for rate in row.index]
            nowhere: list[str | None] = [None] * len(names)
            numbers = row.to_numpy(float)
            writer.numbers(NumberBatch(int(step), "train", names, nowhere, numbers))
        for name, values in (scalars or {}).items():
            for step, value in values.items():
                writer.numbers(NumberBatch(int(step), "train", [name], [None], np.array([value])))
    return os.fspath(path)


def _declare(writer: Writer, frame: Frame) -> dict[tuple[str, str], int]:
    ids: dict[tuple[str, str], int] = {}
    infos = []
    meta = frame["metadata"]
    for name, kind, module_type, dtype in zip(
        meta["name"], meta["tensor_type"], meta["type"], meta["dtype"], strict=True
    ):
        key = (str(name), str(kind))
        if key not in ids:
            ids[key] = len(ids)
            infos.append(SiteInfo(ids[key], site_of(*key), str(dtype), (), str(module_type)))
    writer.sites(infos)
    return ids


def site_of(name: str, tensor_type: str) -> Site:
    """The site that a row of a LogFrame stands for."""
    kind = KINDS.get(tensor_type)
    if kind in {"output", "output_grad"}:
        return Site("" if name == "." else name, kind)  # type: ignore[arg-type]  # a Kind
    module, _, parameter = name.rpartition(".")
    if kind is not None:
        return Site(module, kind, 0, parameter)  # type: ignore[arg-type]  # a Kind
    state = tensor_type.partition(".")[2] or tensor_type
    return Site(module, "optim", 0, f"{parameter}/{state}")


def sketches_of(rows: Frame, shift: int) -> Sketches:
    """A sketch of each row: its statistics, and its counts by power of two."""
    table = _bins(rows, shift)
    count = table.sum(axis=1)
    stats = {str(name): rows["scalar_stats", name].to_numpy(float) for name in _stats(rows)}
    counts = np.zeros((len(rows), len(COUNTS)), np.int64)
    counts[:, 0] = count
    return from_dense(counts, _sums(stats, count), _extrema(stats), table)


def _batch(step: int, rows: Frame, ids: dict[tuple[str, str], int], shift: int) -> SketchBatch:
    """All rows of a step. Several rows of one tensor (a module that is called twice) are merged."""
    keys = zip(rows["metadata", "name"], rows["metadata", "tensor_type"], strict=True)
    numbers = np.array([ids[str(name), str(kind)] for name, kind in keys], np.int32)
    known, places = np.unique(numbers, return_inverse=True)
    return SketchBatch(
        step, "train", known, merge_groups(sketches_of(rows, shift), places, len(known))
    )


def _stats(rows: Frame) -> Iterator[object]:
    return (name for group, name in rows.columns if group == "scalar_stats")


def _sums(stats: dict[str, NDArray[np.float64]], count: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums of powers that give back the means."""
    zero = np.zeros(len(count))
    rm2 = np.nan_to_num(stats.get("rm2", stats.get("rms", zero)))
    means = {
        "sum": np.nan_to_num(stats.get("mean", zero)),
        "sum_abs": np.nan_to_num(stats.get("mean_abs", rm2)),
        "sum_sq": rm2**2,
        "sum_4": np.nan_to_num(stats.get("rm4", rm2)) ** 4,
    }
    return np.stack([means[name] * count for name in SUMS], axis=1)


def _extrema(stats: dict[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    some = next(iter(stats.values()))
    high = np.nan_to_num(stats.get("max_abs", np.full(len(some), math.nan)), nan=0.0)
    low = np.nan_to_num(stats.get("min_abs", np.zeros(len(some))), nan=0.0)
    found = {"min": -high, "max": high, "min_abs": low}
    return np.stack([found[name] for name in EXTREMA], axis=1)


def _bins(rows: Frame, shift: int) -> NDArray[np.int64]:
    """Bins of the positive half: each power of two in the second of its four bins."""
    counts = rows["exponent_counts"]
    finite = sorted(e for e in map(exponent, counts.columns) if math.isfinite(e))
    table = np.zeros((len(rows), N_BINS), np.int64)
    for column in counts.columns:
        value = exponent(column)
        if value == -math.inf:
            value = finite[0] - 1
        elif value == math.inf:
            value = finite[-1] + 1
        start = value - shift
        table[:, int(bins.bin_of(1.25 * 2.0**start))] += counts[column].to_numpy(np.int64)
    return table
