"""Specs: what views answer. Plain frozen data, ready to draw, to send or to keep in a report.

A spec holds numbers, limits, labels and notes, and nothing of a framework, a protocol or a screen.
Arrays are numpy; `sonde.views.envelope` turns a spec into bytes and `sonde.views.typescript` writes
the same shapes for the page. Ids (`sonde.views.ids`) are opaque to whoever receives them.

Words used throughout:

* A *column* is a stretch of steps: all steps in `[k * stride, (k + 1) * stride)`, where `stride`
  is a power of two. Only columns in which something was recorded are there. Because they are
  aligned, a column never moves while a run grows; at times the stride doubles.
* A *flag* says what a cell holds: 0 nothing was recorded, 1 a number, 2 something not finite.
* `null` in place of a number: there is nothing to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

EMPTY: Final = 0
NUMBER: Final = 1
NONFINITE: Final = 2

RunStatus = Literal["live", "finished", "failed", "crashed", "unknown"]
Scale = Literal["linear", "log", "asinh", "exponent"]
Aggregate = Literal["max_abs", "max", "min", "mean", "last"]
Norm = Literal["none", "start", "z"]
NodeKind = Literal["module", "input", "output", "attach"]
Flow = Literal["none", "chain", "parallel", "mixed"]
NoticeLevel = Literal["info", "warning", "error"]
RangeMode = Literal["robust", "all", "fixed"]


# -- parts that several specs share ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunState:
    """How far a run has come. `version` changes whenever any answer about the run may change."""

    id: str
    status: RunStatus
    last_step: int | None
    version: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The x axis: one entry per column that holds anything, rising.

    `first` and `last` are the first and the last recorded step in the column, `steps` is how many.
    If `from_step` is set, this is a delta: drop all columns whose `first` is at least `from_step`
    and append these. Send `cursor` back as `after` to ask for what came since.
    """

    stride: int
    first: F64
    last: F64
    steps: I32
    from_step: int | None
    cursor: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits for a colour or an axis: robust ones to draw with, the true extremes, and which share.

    `low_share` and `high_share` are the shares of finite values below `low` and above `high`.
    `least_positive` is where a logarithmic axis may begin.
    """

    low: float | None
    high: float | None
    min: float | None
    max: float | None
    least_positive: float | None
    low_share: float
    high_share: float


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a tooltip or of a page about a run. Both are text to show, never markup."""

    label: str
    value: str


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor that goes into or comes out of a call. A dimension that varied is -1."""

    slot: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SiteRef:
    """A site: what can be drawn over time. `label` is short, `name` is whole and unique."""

    id: str
    name: str
    label: str
    module: str
    kind: str
    call: int
    slot: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instance:
    """One of the repeated things behind a `×N`: `node` for a level, `module` for a panel."""

    node: str | None
    module: str
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no answer: `code` for programs, `message` for people."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The body of every answer with a status of 400 or more."""

    version: str
    error: Problem


