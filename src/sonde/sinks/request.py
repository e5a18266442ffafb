"""A request: which series a sink wants, checked when watching begins, and which of them it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.capture.plan import kinds_of, matcher
from sonde.record import FINAL, Kind, RecordSink, Site, SiteInfo
from sonde.sinks.sink import DEFAULTS, Patterns, Sink, SinkOptions
from sonde.sinks.trackers import by_name
from sonde.sketch import needs_bins, statistic

Matches = Callable[[str], bool]

_SELECTING: Final = {"stats", "histograms", "kinds", "include", "exclude", "max_series"}
"""Options that select tensors."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a sink wants. `of` raises a `SondeError` if its options make no sense."""

    sink: str
    stats: tuple[str, ...]
    kinds: frozenset[Kind]
    include: Matches
    exclude: Matches
    histograms: Matches
    scalars: Matches
    metrics: Matches
    phases: Matches
    max_series: int
    bins: int
    prefix: str
    batch_s: float
    timeout_s: float
    has_histograms: bool
    is_default: bool

    @classmethod
    def of(cls, sink: Sink) -> Request:
        given = _given(sink)
        asked: SinkOptions = {**DEFAULTS, **given}
        name = asked.get("name") or type(sink).__name__
        stats = [asked["stats"]] if isinstance(asked["stats"], str) else list(asked["stats"])
        try:
            if type(sink).write is Sink.write:
                raise SondeError("its class has no method `write`.")
            for stat in stats:
                statistic(stat)
            return cls(
                sink=name,
                stats=tuple(dict.fromkeys(stats)),
                kinds=kinds_of(asked["kinds"]) if asked["kinds"] else frozenset(),
                include=_matches(asked["include"], "include"),
                exclude=_matches(asked["exclude"], "exclude"),
                histograms=_matches(asked["histograms"], "histograms"),
                scalars=_matches(asked["scalars"], "scalars"),
                metrics=_matches(asked["metrics"], "metrics"),
                phases=_matches(asked["phases"], "phases"),
                max_series=_count(asked["max_series"], "max_series"),
                bins=_count(asked["bins"], "bins"),
                prefix=asked["prefix"],
                batch_s=float(asked["batch_s"]),
                timeout_s=float(asked["timeout_s"]),
                has_histograms=bool(asked["histograms"]),
                is_default=not _SELECTING & given.keys(),
            )
        except (SondeError, ValueError, TypeError) as error:
            raise SondeError(f"The sink `{name}` cannot be used: {error}") from error

    @property
    def needs_bins(self) -> bool:
        """Whether any of it is read from bins."""
        return self.has_histograms or any(needs_bins(stat) for stat in self.stats)

    def wants(self, site: Site) -> bool:
        """Return whether a tensor is selected."""
        if site.kind not in self.kinds or site.stage != FINAL:
            return False
        return _either(self.include, site) and not _either(self.exclude, site)

    def wants_histogram(self, site: Site) -> bool:
        """Return whether the histogram of a selected tensor is wanted."""
        return self.has_histograms and _either(self.histograms, site)

    def series_at(self, site: Site) -> int:
        """How many series a selected tensor has."""
        return len(self.stats) + self.wants_histogram(site)


def check_sinks(
    sinks: Iterable[Sink | RecordSink | str],
) -> tuple[list[tuple[Sink, Request]], list[RecordSink]]:
    """Sinks with what they want, and those that take records as they are.

    Raises:
        SondeError: If one of them is no sink, is given twice, or wants what there is not.
        ImportError: If the package of a tracker is not installed.
    """
    named: list[tuple[Sink, Request]] = []
    others: list[RecordSink] = []
    several = [sinks] if isinstance(sinks, str) else sinks
    for given in several:
        sink = by_name(given) if isinstance(given, str) else given
        if isinstance(sink, Sink):
            if any(sink is other for other, _ in named):
                raise SondeError(f"The sink `{type(sink).__name__}` is given twice.")
            named.append((sink, Request.of(sink)))
        elif isinstance(sink, type) or not hasattr(sink, "sketches"):
            what = f"the class {sink.__name__}" if isinstance(sink, type) else repr(sink)
            raise SondeError(f"`sinks` takes instances of sonde.Sink, got {what}.")
        else:
            others.append(sink)
    return named, others


