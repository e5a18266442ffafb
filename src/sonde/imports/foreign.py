"""A run of another tracker, as far as its files tell, and how it becomes a run of ours."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import (
    COUNTS,
    EXTREMA,
    N_BINS,
    SUMS,
    Event,
    Kind,
    NumberBatch,
    Site,
    SiteInfo,
    SketchBatch,
)
from sonde.sketch import bins
from sonde.sketch.columns import from_dense
from sonde.store.writing.writer import Writer

_POINTS: Final = 16
"""A bucket's values are taken to lie at so many places, evenly."""

_MOST_VALUES: Final = 2.0**52
_FLUSH_AFTER, _FLUSH_S = 200, 60.0

_GROUPS: Final[dict[str, Kind]] = {
    "activation": "output",
    "activations": "output",
    "gradient": "param_grad",
    "gradients": "param_grad",
    "parameter": "param",
    "parameters": "param",
}
_TENSOR: Final = re.compile(rf"(?:^|/)({'|'.join(_GROUPS)})/([^/]+(?:/[^/]+)*?)(?:/hist)?$")
_LACKS: Final = (
    "Imported from {tracker}. It has what was logged there: {scalars} series of numbers and "
    "{histograms} of histograms. A histogram is known by its {n} buckets, so quantiles are as fine "
    "as these; zeros, NaN and infinities are not known{sums}. Shapes, dtypes and the graph of the "
    "model are not known."
)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram: `counts[i]` values between `edges[i]` and `edges[i + 1]`. Sums if they are
    known."""

    edges: NDArray[np.float64]
    counts: NDArray[np.float64]
    sum: float | None = None
    sum_sq: float | None = None

    @property
    def is_sound(self) -> bool:
        """Whether edges rise and counts are counts: a file may be damaged."""
        return bool(
            len(self.edges) == len(self.counts) + 1
            and np.isfinite(self.edges).all()
            and (np.diff(self.edges) >= 0).all()
            and (self.counts >= 0).all()
            and self.counts.sum() < _MOST_VALUES
        )


@dataclass(slots=True)
class ForeignRun:
    """What a tracker's files hold: numbers and histograms by step and name."""

    tracker: str
    name: str
    config: dict[str, object] = field(default_factory=dict)
    numbers: dict[int, dict[str, float]] = field(default_factory=dict)
    histograms: dict[int, dict[str, Buckets]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def add(self, step: int, name: str, value: object) -> None:
        """Keep a value: a number, a histogram, or a name that is told as left out."""
        if step < 0:
            self.skipped.add(name)
        elif isinstance(value, Buckets) and value.is_sound:
            self.histograms.setdefault(step, {})[name] = value
        elif isinstance(value, bool | int | float):
            self.numbers.setdefault(step, {})[name] = float(value)
        else:
            self.skipped.add(name)

    def forget_from(self, step: int) -> None:
        """Drop what is known from a step on: the training was resumed there."""
        for kept in (self.numbers, self.histograms):
            for later in [s for s in kept if s >= step]:
                del kept[later]

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a new run directory."""
        config = {"imported": self.tracker, "user": self.config}
        with Writer(path, config=config, compact=False) as writer:
            ids = _declare(writer, self.histograms.values())
            for note in [self._lacks(), *self.notes, *self._left_out()]:
                writer.event(Event("imported", note, level="warning"))
            for i, step in enumerate(sorted({*self.numbers, *self.histograms})):
                if drawn := self.histograms.get(step):
                    writer.sketches(_batch(step, drawn, ids))
                if found := self.numbers.get(step):
                    names, values = list(found), np.array(list(found.values()), np.float64)
                    writer.numbers(NumberBatch(step, "train", names, [None] * len(names), values))
                if i % _FLUSH_AFTER == _FLUSH_AFTER - 1:  # what waits for the disk is bounded
                    writer.flush(_FLUSH_S)
        return Path(path)

    def _lacks(self) -> str:
        drawn = {name for several in self.histograms.values() for name in several}
        sizes = {len(b.counts) for several in self.histograms.values() for b in several.values()}
        knows = all(b.sum is not None for s in self.histograms.values() for b in s.values())
        return _LACKS.format(
            tracker=self.tracker,
            scalars=len({name for several in self.numbers.values() for name in several}),
            histograms=len(drawn),
            n=max(sizes, default=0),
            sums="" if knows else ", and means and norms are estimates",
        )

    def _left_out(self) -> list[str]:
        if not self.skipped:
            return []
        some = ", ".join(sorted(self.skipped)[:10])
        more = f" and {len(self.skipped) - 10} more" if len(self.skipped) > 10 else ""
        return [f"Left out, because they are no numbers and no histograms: {some}{more}."]


def site_of(key: str) -> Site:
    """The site of a histogram, by its name: of a parameter, a gradient or an activation, as Sonde,
    `wandb.watch` and TorchWatcher name them; else a tensor of that name."""
    found = _TENSOR.search(key)
    if found is None:
        return Site("", "attach", 0, key)
    kind, path = _GROUPS[found[1]], found[2]
    if kind == "output":
        module, _, call = path.partition("#")
        module = "" if module == "[root module]" else module
        return Site(module, kind, int(call) if call.isdecimal() else 0)
    module, _, parameter = path.replace("/", ".").rpartition(".")
    return Site(module, kind, 0, parameter)


def _declare(writer: Writer, drawn: Iterable[dict[str, Buckets]]) -> dict[str, int]:
    keys = sorted({name for several in drawn for name in several})
    sites = {key: site_of(key) for key in keys}
    numbers = {site: i for i, site in enumerate(dict.fromkeys(sites.values()))}
    writer.sites([SiteInfo(i, site, "", (), "") for site, i in numbers.items()])
    return {key: numbers[site] for key, site in sites.items()}


def _batch(step: int, drawn: dict[str, Buckets], ids: dict[str, int]) -> SketchBatch:
    several = {ids[key]: found for key, found in drawn.items()}
    order = sorted(several)
    rows = [_row(several[i]) for i in order]
    counts = np.zeros((len(rows), len(COUNTS)), np.int64)
    counts[:, 0] = [row[2].sum() for row in rows]
    sketches = from_dense(
        counts,
        np.stack([row[0] for row in rows]),
        np.stack([row[1] for row in rows]),
        np.stack([row[2] for row in rows]),
    )
    return SketchBatch(step, "train", np.array(order, np.int32), sketches)


def _row(found: Buckets) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Sums, extrema and bins of a histogram."""
    held = np.flatnonzero(found.counts > 0)
    if not len(held):
        nothing = {"min": math.inf, "max": -math.inf, "min_abs": math.inf}
        empty = np.array([nothing[name] for name in EXTREMA])
        return np.zeros(len(SUMS)), empty, np.zeros(N_BINS, np.int64)
    left, right = found.edges[held], found.edges[held + 1]
    places = (np.arange(_POINTS) + 0.5) / _POINTS
    x = (left[:, None] * (1 - places) + right[:, None] * places).ravel()
    weight = np.repeat(found.counts[held] / _POINTS, _POINTS)
    low, high = float(left[0]), float(right[-1])
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {
            "sum": (x * weight).sum() if found.sum is None else found.sum,
            "sum_abs": (abs(x) * weight).sum(),
            "sum_sq": (x**2 * weight).sum() if found.sum_sq is None else found.sum_sq,
            "sum_4": (x**4 * weight).sum(),
        }
    nearest = 0.0 if low < 0 < high else min(abs(low), abs(high))
    extrema = {"min": low, "max": high, "min_abs": nearest}
    return (
        np.array([sums[name] for name in SUMS]),
        np.array([extrema[name] for name in EXTREMA]),
        _binned(x, weight),
    )


def _binned(x: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole counts per bin, with the same total."""
    upto = np.round(np.cumsum(weight)).astype(np.int64)  # x rises
    table = np.zeros(N_BINS, np.int64)
    np.add.at(table, bins.bin_of(x), np.diff(upto, prepend=0))
    return table
