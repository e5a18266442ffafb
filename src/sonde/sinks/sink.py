"""A sink: a further destination for what a watch records, such as a tracker or a file.

A sink says which statistics of which tensors it wants, and gets them by name:

    class Printed(sonde.Sink):
        def write(self, readings):
            for reading in readings:
                print(reading.step, reading.numbers)

    sonde.watch(model, optimizer, sinks=[Printed(stats="rms", include="h.0*")])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final, TypedDict, Unpack

from sonde.metrics import names
from sonde.record import GraphPart, Kind, Site
from sonde.sketch import Histogram, Sketch

HISTOGRAM = "histogram"
"""The name of a series of histograms, where a statistic's name stands."""

Patterns = str | Sequence[str]
"""Globs, or regular expressions after `re:`; one or several."""


@dataclass(frozen=True, slots=True)
class Series:
    """Whose numbers they are: a statistic of a tensor, a metric of a module, or a scalar.

    `name` is the statistic, the metric or the scalar. `module` is None for a scalar, `kind` is None
    for a scalar and a metric.
    """

    phase: str
    name: str
    module: str | None = None
    kind: Kind | None = None
    slot: str = "0"
    call: int = 0

    @property
    def path(self) -> str:
        """The full name of a parameter, else the module's path, `""` for the model and scalars."""
        if self.module is None or self.kind is None:
            return self.module or ""
        return Site(self.module, self.kind, self.call, self.slot).path

    @property
    def key(self) -> str:
        """`activation/h.0.mlp/rms`, `gradient/h.0.mlp.weight/rms`, `metric/h.0.attn/entropy`,
        `loss`; behind the phase if that is not `train`; a histogram's without a statistic."""
        key = self._key
        return key if self.phase == "train" else f"{self.phase}/{key}"

    @property
    def _key(self) -> str:
        if self.module is None:
            return self.name
        if self.kind is None:
            return f"metric/{self.module or names.ROOT}/{self.name}"
        site = Site(self.module, self.kind, self.call, self.slot)
        return names.of_statistic(site, self.name).removesuffix(f"/{HISTOGRAM}")


@dataclass(slots=True)
class Reading:
    """Numbers and histograms of one step and phase, each by the key of its series.

    A step may come in several readings: a loss that is logged after the update comes later than the
    statistics of that step. `sketches` has the same keys as `histograms`: what a histogram was read
    off, for other bins, exact sums and what a number format would lose.
    """

    step: int
    phase: str
    numbers: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    sketches: dict[str, Sketch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """The run that is being recorded: its directory, the rank, and the user's config."""

    path: Path
    rank: int
    config: Mapping[str, object]

    @property
    def name(self) -> str:
        return self.path.name


class SinkOptions(TypedDict, total=False):
    """What a sink wants, and how it is fed. Given to any sink: `Printed(stats=["p99"])`."""

    name: str
    """What messages call it; the name of the class by default."""

    stats: Patterns
    """Statistics of each selected tensor: any of `run.stats`, quantiles included."""

    histograms: Patterns
    """Paths of modules and parameters whose histograms are wanted, of those that are selected: none
    by default, `"*"` for all."""

    bins: int
    """How many bins a histogram has, between the smallest and the largest value."""

    kinds: Patterns
    """Kinds or presets of tensors, as in `watch(log=...)`."""

    include: Patterns
    """Paths of modules and parameters that are selected."""

    exclude: Patterns
    """Paths that are left out."""

    scalars: Patterns
    """Names of scalars: what `watch.log` records, and what comes by itself."""

    metrics: Patterns
    """Names of metrics."""

    phases: Patterns
    """Phases: by default all but `final`, the parameters at the end."""

    max_series: int
    """At most so many series of tensors, and so many of scalars and metrics. Of more tensors, those
    of shallow modules are kept, kinds in turn."""

    prefix: str
    """Goes in front of every key, with a `/`."""

    batch_s: float
    """Seconds for which readings are collected before they are written together."""

    timeout_s: float
    """How long closing the watch waits for this sink, at most; less at the end of a process."""


DEFAULTS: Final[SinkOptions] = {
    "stats": ("rms", "max_abs"),
    "histograms": (),
    "bins": 64,
    "kinds": ("output", "param", "param_grad"),
    "include": "*",
    "exclude": (),
    "scalars": "*",
    "metrics": "*",
    "phases": "re:^(?!final$)",
    "max_series": 300,
    "prefix": "",
    "batch_s": 1.0,
    "timeout_s": 5.0,
}


class Sink:
    """A destination for named numbers. Derive from it and implement `write`.

    All methods are called from one thread that belongs to this sink. A method that raises, hangs or
    is slow costs neither training nor other sinks anything: what cannot be delivered is dropped,
    counted, and reported once.

    `options` say what is wanted: see `SinkOptions`. A class sets its own in `defaults`.
    """

    defaults: ClassVar[SinkOptions] = {}
    options: SinkOptions

    def __init__(self, **options: Unpack[SinkOptions]) -> None:
        for name in options:
            if name not in SinkOptions.__annotations__:
                raise TypeError(f"{type(self).__name__} has no option `{name}`.")
        self.options = options

    def start(self, run: WatchedRun) -> None:
        """Prepare: called once, before anything else."""

    def write(self, readings: Sequence[Reading]) -> None:
        """Take readings, in the order in which they came. May block, may raise."""
        raise NotImplementedError

    def graph(self, part: GraphPart) -> None:
        """Take what was newly seen of the graph of the model. Parts add up: `Graph.of(parts)`."""

    def close(self, reason: str) -> None:
        """Finish: called once, after the last `write`. `reason` is how the run ended."""

    def key(self, series: Series) -> str:
        """The name of a series in readings. Asked once for each."""
        return series.key

    def note(self, text: str) -> None:
        """Report something to the user and in the run, once: a value or a key that is refused."""
        self.notes.append(text)

    @property
    def notes(self) -> deque[str]:
        """What was noted and not reported yet."""
        found: deque[str] = vars(self).setdefault("_notes", deque(maxlen=100))
        return found
