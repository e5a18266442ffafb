"""Specs about runs as a whole, and the server."""

from __future__ import annotations

from dataclasses import dataclass

from sonde.views.specs.parts import (
    F64,
    U8,
    Fact,
    NoticeLevel,
    NumberFormat,
    RunState,
    RunStatus,
)


@dataclass(frozen=True, slots=True)
class Server:
    """What the server is. `page` is false when the page was not built into this installation."""

    version: str
    api: int
    folder: str
    page: bool
    started_ms: float
    how_to_record: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in the list, as far as it can be told without opening a segment.

    `settings` is what the user gave as `config=`, without `tags` and `note`, which stand apart.
    `stamp` changes whenever the run does. `last_step` is that of the last sign of life, which comes
    every few seconds.
    """

    id: str
    name: str
    status: RunStatus
    stamp: str
    created_ms: float
    last_seen_ms: float | None
    last_step: int | None
    records: int
    dropped: int
    ranks: int
    size_bytes: int
    model: str | None
    problem: str | None
    settings: tuple[Fact, ...]
    tags: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Runs:
    """All runs, newest first. When there are none, show `how_to_record` and `folder`."""

    folder: str
    runs: tuple[RunRow, ...]
    left_out: int
    how_to_record: str


@dataclass(frozen=True, slots=True)
class Spark:
    """A small line: the mean of each stretch of steps. `flags` as everywhere."""

    name: str | None
    phase: str | None
    x: F64
    y: F64
    flags: U8
    last: float | None


@dataclass(frozen=True, slots=True)
class KindCount:
    """A kind of site that the run has, and how many sites of it."""

    kind: str
    sites: int


@dataclass(frozen=True, slots=True)
class StatisticName:
    """A statistic that can be asked for: what people read, how its numbers are shown, and whether
    whole sketches are read for it."""

    name: str
    label: str
    format: NumberFormat
    needs_bins: bool


@dataclass(frozen=True, slots=True)
class NumberName:
    """A scalar or metric by name. `modules` is 0 for a scalar."""

    name: str
    phases: tuple[str, ...]
    modules: int
    numbers: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened to the recording: a skip, a warning, a loss, a damaged file."""

    level: NoticeLevel
    code: str
    where: str
    message: str
    step: int | None
    count: int


@dataclass(frozen=True, slots=True)
class StepNote:
    """A text that the user put at a step: `watch.log(note="warmup ends")`."""

    step: int
    text: str


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Another time axis: what stood for each step, rising. `values` are the last of a scalar, or
    for `time` the seconds since the first record."""

    name: str
    steps: F64
    values: F64


@dataclass(frozen=True, slots=True)
class StepRange:
    """Recorded steps `first`, `first + every`, ... up to `last`."""

    first: int
    last: int
    every: int


@dataclass(frozen=True, slots=True)
class RunHeader:
    """All that a page needs to know of a run before it draws anything.

    Of `known_steps` there is something, if only a scalar; `recorded_steps` have sketches, and
    `recorded` says which they are (empty where they follow no rule).
    `timeline` is the scalar to show as the reference signal. `kind` and `stat` are good first
    choices for the overview. `graph` says whether data flow was recorded; `graph_note` what to say
    about it.
    """

    name: str
    model: str | None
    status: RunStatus
    reason: str | None
    created_ms: float | None
    last_seen_ms: float | None
    first_step: int | None
    last_step: int | None
    recorded_steps: int
    recorded: tuple[StepRange, ...]
    known_steps: int
    records: int
    size_bytes: int
    phases: tuple[str, ...]
    ranks: tuple[int, ...]
    kinds: tuple[KindCount, ...]
    statistics: tuple[StatisticName, ...]
    scalars: tuple[NumberName, ...]
    metrics: tuple[NumberName, ...]
    timeline: str | None
    kind: str | None
    stat: str
    modules: int
    graph: bool
    graph_note: str
    facts: tuple[Fact, ...]
    notices: tuple[Notice, ...]
    step_notes: tuple[StepNote, ...]


@dataclass(frozen=True, slots=True)
class State:
    """How far runs have come, for polling. `runs` is empty when nothing changed since `token`."""

    token: str
    list_version: str
    changed: bool
    runs: tuple[RunState, ...]
