"""A graph in few words, for tests."""

from __future__ import annotations

from sonde.graph.model import Graph


def flow(graph: Graph, level: str = "") -> set[str]:
    """The edges of a level as text: `a -> b`."""
    return {f"{e.source} -> {e.target}" for e in graph.level(level).edges}


def calls(graph: Graph, level: str | None = None) -> list[str]:
    """The calls of modules, of one level or of all, in the order in which they were seen."""
    nodes = graph.nodes if level is None else graph.level(level).nodes
    return [n.id for n in nodes if n.kind == "module"]
