"""What several specs share: words, the x axis, limits, and how things are named."""

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
ScaleChoice = Literal["auto", "linear", "log", "asinh", "exponent"]
Aggregate = Literal["max_abs", "max", "min", "mean", "last"]
Norm = Literal["none", "start", "z"]
Measure = Literal["ratio", "distance"]
VerdictWord = Literal["identical", "different", "alike", "no verdict"]
NodeKind = Literal["module", "input", "output", "attach"]
Flow = Literal["none", "chain", "parallel", "mixed"]
NoticeLevel = Literal["info", "warning", "error"]
NumberFormat = Literal["number", "share", "count"]
RangeMode = Literal["robust", "all", "fixed"]


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
