"""One level of the graph: the contents of a call, with repeats folded; and what a pin can show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from sonde.graph.folding import Fold
from sonde.graph.model import ROOT, Node
from sonde.record import GraphEdge, GraphModule
from sonde.views import ids
from sonde.views.questions import LevelQuestion, TintQuestion
from sonde.views.runs.opened_run import (
    MAX_LABEL,
    MAX_PATH,
    OpenedRun,
    RunStructure,
    SiteEntry,
    facts_of,
    ports,
    shape_text,
    shown,
)
from sonde.views.specs import Crumb, GraphLevel, Instance, LevelEdge, LevelNode

_MAX_NODES: Final = 1000
_MAX_INSTANCES: Final = 1024
_BYTES: Final = {"float64": 8, "int64": 8, "complex64": 8, "float16": 2, "bfloat16": 2, "int16": 2}


def answer(subject: OpenedRun, question: LevelQuestion) -> GraphLevel:
    """The level of the call asked for."""
    structure = subject.structure
    graph = structure.graph
    node = subject.node(question.node)
    level = graph.level(node.id if node is not None else "")
    folds, edges, left_out = folded(subject, question)
    shapes = _port_texts([f.first for f in folds])
    path = node.module if node is not None else ""
    return GraphLevel(
        node=ids.of_name(node.id) if node is not None else ids.ROOT,
        module=ids.of_name(path),
        path=shown(path, MAX_PATH),
        type=shown(node.type if node is not None else "", MAX_LABEL),
        crumbs=_crumbs(structure, node),
        nodes=tuple(_level_node(structure, fold) for fold in folds),
        edges=tuple(_edge(e, shapes) for e in edges),
        passes=graph.passes,
        has_flow=bool(level.edges) or graph.has_flow,
        note=shown(graph.note, 2000),
        left_out=left_out,
    )


def folded(
    subject: OpenedRun, question: LevelQuestion | TintQuestion
) -> tuple[Sequence[Fold], Sequence[GraphEdge], int]:
    """The boxes and arrows of a level, and how many boxes were too many."""
    structure = subject.structure
    node = subject.node(question.node)
    level = structure.graph.level(node.id if node is not None else "")
    by_id = structure.nodes_by_id
    unfolded = [by_id[one].id if one in by_id else one for one in question.unfold]
    found = structure.folder.fold(
        level.nodes, level.edges, unfolded=unfolded if question.fold else ["*"]
    )
    kept = found.folds[:_MAX_NODES]
    known = {fold.id for fold in kept}
    edges = [e for e in found.edges if e.source in known and e.target in known]
    return kept, edges, len(found.folds) - len(kept)


def label_of(node: Node) -> str:
    """How a node is called in its level: `attn`, `h[3]`, `input 0`, with the call if it is not the
    first."""
    if node.kind != "module":
        slot = node.id.rpartition(f"/{node.kind}/")[2]
        return slot if node.kind == "attach" else f"{node.kind} {slot}"
    call = f" #{node.call}" if node.call else ""
    parts = node.module.split(".")
    if len(parts) > 1 and parts[-1].isdecimal():
        return f"{parts[-2]}[{parts[-1]}]{call}"
    return f"{parts[-1] or node.type or ids.ROOT_LABEL}{call}"


def site_of(structure: RunStructure, node: Node, kind: str | None) -> SiteEntry | None:
    """The site that a node is drawn with: the first of that kind, of the same call."""
    entries = structure.sites_of_module.get(node.module, ())
    if node.kind == "module":
        fitting = [e for e in entries if e.site.kind == kind]
        return next(
            (e for e in fitting if e.site.call == node.call), fitting[0] if fitting else None
        )
    own = {node.kind, f"{node.kind}_grad"}
    slot = node.id.rpartition(f"/{node.kind}/")[2]
    wanted = kind if kind in own else node.kind
    if kind is not None and kind.endswith("_grad"):
        wanted = f"{node.kind}_grad"
    return next(
        (
            e
            for e in entries
            if (e.site.kind, e.site.call, e.site.slot) == (wanted, node.call, slot)
        ),
        None,
    )


def _level_node(structure: RunStructure, fold: Fold) -> LevelNode:
    node = fold.first
    module = _module(structure, node.module)
    is_call = node.kind == "module"
    inner = structure.graph.inside.get(node.id, ())
    label = label_of(node)
    if len(fold.members) > 1:
        label = _group_label(fold)
    kinds = structure.kinds_of(node.module)
    if not is_call:
        own = (node.kind, f"{node.kind}_grad")
        kinds = tuple(k for k in kinds if k in own)
    return LevelNode(
        id=ids.of_name(node.id),
        kind=node.kind,  # type: ignore[arg-type]  # checked when the graph was read
        node=ids.of_name(node.id),
        module=ids.of_name(node.module),
        label=shown(label, MAX_LABEL),
        path=shown(node.module, MAX_PATH),
        type=shown(node.type if is_call else "", MAX_LABEL),
        call=node.call,
        calls=len(structure.graph.calls.get(node.module, ())),
        inputs=ports(node.inputs),
        outputs=ports(node.outputs),
        facts=facts_of(module.extra) if is_call else (),
        parameters=structure.parameters_below.get(node.module, 0) if is_call else 0,
        can_open=is_call and any(n.kind in {"module", "attach"} for n in inner),
        count=len(fold.members),
        instances=_instances(fold.members) if len(fold.members) > 1 else (),
        group=ids.of_name(node.id) if len(fold.members) > 1 else None,
        flow=fold.flow,
        kinds=kinds,
        passes=max(n.count for n in fold.members),
    )


def _group_label(fold: Fold) -> str:
    first, last = fold.members[0], fold.members[-1]
    if first.module == last.module:
        return label_of(first)
    left, right = first.module.split("."), last.module.split(".")
    i = next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
    stem = left[i - 1] if i else first.type
    rest = ".".join(left[i + 1 :])
    return f"{stem}[{left[i]}…{right[i]}]{'.' if rest else ''}{rest}"


def _instances(members: Sequence[Node]) -> tuple[Instance, ...]:
    return tuple(
        Instance(ids.of_name(n.id), ids.of_name(n.module), shown(label_of(n), MAX_LABEL))
        for n in members[:_MAX_INSTANCES]
    )


def _crumbs(structure: RunStructure, node: Node | None) -> tuple[Crumb, ...]:
    way: list[Node] = []
    at = node
    while at is not None:
        way.append(at)
        at = structure.graph.by_id.get(at.parent)
    crumbs = []
    for one in reversed(way):
        alike = structure.folder.run_of(one)
        label = label_of(one) if one.id != ROOT else (one.type or ids.ROOT_LABEL)
        crumbs.append(
            Crumb(
                node=ids.of_name(one.id),
                module=ids.of_name(one.module),
                label=shown(label, MAX_LABEL),
                type=shown(one.type, MAX_LABEL),
                instances=_instances(alike) if len(alike) > 1 else (),
            )
        )
    return tuple(crumbs) or (Crumb(ids.ROOT, ids.ROOT, ids.ROOT_LABEL, "", ()),)


def _edge(edge: GraphEdge, shapes: Mapping[str, tuple[str, int | None]]) -> LevelEdge:
    label, size = shapes.get(edge.source, ("", None))
    return LevelEdge(
        ids.of_name(edge.source), ids.of_name(edge.target), edge.count, shown(label, 100), size
    )


def _port_texts(nodes: Sequence[Node]) -> dict[str, tuple[str, int | None]]:
    """What leaves each node, as text and in bytes."""
    found = {}
    for node in nodes:
        out = node.outputs or node.inputs
        text = ", ".join(shape_text(p.shape) for p in out[:3]) + (", …" if len(out) > 3 else "")
        sizes = [
            math.prod(p.shape) * _BYTES.get(p.dtype, 4) for p in out if min(p.shape, default=0) >= 0
        ]
        found[node.id] = (text, sum(sizes) if out and len(sizes) == len(out) else None)
    return found


def _module(structure: RunStructure, path: str) -> GraphModule:
    at = structure.tree.index.get(path)
    return structure.tree.branches[at].module if at is not None else GraphModule(path, "")
