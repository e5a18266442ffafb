"""The graph of a run, out of its rows. A run may be a stranger's: whatever is odd is left out."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final, get_args

import pyarrow as pa

from sonde.graph.model import Graph
from sonde.record import CallPort, GraphEdge, GraphModule, GraphNode, GraphPart, NodeKind

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
    ports = lru_cache(maxsize=4096)(_ports)  # thousands of calls have the same
    for what, name, target, module, call, kind, parent, cls, inputs, outputs, text, count in zip(
        *(column.to_pylist() for column in rows.columns), strict=True
    ):
        n = int(count or 0)
        match what:
            case "module":
                modules.append(GraphModule(_text(name), _text(cls), _text(text), max(n, 0)))
            case "node" if kind in _KINDS:
                place = (_text(name), _text(module), int(call or 0), kind, _text(parent))
                nodes.append(GraphNode(*place, ports(inputs), ports(outputs), n))
            case "edge":
                edges.append(GraphEdge(_text(name), _text(target), n))
            case "pass":
                passes += max(n, 0)
            case "note":
                notes.append((_text(name), _text(text)))
    return Graph.of([GraphPart(0, modules, nodes, edges, passes, notes)])


def _ports(text: str | None) -> tuple[CallPort, ...]:
    try:
        found = json.loads(text or "[]")[:_MAX_PORTS]
        return tuple(
            CallPort(str(slot), str(dtype), tuple(int(n) for n in shape[:_MAX_DIMENSIONS]))
            for slot, dtype, shape in found
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""
