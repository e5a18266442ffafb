"""Specs of numbers over time."""

from __future__ import annotations

from dataclasses import dataclass

from sonde.views.specs.parts import (
    F32,
    F64,
    I32,
    U8,
    Aggregate,
    Bounds,
    Columns,
    Norm,
    NumberFormat,
    RangeMode,
    Scale,
    SiteRef,
)


@dataclass(frozen=True, slots=True)
class Line:
    """One series inside the arrays of `Lines`: entries `start` to `start + length`."""

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
    """Rows (sites in module order) by columns (steps) of one statistic or metric, whose name is
    `label` and whose numbers are shown as `format` says.

    `values` and `flags` are rows × columns, row by row. A cell of several steps or sites holds
    their aggregate; a cell in which anything was not finite has flag 2 whatever the aggregate.
    """

    title: str
    label: str
    format: NumberFormat
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
    values outside the edges. A column of several steps holds all their values.

    `density` is what is drawn: the share of a column's values per unit of value, exact zeros left
    out, so that a distribution has the same shape on every axis. `max_density` is the brightest
    colour (the largest density, unless only a few columns are that dense), `min_density` the
    smallest density that is not 0.
    """

    site: SiteRef
    scale: Scale
    columns: Columns
    edges: F64
    counts: F32
    density: F32
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
    max_density: float
    min_density: float
    first_nonfinite_step: int | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A statistic and its value; `is_main` ones are shown with every tensor."""

    name: str
    value: float | None
    label: str
    format: NumberFormat
    is_main: bool


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

    A box that has no site of the kind itself shows the largest of the sites inside it
    (`is_inside`). `row` is its line in `Tint.sparks`, -1 if it has none. `why` says why there is
    no value, where there is none.
    """

    id: str
    site: str | None
    value: float | None
    flag: int
    low: float | None
    median: float | None
    high: float | None
    sites: int
    is_inside: bool
    row: int
    why: str


@dataclass(frozen=True, slots=True)
class Tint:
    """One statistic at one step for all boxes of a level, and how it went.

    `sparks` is rows × columns; NaN where nothing was recorded, `spark_flags` as everywhere.
    """

    node: str
    label: str
    format: NumberFormat
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
class LayerRow:
    """A tensor in the table of layers. `change` is log2 of its rms, last over first quarter."""

    site: SiteRef
    node: str | None
    rms: float | None
    max_abs: float | None
    change: float | None
    zeros: float | None
    first_nonfinite_step: int | None
    underflow: float | None
    overflow: float | None


@dataclass(frozen=True, slots=True)
class LayerTable:
    """All tensors of a kind at a step, in module order; shares of the non-zero values that would
    be lost in the number format `format`."""

    kind: str
    step: int
    format: str
    rows: tuple[LayerRow, ...]
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
    label: str
    format: NumberFormat
    first_step: int | None
    last_step: int | None
    rows: tuple[Mover, ...]
    nonfinite_sites: int
    sites: int
    notes: tuple[str, ...]
