"""The graph of a run, out of its rows. A run may be a stranger's: whatever is odd is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, get_args

import pyarrow as pa

from sonde.graph.model import Graph
from sonde.record import GraphEdge, GraphModule, GraphNode, GraphPart, NodeKind, Port

ROWS: Final = """
    select what, id, target, module, call, kind, parent, type, inputs, outputs, text, count
    from graph order by rank, attempt, ordinal limit 2000000
"""

_KINDS: Final = frozenset(get_args(NodeKind))
_MAX_PORTS: Final = 256
_MAX_DIMENSIONS: Final = 32


def from_rows(rows: pa.Table) -> Graph:
    """The union of all rows that `ROWS` selects."""
    modules, nodes, edges, notes = [], [], [], []
    passes = 0
    for row in rows.to_pylist():
        count = int(row["count"] or 0)
        match row["what"]:
            case "module":
                found = GraphModule(
                    _text(row, "id"), _text(row, "type"), _text(row, "text"), max(count, 0)
                )
                modules.append(found)
            case "node" if row["kind"] in _KINDS:
                nodes.append(_node(row, count))
            case "edge":
                edges.append(GraphEdge(_text(row, "id"), _text(row, "target"), count))
            case "pass":
                passes += max(count, 0)
            case "note":
                notes.append((_text(row, "id"), _text(row, "text")))
    return Graph.of([GraphPart(0, modules, nodes, edges, passes, notes)])


def _node(row: Mapping[str, Any], count: int) -> GraphNode:
    return GraphNode(
        id=_text(row, "id"),
        module=_text(row, "module"),
        call=int(row["call"] or 0),
        kind=row["kind"],
        parent=_text(row, "parent"),
        inputs=_ports(row["inputs"]),
        outputs=_ports(row["outputs"]),
        count=count,
    )


def _ports(text: str | None) -> tuple[Port, ...]:
    try:
        found = json.loads(text or "[]")[:_MAX_PORTS]
        return tuple(
            Port(str(slot), str(dtype), tuple(int(n) for n in shape[:_MAX_DIMENSIONS]))
            for slot, dtype, shape in found
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _text(row: Mapping[str, Any], column: str) -> str:
    found = row[column]
    return found if isinstance(found, str) else ""
