"""The graph as data: what was seen of a model over all recorded passes, one level at a time.

    graph = run.graph
    graph.nodes, graph.edges                    # everything
    level = graph.level("transformer")          # the calls in its first call
    level.nodes, level.edges

Nodes are calls of modules, and tensors that entered, left or were named inside a call. An edge
joins two nodes of the same level: data that the source made reached the target without passing
through another node of that level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sonde._errors import SondeError
from sonde.record import CallPort, GraphEdge, GraphModule, GraphNode, GraphPart

ROOT = "."
"""The id of the first call of the model."""


def node_id(module: str, call: int) -> str:
    """The id of a call."""
    return f"{module or ROOT}#{call}" if call else (module or ROOT)


def tree_nodes(paths: Iterable[str]) -> list[GraphNode]:
    """A node per module, each inside the next module above it: what is known without calls."""
    known = dict.fromkeys(("", *paths))
    nodes = []
    for path in known:
        above = path
        while above:
            above = above.rpartition(".")[0]
            if above in known:
                break
        parent = node_id(above, 0) if path else ""
        nodes.append(GraphNode(node_id(path, 0), path, 0, "module", parent))
    return nodes


@dataclass(frozen=True, slots=True)
class Node:
    """A node as seen over all passes. `type` is the class of its module."""

    id: str
    module: str
    call: int
    type: str
    kind: str
    parent: str
    inputs: tuple[CallPort, ...]
    outputs: tuple[CallPort, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Level:
    """The inside one call: its nodes in the order in which they were first seen."""

    node: Node | None
    nodes: tuple[Node, ...]
    edges: tuple[GraphEdge, ...]


@dataclass(frozen=True)
class Graph:
    """All that was seen. `passes` is how many recorded passes the counts are out of.

    `has_flow` is false when only the calls are known, not what flowed between them; `note` says why
    and what else cannot be shown.
    """

    nodes: tuple[Node, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    modules: tuple[GraphModule, ...] = ()
    passes: int = 0
    note: str = ""

    @staticmethod
    def of(parts: Iterable[GraphPart]) -> Graph:
        """The union of parts, whatever they hold: a parent that is not there becomes the model, a
        node without an id is left out."""
        modules: dict[str, GraphModule] = {}
        nodes: dict[str, GraphNode] = {}
        edges: dict[tuple[str, str], int] = {}
        notes: dict[str, str] = {}
        passes = 0
        for part in parts:
            modules.update((m.path, m) for m in part.modules)
            for node in part.nodes:
                if not node.id:
                    continue  # "" stands for no call: a node of that name would be inside itself
                known = nodes.get(node.id)
                nodes[node.id] = node if known is None else _merged(known, node)
            for e in part.edges:
                edges[e.source, e.target] = edges.get((e.source, e.target), 0) + e.count
            notes.update(part.notes)
            passes += part.passes
        parents = _sound_parents(nodes)
        types = {path: m.type for path, m in modules.items()}
        return Graph(
            nodes=tuple(_node(n, parents[n.id], types) for n in nodes.values()),
            edges=tuple(
                GraphEdge(source, target, count)
                for (source, target), count in edges.items()
                if source in nodes and target in nodes and parents[source] == parents[target]
            ),
            modules=tuple(modules.values()),
            passes=passes,
            note=" ".join(text for text in notes.values() if text),
        )

    @property
    def has_flow(self) -> bool:
        return bool(self.edges)

    @cached_property
    def by_id(self) -> Mapping[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def inside(self) -> Mapping[str, tuple[Node, ...]]:
        """What happened in each call, by the id of the call; "" for what is in none."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            found.setdefault(node.parent, []).append(node)
        return {parent: tuple(nodes) for parent, nodes in found.items()}

    @cached_property
    def edges_inside(self) -> Mapping[str, tuple[GraphEdge, ...]]:
        found: dict[str, list[GraphEdge]] = {}
        for edge in self.edges:
            found.setdefault(self.by_id[edge.source].parent, []).append(edge)
        return {parent: tuple(edges) for parent, edges in found.items()}

    @cached_property
    def calls(self) -> Mapping[str, tuple[Node, ...]]:
        """All calls of each module, by its path."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            if node.kind == "module":
                found.setdefault(node.module, []).append(node)
        return {path: tuple(nodes) for path, nodes in found.items()}

    def level(self, module: str = "") -> Level:
        """The inside a module, by its path or by the id of one of its calls.

        Raises:
            SondeError: There was no such call.
        """
        node = self.by_id.get(module or ROOT)
        if node is None and module in self.calls:
            node = self.calls[module][0]
        if node is None and module in {"", ROOT}:
            return Level(None, self.inside.get("", ()), self.edges_inside.get("", ()))
        if node is None:
            raise SondeError(f"There was no call of `{module}` in this run.")
        return Level(node, self.inside.get(node.id, ()), self.edges_inside.get(node.id, ()))

    def __repr__(self) -> str:
        return f"<Graph: {len(self.nodes)} nodes, {len(self.edges)} edges, {self.passes} passes>"


def merge_ports(a: Sequence[CallPort], b: Sequence[CallPort]) -> tuple[CallPort, ...]:
    """Ports of both, by slot. Where they differ a dimension is -1 and a dtype names both."""
    found = {port.slot: port for port in a}
    for port in b:
        known = found.get(port.slot)
        if known is None:
            found[port.slot] = port
        elif known != port:
            dtypes = dict.fromkeys((*known.dtype.split(" or "), port.dtype))
            found[port.slot] = CallPort(port.slot, " or ".join(dtypes), _merge_shapes(known, port))
    return tuple(found.values())


def _merge_shapes(a: CallPort, b: CallPort) -> tuple[int, ...]:
    if len(a.shape) != len(b.shape):
        return (-1,)
    return tuple(x if x == y else -1 for x, y in zip(a.shape, b.shape, strict=True))


def _merged(a: GraphNode, b: GraphNode) -> GraphNode:
    return replace(
        a,
        inputs=merge_ports(a.inputs, b.inputs),
        outputs=merge_ports(a.outputs, b.outputs),
        count=a.count + b.count,
    )


def _node(node: GraphNode, parent: str, types: Mapping[str, str]) -> Node:
    return Node(
        id=node.id,
        module=node.module,
        call=node.call,
        type=types.get(node.module, ""),
        kind=node.kind,
        parent=parent,
        inputs=node.inputs,
        outputs=node.outputs,
        count=node.count,
    )


def _sound_parents(nodes: Mapping[str, GraphNode]) -> dict[str, str]:
    """The parent of each node, such that following parents always ends. A run may be a stranger's:
    a parent that is no call, is not there or leads in a circle is replaced by none."""
    settled: dict[str, str] = {}
    for start in nodes:
        way: list[str] = []
        at = start
        on_way: set[str] = set()
        while at not in settled and at not in on_way:
            way.append(at)
            on_way.add(at)
            parent = nodes[at].parent
            if parent not in nodes or nodes[parent].kind != "module":
                break
            at = parent
        for one in way:
            parent = nodes[one].parent
            is_sound = parent in nodes and nodes[parent].kind == "module"
            settled[one] = parent if is_sound else ""
        if at in on_way and at == nodes[way[-1]].parent:
            settled[way[-1]] = ""  # the way came back to itself: cut it there
    return settled
