"""The shared words of Sonde: what a record is, before one is measured, kept or drawn.

Capture makes these values, sinks take them; neither knows the other. Nothing here computes, and
nothing here imports another part of Sonde.

A site is declared once (`SiteInfo`, under a small integer id) and after that named by its id, so a
step with a thousand sketches travels as a handful of arrays and not as a thousand objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Kind = Literal[
    "input",
    "output",
    "input_grad",
    "output_grad",
    "param",
    "param_grad",
    "update",
    "optim",
    "attach",
    "attach_grad",
    "local",
]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

PARAMETER_KINDS: Final[frozenset[Kind]] = frozenset({"param", "param_grad", "update", "optim"})
"""Kinds whose site is a parameter: `module` is its owner, `slot` begins with its own name."""

FINAL: Final = "final"

STAGES: Final[tuple[str, ...]] = (FINAL, "before_clip")
"""Stages of a tensor in a step: as it was used, and as it was before clipping. Questions are about
the last stage unless another one is asked for."""

COUNTS: Final = ("count", "zeros", "nans", "pos_infs", "neg_infs", "subnormals")
SUMS: Final = ("sum", "sum_abs", "sum_sq", "sum_4")
EXTREMA: Final = ("min", "max", "min_abs")
N_BINS: Final = 2048


@dataclass(frozen=True, slots=True)
class Site:
    """One place where tensors appear: which module, which call of it, what kind of tensor, which
    one.

    `module` is the canonical dotted path, `""` for the root. `slot` is the path into a nested value
    (`0`, `1.key`, `logits`), a parameter's own name (`weight`), a parameter's name and state
    (`weight/exp_avg`), or the name given to an attached tensor. The slot of an earlier stage of a
    gradient ends in its name (`weight/before_clip`).
    """

    module: str
    kind: Kind
    call: int = 0
    slot: str = "0"

    @property
    def name(self) -> str:
        """Printable and unique: `h.3.attn/output/0`, `h.3.attn#1/output/0`; `.` is the root."""
        call = f"#{self.call}" if self.call else ""
        return f"{self.module or '.'}{call}/{self.kind}/{self.slot}"

    @property
    def path(self) -> str:
        """What patterns match: a parameter's full name (`fc.weight`), else the module's path."""
        if self.kind not in PARAMETER_KINDS:
            return self.module
        return f"{self.module}.{self.slot}" if self.module else self.slot

    @property
    def stage(self) -> str:
        """One of `STAGES`: `final`, or `before_clip` for a gradient before it was clipped."""
        if self.kind == "param_grad":
            for stage in STAGES[1:]:
                if self.slot.endswith(f"/{stage}"):
                    return stage
        return FINAL


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """A site as it was met: the declaration behind an integer id. A new dtype makes a new id.

    `requires_grad` is that of a parameter, None for other tensors. `dropout_p` is the probability
    of a dropout module, None for other modules. `shape` is that of the whole tensor, however many
    ranks hold it. Ranks that hold the same values have the same `part` of it; None: no other rank
    does. `parts` is how many parts with values make the whole, where that is known.
    """

    id: int
    site: Site
    dtype: str
    shape: tuple[int, ...]
    module_type: str
    requires_grad: bool | None = None
    dropout_p: float | None = None
    part: int | None = None
    parts: int | None = None


@dataclass(frozen=True, slots=True)
class Sketches:
    """Many sketches in columns. Row `i` holds bins `bin_ids[offsets[i]:offsets[i + 1]]`, ascending.

    `counts`, `sums` and `extrema` have one column per name in `COUNTS`, `SUMS` and `EXTREMA`.
    """

    counts: NDArray[np.int64]
    sums: NDArray[np.float64]
    extrema: NDArray[np.float64]
    offsets: NDArray[np.int64]
    bin_ids: NDArray[np.int16]
    bin_counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.counts)


@dataclass(frozen=True, slots=True)
class SketchBatch:
    """All sketches of one step and phase. `ids[i]` names the site of row `i`."""

    step: int
    phase: str
    ids: NDArray[np.int32]
    sketches: Sketches


@dataclass(frozen=True, slots=True)
class NumberBatch:
    """Numbers of one step and phase. `modules[i]` is None for a scalar, a path for a metric."""

    step: int
    phase: str
    names: Sequence[str]
    modules: Sequence[str | None]
    values: NDArray[np.float64]


Level = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to the recording itself: an error, a drop, a skip, a change of
    structure.

    `code` is a short stable word (`skipped`, `dropped`, `metric_failed`), `where` names what it
    concerns. `count` is how often since the last event of the same code and place.
    """

    code: str
    message: str
    where: str = ""
    step: int = -1
    level: Level = "info"
    count: int = 1
    data: dict[str, str | int | float | bool | None] = field(default_factory=dict)


NodeKind = Literal["module", "input", "output", "attach"]


@dataclass(frozen=True, slots=True)
class CallPort:
    """A tensor that goes into or comes out of a call. A dimension that varied is -1."""

    slot: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GraphModule:
    """A module of the model, whether it was called or not. `extra` is what it says of itself."""

    path: str
    type: str
    extra: str = ""
    parameters: int = 0


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A call of a module; or a tensor that entered, left or was named inside a call.

    `id` is `h.3.attn`, `h.3.attn#1` for the second call of a pass, `.` for the model; of tensors
    it is the name of their site (`./input/0`, `h.3/attach/scores`). `parent` is the id of the call
    that it happened in, "" outside all. `count` is in how many recorded passes it was seen.
    """

    id: str
    module: str
    call: int
    kind: NodeKind
    parent: str
    inputs: tuple[CallPort, ...] = ()
    outputs: tuple[CallPort, ...] = ()
    count: int = 0


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """Data flowed from one node to another inside the same call, in `count` recorded passes."""

    source: str
    target: str
    count: int = 0


@dataclass(frozen=True, slots=True)
class GraphPart:
    """What was newly seen of the graph of a model. Parts add up: counts and passes add,
    dimensions that differ become -1, the last note of each kind counts.

    `notes` are sentences about what the graph cannot show, by a short stable word.
    """

    step: int
    modules: Sequence[GraphModule] = ()
    nodes: Sequence[GraphNode] = ()
    edges: Sequence[GraphEdge] = ()
    passes: int = 0
    notes: Sequence[tuple[str, str]] = ()


class RecordSink(Protocol):
    """Where records go. Called from one background thread; may block, may raise, may not matter.

    A sink that also has a method `graph(part: GraphPart)` is told the graph of the model.

    Whoever calls a sink catches what it raises and switches it off: no sink can stop a training.
    """

    name: str

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """Declare sites; their ids are used by the batches that follow.

        A site is declared again when something about it has changed.
        """

    def sketches(self, batch: SketchBatch) -> None:
        """Take the sketches of a step."""

    def numbers(self, batch: NumberBatch) -> None:
        """Take scalars and metrics of a step."""

    def event(self, event: Event) -> None:
        """Take an event."""

    def close(self, reason: str) -> None:
        """Finish: flush what is held and let go of every resource. Called once."""
