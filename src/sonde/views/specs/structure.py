"""Specs about the structure of a model: tree, graph, panels."""

from __future__ import annotations

from dataclasses import dataclass

from sonde.views.specs.parts import Fact, Flow, Instance, NodeKind, Port, SiteRef


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
    """The inside one call of a module. `crumbs` lead to it, the last one is the level itself."""

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
    """Sites of one kind of a pinned module, in order of call and slot.

    `plain` are traced variables that never were a tensor: they have values, and nothing over time.
    """

    kind: str
    title: str
    sites: tuple[SiteRef, ...]
    plain: tuple[SiteRef, ...]


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
