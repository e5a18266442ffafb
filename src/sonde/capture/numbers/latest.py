"""The latest record: statistics of the last recorded step of training, for `watch.metrics`.

A sink that keeps of each sketch what it knows without its bins, about a hundred bytes for a site.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.capture.norms import NAMES
from sonde.capture.numbers.recent import Recent
from sonde.metrics import names
from sonde.record import FINAL, Event, NumberBatch, Site, SiteInfo, SketchBatch, Sketches
from sonde.sketch import needs_bins, statistic

Pick = Callable[[Site], bool]

_STEPS: Final = 8
"""Steps whose norms are kept."""


class Latest:
    """Keeps the sketches of the last recorded step. Written by the drain, read by any thread."""

    name = "latest"

    def __init__(self) -> None:
        self._sites: dict[int, Site] = {}
        self._closed_sites: str | None = None
        self._last: tuple[int, NDArray[np.int32], Sketches] | None = None
        self._norms: Recent[str, float] = Recent(steps=_STEPS)

    @property
    def step(self) -> int | None:
        """The last recorded step of training; None if there was none yet."""
        return None if self._last is None else self._last[0]

    def norms(self, step: int) -> dict[str, float]:
        """The norms of all gradients of a step, as far as they are known."""
        return self._norms.of(step)

    def statistics(self, asked: Sequence[str], pick: Pick) -> dict[str, float]:
        """Statistics of the sites that are picked, by flat key: `activation/h.0.mlp/rms`."""
        if self._last is None:
            return {}
        _, ids, sketches = self._last
        sites = self._sites_of(ids)
        rows = [i for i, site in enumerate(sites) if site.stage == FINAL and pick(site)]
        found: dict[str, float] = {}
        for name in asked:
            values = statistic(name)(sketches)
            found |= {names.of_statistic(sites[i], name): float(values[i]) for i in rows}
        return found

    # -- as a sink -----------------------------------------------------------------------------

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        self._sites.update((info.id, info.site) for info in infos)

    def sketches(self, batch: SketchBatch) -> None:
        if batch.phase == "train" and self._closed_sites is None:
            s, n = batch.sketches, len(batch.ids)
            kept = Sketches(
                s.counts.copy(),
                s.sums.copy(),
                s.extrema.copy(),
                np.zeros(n + 1, np.int64),
                np.empty(0, np.int16),
                np.empty(0, np.int64),
            )
            self._last = (batch.step, batch.ids.copy(), kept)

    def numbers(self, batch: NumberBatch) -> None:
        for name, value in zip(batch.names, batch.values, strict=True):
            if name in NAMES.values():
                self._norms.put(batch.step, name, float(value))

    def event(self, event: Event) -> None:
        """Of no use here."""

    def close(self, reason: str) -> None:
        """Keep the sites as one text. An object for each would hold ten times the memory for as
        long as the user holds the watch."""
        ids = self._last[1] if self._last is not None else np.empty(0, np.int32)
        parts = [(s.module, s.kind, s.call, s.slot) for s in self._sites_of(ids)]
        self._closed_sites = json.dumps(parts)
        self._sites = {}

    def _sites_of(self, ids: NDArray[np.int32]) -> list[Site]:
        if self._closed_sites is not None:
            return [Site(*parts) for parts in json.loads(self._closed_sites)]
        return [self._sites[i] for i in ids.tolist()]


def check_stats(stats: str | Sequence[str] | None) -> list[str]:
    """The statistics asked for. Raises on one that is unknown, or that bins are needed for."""
    asked = [] if stats is None else [stats] if isinstance(stats, str) else list(stats)
    return list(dict.fromkeys(_checked(asked)))


def _checked(asked: Sequence[str]) -> Iterator[str]:
    for name in asked:
        try:
            statistic(name)
        except ValueError as error:
            raise SondeError(str(error)) from None
        if needs_bins(name):
            raise SondeError(
                f"`{name}` needs bins, which are not kept in memory. Read it from the run: "
                f"`sonde.open(watch.path).stats(stat={name!r})`."
            )
        yield name