class Choice:
    """The tensors whose series are sent: those that are asked for, as far as there is room.

    Tensors are chosen when they are first seen, and stay chosen.
    """

    def __init__(self, request: Request) -> None:
        self.asked = self.kept = 0
        self._request = request
        self._sites: list[Site | None] = []
        self._is_chosen: NDArray[np.bool_] = np.empty(0, np.bool_)
        self._decided: dict[Site, bool] = {}
        self._new: list[Site] = []

    def declare(self, infos: Sequence[SiteInfo]) -> None:
        """Take note of sites; their ids are used by the batches that follow."""
        size = 1 + max((info.id for info in infos), default=-1)
        self._sites += [None] * (size - len(self._sites))
        for info in infos:
            self._sites[info.id] = info.site
            if info.site not in self._decided:
                self._decided[info.site] = False
                self._new.append(info.site)
        self._new = [site for site in self._new if self._request.wants(site)]

    def rows(self, ids: NDArray[np.int32]) -> NDArray[np.int64]:
        """The rows of a batch that are sent."""
        if self._new or len(self._is_chosen) < len(self._sites):
            self._decide()
        return np.flatnonzero(self._is_chosen[ids])

    def sites(self, ids: NDArray[np.int32]) -> list[Site]:
        """The sites of chosen ids."""
        return [site for i in ids if (site := self._sites[i]) is not None]

    def _decide(self) -> None:
        for site in _shallow_first(self._new):
            n = self._request.series_at(site)
            self.asked += n
            if self.kept + n <= self._request.max_series:
                self.kept += n
                self._decided[site] = True
        self._new = []
        chosen = [site is not None and self._decided[site] for site in self._sites]
        self._is_chosen = np.array(chosen, np.bool_)


class NumberChoice:
    """The scalars and metrics that are sent, in the order in which they come."""

    def __init__(self, request: Request) -> None:
        self.asked = self.kept = 0
        self._request = request
        self._decided: dict[tuple[str | None, str], bool] = {}

    def __contains__(self, number: tuple[str | None, str]) -> bool:
        """Whether the number of that module (None: a scalar) and name is sent."""
        found = self._decided.get(number)
        if found is None:
            found = self._decided[number] = self._decide(*number)
        return found

    def _decide(self, module: str | None, name: str) -> bool:
        wanted = self._request.scalars if module is None else self._request.metrics
        if not wanted(name):
            return False
        if module is not None and (
            not self._request.include(module) or self._request.exclude(module)
        ):
            return False
        self.asked += 1
        if self.kept == self._request.max_series:
            return False
        self.kept += 1
        return True


def _given(sink: Sink) -> SinkOptions:
    """The options of a sink: its own, then those of its class and of the classes above."""
    found: SinkOptions = {}
    for kind in reversed(type(sink).__mro__):
        own: SinkOptions = vars(kind).get("defaults", {})
        found = {**found, **own}
    given: SinkOptions = vars(sink).get("options", {})  # unless `__init__` was not called
    return {**found, **given}


def _shallow_first(sites: Iterable[Site]) -> list[Site]:
    """Sites of shallow modules first, kinds in turn."""
    by_kind: dict[Kind, list[Site]] = {}
    for site in sites:
        by_kind.setdefault(site.kind, []).append(site)
    ranked = [
        (rank, site)
        for several in by_kind.values()
        for rank, site in enumerate(sorted(several, key=lambda s: (_depth(s.module), s.call)))
    ]
    return [site for _, site in sorted(ranked, key=lambda found: found[0])]


def _depth(module: str) -> int:
    return module.count(".") + 1 if module else 0


def _either(matches: Matches, site: Site) -> bool:
    return matches(site.module) or matches(site.path)


def _matches(patterns: Patterns, argument: str) -> Matches:
    several = [patterns] if isinstance(patterns, str) else list(patterns)
    if "*" in several:
        return lambda _name: True
    matchers = [matcher(pattern, argument) for pattern in several]
    return lambda name: any(matches(name) for matches in matchers)


def _count(given: object, argument: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise SondeError(f"`{argument}` must be an int of 1 or more, got {given!r}.")
    return given
