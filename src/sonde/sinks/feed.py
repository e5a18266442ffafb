"""Feeds: each sink has a short queue and a thread of its own, so that none can hold another back.

The drain picks the rows that a sink wants and puts them into the queue without waiting. When the
queue is full, a record is dropped and counted. The sink's thread makes named numbers of records and
calls the sink. What went wrong there is reported by the drain's thread: a sentence, and an event in
the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

import numpy as np

from sonde._signals import Bell, Gate
from sonde.capture.voice import say
from sonde.record import Event, GraphPart, NumberBatch, Site, SiteInfo, SketchBatch, Sketches
from sonde.sinks.request import Choice, NumberChoice, Request
from sonde.sinks.sink import HISTOGRAM, Reading, Series, Sink, WatchedRun
from sonde.sketch import equal_histograms, merge_groups, row, statistic, take, without_bins

_CAPACITY_BYTES: Final = 32 << 20
"""What may wait for one sink."""

_MOST_TOGETHER: Final = 256
"""Records that are written together."""

_PATIENCE: Final = 5
"""A sink that fails so many times in a row is switched off."""


@dataclass(frozen=True, slots=True)
class _Tensors:
    """The selected rows of a batch, with their sites."""

    step: int
    phase: str
    sites: list[Site]
    sketches: Sketches

    @property
    def nbytes(self) -> int:
        s = self.sketches
        columns = (s.counts, s.sums, s.extrema, s.offsets, s.bin_ids, s.bin_counts)
        return sum(column.nbytes for column in columns)


@dataclass(frozen=True, slots=True)
class _Named:
    """The selected numbers of a batch; the module is None for a scalar."""

    step: int
    phase: str
    values: list[tuple[str | None, str, float]]

    @property
    def nbytes(self) -> int:
        return 200 * len(self.values)


@dataclass(frozen=True, slots=True)
class _GraphSeen:
    """A part of the graph."""

    part: GraphPart

    @property
    def nbytes(self) -> int:
        return 300 * (len(self.part.nodes) + len(self.part.edges) + len(self.part.modules))


_Item = _Tensors | _Named | _GraphSeen


class Feed:
    """One sink, its queue and its thread. `put` and `news` are called by the drain."""

    def __init__(self, sink: Sink, run: WatchedRun, request: Request) -> None:
        self.name = request.sink
        self.timeout_s = request.timeout_s
        self.ended = Gate()
        self._sink = sink
        self._run = run
        self._request = request
        self._choice = Choice(request)
        self._numbers = NumberChoice(request)
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._hurry = Bell()
        self._keys: dict[Series, str] = {}
        self._reason = ""
        # Each counter is written by one thread only.
        self._given = self._given_bytes = self._refused = 0
        self._done = self._done_bytes = self._failed = 0
        self._error: BaseException | None = None
        self._in_a_row = 0
        self._told: set[str] = set()
        threading.Thread(
            target=self._work, name=f"sonde-sink-{self.name}"[:60], daemon=True
        ).start()

    # -- in the drain's thread -----------------------------------------------------------------

    def declare(self, infos: Sequence[SiteInfo]) -> None:
        self._choice.declare(infos)

    def sketches(self, batch: SketchBatch) -> None:
        if not self._request.phases(batch.phase):
            return
        rows = self._choice.rows(batch.ids)
        if len(rows):
            sites = self._choice.sites(batch.ids[rows])
            whole = batch.sketches if self._request.needs_bins else without_bins(batch.sketches)
            self._put(_Tensors(batch.step, batch.phase, sites, take(whole, rows)))

    def numbers(self, batch: NumberBatch) -> None:
        if not self._request.phases(batch.phase):
            return
        every = zip(batch.modules, batch.names, batch.values.tolist(), strict=True)
        values = [found for found in every if found[:2] in self._numbers]
        if values:
            self._put(_Named(batch.step, batch.phase, values))

    def graph(self, part: GraphPart) -> None:
        if type(self._sink).graph is not Sink.graph:
            self._put(_GraphSeen(part))

    def finish(self, reason: str) -> None:
        """Write what waits and end. Does not wait."""
        self._reason = reason
        self._queue.put(None)
        self._hurry.ring()

    def news(self) -> list[tuple[str, Event]]:
        """What went wrong since the last time, in a sentence and as an event; each once."""
        found = []
        for what, choice in (("tensors", self._choice), ("scalars and metrics", self._numbers)):
            if choice.asked > choice.kept and self._is_new(what):
                text = (
                    f"The sink `{self.name}` gets {choice.kept} of {choice.asked} series of {what}"
                    ". Select fewer with its options, or raise `max_series`."
                )
                told = "" if self._request.is_default else text
                found.append((told, Event("sink_limited", text, self.name)))
        if self._error is not None and self._is_new("failed"):
            text = f"The sink `{self.name}` failed: {self._error!r}. Training and the run go on."
            found.append((text, Event("sink_failed", text, self.name, level="error")))
        while self._sink.notes:
            text = f"The sink `{self.name}`: {self._sink.notes.popleft()}"
            if self._is_new(text):
                found.append((text, Event("sink_note", text, self.name, level="warning")))
        if self._refused and self._is_new("slow"):
            text = (
                f"The sink `{self.name}` is too slow. Records that it has no room for are dropped; "
                "the run has them."
            )
            found.append((text, Event("sink_slow", text, self.name, level="warning")))
        return found

    def last_news(self) -> list[tuple[str, Event]]:
        """What was lost, after the sink has ended or the wait for it is over."""
        found = self.news()
        lost = self._refused + self._failed
        if not self.ended.is_open:
            lost = self._refused + self._given - self._done
            text = (
                f"The sink `{self.name}` did not finish in time. {lost} records were not "
                "delivered to it; the run has them."
            )
            found.append((text, Event("sink_lost", text, self.name, level="error", count=lost)))
        elif lost:
            text = f"{lost} records were not delivered to the sink `{self.name}`."
            found.append(("", Event("sink_lost", text, self.name, level="warning", count=lost)))
        return found

    def _put(self, item: _Item) -> None:
        waits = self._given_bytes - self._done_bytes
        if waits and waits + item.nbytes > _CAPACITY_BYTES:
            self._refused += 1
            return
        self._given += 1
        self._given_bytes += item.nbytes
        self._queue.put(item)

    def _is_new(self, what: str) -> bool:
        is_new = what not in self._told
        self._told.add(what)
        return is_new

    # -- in the sink's thread ------------------------------------------------------------------

    def _work(self) -> None:
        try:
            is_on = self._try(lambda: self._sink.start(self._run))
            while items := self._next():
                is_on = is_on and self._in_a_row < _PATIENCE
                if not (is_on and self._try(lambda: self._write(items))):
                    self._failed += len(items)
                self._done += len(items)
                self._done_bytes += sum(item.nbytes for item in items)
            self._try(lambda: self._sink.close(self._reason))
        finally:
            self.ended.open()

    def _next(self) -> list[_Item]:
        """Records that wait, after collecting for a while; none at the end."""
        item = self._queue.get()
        if item is None:
            return []
        self._hurry.wait(self._request.batch_s)
        items = [item]
        while len(items) < _MOST_TOGETHER and not self._queue.empty():
            item = self._queue.get()
            if item is None:
                self._queue.put(None)  # for the next time
                break
            items.append(item)
        return items

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except BaseException as error:  # sys.exit of a sink's ends its own thread at most
            self._error = self._error or error
            self._in_a_row += 1
            return False
        self._in_a_row = 0
        return True

    def _write(self, items: Sequence[_Item]) -> None:
        readings: dict[tuple[int, str], Reading] = {}
        for item in items:
            if isinstance(item, _GraphSeen):
                self._sink.graph(item.part)
                continue
            at = (item.step, item.phase)
            reading = readings.setdefault(at, Reading(*at))
            if isinstance(item, _Named):
                for module, name, value in item.values:
                    reading.numbers[self._key(Series(item.phase, name, module))] = value
            else:
                self._read(item, reading)
        if readings:
            self._sink.write(list(readings.values()))

    def _read(self, item: _Tensors, reading: Reading) -> None:
        """Statistics and histograms of the rows."""
        places = {site: i for i, site in enumerate(dict.fromkeys(item.sites))}
        sketches = item.sketches
        if len(places) < len(item.sites):  # a site that changed its dtype within a step
            groups = [places[site] for site in item.sites]
            sketches = merge_groups(sketches, np.array(groups, np.int64), len(places))
        for stat in self._request.stats:
            values = statistic(stat)(sketches).tolist()
            for site, value in zip(places, values, strict=True):
                reading.numbers[self._key(_series(item.phase, stat, site))] = value
        drawn = [(s, i) for s, i in places.items() if self._request.wants_histogram(s)]
        if not drawn:
            return
        chosen = take(sketches, np.array([i for _, i in drawn], np.int64))
        histograms = equal_histograms(chosen, self._request.bins)
        for (site, i), histogram in zip(drawn, histograms, strict=True):
            key = self._key(_series(item.phase, HISTOGRAM, site))
            reading.sketches[key] = row(sketches, i)
            reading.histograms[key] = histogram

    def _key(self, series: Series) -> str:
        found = self._keys.get(series)
        if found is None:
            found = self._sink.key(series)
            if self._request.prefix:
                found = f"{self._request.prefix}/{found}"
            self._keys[series] = found
        return found


def _series(phase: str, name: str, site: Site) -> Series:
    return Series(phase, name, site.module, site.kind, site.slot, site.call)


class Feeds:
    """All sinks of a watch, as the drain sees them: one record sink that never waits.

    `tell` takes events for the run. `limit_s` bounds how long `close` waits.
    """

    name = "sinks"

    def __init__(
        self,
        sinks: Sequence[tuple[Sink, Request]],
        run: WatchedRun,
        tell: Callable[[Event], None],
    ) -> None:
        self.limit_s = float("inf")
        self._feeds = [Feed(sink, run, request) for sink, request in sinks]
        self._tell = tell

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        for feed in self._feeds:
            feed.declare(infos)

    def sketches(self, batch: SketchBatch) -> None:
        for feed in self._feeds:
            feed.sketches(batch)
            self._report(feed.news())

    def numbers(self, batch: NumberBatch) -> None:
        for feed in self._feeds:
            feed.numbers(batch)
            self._report(feed.news())

    def graph(self, part: GraphPart) -> None:
        for feed in self._feeds:
            feed.graph(part)

    def event(self, event: Event) -> None:
        """Events are for the run."""

    def close(self, reason: str) -> None:
        """Let every sink finish, all at once, and wait for the slowest for as long as it says."""
        for feed in self._feeds:
            feed.finish(reason)
        began_s = time.monotonic()
        for feed in self._feeds:
            wait_s = min(feed.timeout_s, self.limit_s) - (time.monotonic() - began_s)
            feed.ended.wait(wait_s)
            self._report(feed.last_news())

    def _report(self, news: Sequence[tuple[str, Event]]) -> None:
        for text, event in news:
            if text:
                say(text)
            self._tell(event)
