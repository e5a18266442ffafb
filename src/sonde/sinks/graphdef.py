"""The graph of a model as TensorBoard draws one: named leaves, which it groups by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sonde.graph.model import Graph, Node

_FORBIDDEN: Final = re.compile(r"[^A-Za-z0-9_.\\/>-]")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A call that no other call was seen in, or a tensor; `Transformer/h.0/attn` is its name."""

    name: str
    op: str
    inputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def leaves(graph: Graph) -> Iterator[Leaf]:
    """All leaves. An edge between calls joins what is last in one and first in the other."""
    names = {node.id: "/".join(_scope(graph, node)) for node in graph.nodes}
    sources: dict[str, dict[str, None]] = {}
    for edge in graph.edges:
        for last in _ends(graph, edge.source, first=False):
            for first in _ends(graph, edge.target, first=True):
                sources.setdefault(first, {})[names[last]] = None
    for node in graph.nodes:
        if not graph.inside.get(node.id):
            shapes = tuple(port.shape for port in node.outputs)
            inputs = tuple(sources.get(node.id, ()))
            yield Leaf(names[node.id], node.type or node.kind, inputs, shapes)


def _scope(graph: Graph, node: Node) -> list[str]:
    """The name of each call around the node, outermost first, and its own."""
    above = graph.by_id.get(node.parent)
    scope = _scope(graph, above) if above is not None else []
    if node.kind == "module":
        own = node.module.removeprefix(f"{above.module}." if above and above.module else "")
        own = own or node.type or "model"
        own = f"{own}_call{node.call}" if node.call else own
    else:
        own = node.id.rpartition("/")[0].rpartition("/")[2] + "_" + node.id.rpartition("/")[2]
    return [*scope, _FORBIDDEN.sub("_", own).replace("/", "_")]


def _ends(graph: Graph, id: str, *, first: bool) -> list[str]:
    """The leaves in a call through which data enters it (`first`) or leaves it."""
    inside = graph.inside.get(id)
    if not inside:
        return [id]
    edges = graph.edges_inside.get(id, ())
    joined = {edge.target if first else edge.source for edge in edges}
    ends = [node for node in inside if node.id not in joined] or list(inside)
    ends = _linked(ends, edges_of={e.source for e in edges} | {e.target for e in edges})
    return [leaf for node in ends for leaf in _ends(graph, node.id, first=first)]


def _linked(nodes: list[Node], edges_of: set[str]) -> list[Node]:
    """Those that any edge touches, if there are any: others did not take part."""
    return [node for node in nodes if node.id in edges_of] or nodes