# -- runs -----------------------------------------------------------------------------------------


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
    """A run in the list, as far as it can be told without opening a segment."""

    id: str
    name: str
    status: RunStatus
    version: str
    created_ms: float
    last_seen_ms: float | None
    last_step: int | None
    records: int
    dropped: int
    ranks: int
    size_bytes: int
    model: str | None
    problem: str | None


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
class RunHeader:
    """All that a page needs to know of a run before it draws anything.

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
    records: int
    size_bytes: int
    phases: tuple[str, ...]
    ranks: tuple[int, ...]
    kinds: tuple[KindCount, ...]
    statistics: tuple[str, ...]
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


@dataclass(frozen=True, slots=True)
class State:
    """How far runs have come, for polling. `runs` is empty when nothing changed since `token`."""

    token: str
    list_version: str
    changed: bool
    runs: tuple[RunState, ...]


# -- structure ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A module in the tree, or `count` repeated ones of which the first stands for all.

    `parent` is an index into the list, -1 at the top. `node` is what to open in the graph.
    """

    module: str
    node: str | None
    parent: int
    depth: int
    label: str
    path: str
    type: str
    count: int
    instances: tuple[Instance, ...]
    children: int
    parameters: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """Modules in order, depth first, with repeats folded. `left_out` nodes were too many."""

    nodes: tuple[TreeNode, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Crumb:
    """A step of the way from the model to the level shown. `instances` if it can be stepped."""

    node: str
    module: str
    label: str
    type: str
    instances: tuple[Instance, ...]


@dataclass(frozen=True, slots=True)
class LevelNode:
    """A box of the graph. With `count` above 1 it stands for the repeated `instances`.

    `id` is unique in the level. `node` is what to open (`can_open`) and to pin; `group` is what to
    name in `unfold` to see the instances one by one. `passes` is in how many recorded passes it
    was seen, out of `Level.passes`.
    """

    id: str
    kind: NodeKind
    node: str
    module: str
    label: str
    path: str
    type: str
    call: int
    calls: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    facts: tuple[Fact, ...]
    parameters: int
    can_open: bool
    count: int
    instances: tuple[Instance, ...]
    group: str | None
    flow: Flow
    kinds: tuple[str, ...]
    passes: int


@dataclass(frozen=True, slots=True)
class LevelEdge:
    """Data flowed from `source` to `target` in `count` recorded passes. `bytes` of one pass."""

    source: str
    target: str
    count: int
    label: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class GraphLevel:
    """The inside of one call of a module. `crumbs` lead to it, the last one is the level itself."""

    node: str
    module: str
    path: str
    type: str
    crumbs: tuple[Crumb, ...]
    nodes: tuple[LevelNode, ...]
    edges: tuple[LevelEdge, ...]
    passes: int
    has_flow: bool
    note: str
    left_out: int


@dataclass(frozen=True, slots=True)
class PanelSection:
    """Sites of one kind of a pinned module, in order of call and slot."""

    kind: str
    title: str
    sites: tuple[SiteRef, ...]


@dataclass(frozen=True, slots=True)
class MissingKind:
    """A kind that was not recorded here, and the code that records it."""

    kind: str
    title: str
    how: str


@dataclass(frozen=True, slots=True)
class Panel:
    """What a pinned module, input, output or attached tensor has to show."""

    node: str | None
    module: str
    parent: str | None
    label: str
    path: str
    type: str
    call: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    facts: tuple[Fact, ...]
    parameters: int
    sections: tuple[PanelSection, ...]
    metrics: tuple[str, ...]
    missing: tuple[MissingKind, ...]


@dataclass(frozen=True, slots=True)
class Hit:
    """A module that was searched for."""

    module: str
    node: str | None
    path: str
    type: str
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hits:
    """What a search found, best first. `left_out` more would match."""

    hits: tuple[Hit, ...]
    left_out: int


# -- numbers over time ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One series inside of the arrays of `Lines`: entries `start` to `start + length`."""

    name: str
    phase: str
    module: str | None
    label: str
    start: int
    length: int
    last: float | None
    last_step: int | None


@dataclass(frozen=True, slots=True)
class Lines:
    """Series of numbers, each in buckets with their lowest, highest and last value.

    The arrays are the buckets of all lines one after the other. `low`, `high`, `mean` and `last`
    are over finite values (`last`: NaN or infinite if the last number was); `flags` is 2 where any
    number in the bucket was not finite. `from_step` and `cursor` as in `Columns`.
    """

    lines: tuple[Line, ...]
    stride: int
    first: F64
    until: F64
    low: F64
    high: F64
    mean: F64
    last: F64
    count: I32
    flags: U8
    limits: Bounds
    from_step: int | None
    cursor: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A row of a heatmap: a site, or `count` sites that are shown as one.

    `site` is null for a metric and for a row of several. `node` leads into the graph.
    """

    site: str | None
    module: str
    node: str | None
    label: str
    path: str
    slot: str
    call: int
    group: int
    count: int


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Neighbouring rows with a common beginning of their paths."""

    label: str
    path: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Heat:
    """Rows (sites in module order) by columns (steps) of one statistic or metric.

    `values` and `flags` are rows × columns, row by row. A cell of several steps or sites holds
    their aggregate; a cell in which anything was not finite has flag 2 whatever the aggregate.
    """

    title: str
    kind: str | None
    stat: str | None
    metric: str | None
    aggregate: Aggregate
    norm: Norm
    columns: Columns
    rows: tuple[HeatRow, ...]
    groups: tuple[RowGroup, ...]
    values: F32
    flags: U8
    limits: Bounds
    is_signed: bool
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kymograph:
    """How the values of one site are spread, over time. Exact: from the bins of the sketches.

    `counts` is columns × cells, column by column; cell `i` counts the finite, non-zero-width share
    of values in `[edges[i], edges[i + 1])`. With scale `log` and `exponent` the edges are
    magnitudes and both signs count together, without zeros. `below` and `above` are the finite
    values outside of the edges. A column of several steps holds all their values.
    """

    site: SiteRef
    scale: Scale
    columns: Columns
    edges: F64
    counts: F32
    below: F32
    above: F32
    zeros: F64
    nans: F64
    pos_infs: F64
    neg_infs: F64
    total: F64
    p1: F32
    p50: F32
    p99: F32
    low: F32
    high: F32
    mean: F32
    rms: F32
    limits: Bounds
    range: RangeMode
    has_zero: bool
    max_share: float
    first_nonfinite_step: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A statistic and its value."""

    name: str
    value: float | None


@dataclass(frozen=True, slots=True)
class FormatLoss:
    """What a number format would do to the values: shares between 0 and 1, and its limits.

    The exponents are the columns of the exponent histogram in which the limits lie.
    """

    name: str
    title: str
    underflow: float | None
    subnormal: float | None
    overflow: float | None
    largest: float
    top_exponent: int
    normal_exponent: int
    smallest_exponent: int


@dataclass(frozen=True, slots=True)
class CrossSection:
    """One site at one step: its histogram, its exponents, its statistics.

    `step` is the recorded step that is shown: the last one at or before the step asked for, else
    the first one after it. `previous` and `next` are its recorded neighbours.
    """

    site: SiteRef
    asked: int | None
    step: int
    previous: int | None
    next: int | None
    scale: Scale
    edges: F64
    counts: F64
    below: float
    above: float
    exponents: I32
    exponent_counts: F64
    zeros: float
    nans: float
    pos_infs: float
    neg_infs: float
    total: float
    statistics: tuple[Named, ...]
    formats: tuple[FormatLoss, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeTint:
    """The value of one box. Of a folded box: of its first instance, and the spread over all.

    `row` is its line in `Tint.sparks`, -1 if it has none.
    """

    id: str
    site: str | None
    value: float | None
    flag: int
    low: float | None
    median: float | None
    high: float | None
    sites: int
    row: int


@dataclass(frozen=True, slots=True)
class Tint:
    """One statistic at one step for all boxes of a level, and how it went.

    `sparks` is rows × columns; NaN where nothing was recorded, `spark_flags` as everywhere.
    """

    node: str
    kind: str | None
    stat: str | None
    metric: str | None
    step: int | None
    nodes: tuple[NodeTint, ...]
    columns: Columns
    sparks: F32
    spark_flags: U8
    limits: Bounds
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mover:
    """A site that moved. `change` is log2(after / before) of the statistic's magnitude.

    `before` and `after` are medians over the first and the last quarter of the window.
    """

    site: SiteRef
    node: str | None
    before: float | None
    after: float | None
    change: float | None
    nonfinite_steps: int
    first_nonfinite_step: int | None


@dataclass(frozen=True, slots=True)
class Movers:
    """Sites with values that are not finite, earliest first; then those that moved most."""

    kind: str | None
    stat: str
    first_step: int | None
    last_step: int | None
    rows: tuple[Mover, ...]
    nonfinite_sites: int
    sites: int
    notes: tuple[str, ...]
