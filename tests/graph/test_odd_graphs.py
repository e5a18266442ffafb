"""Graphs of a stranger's run: whatever the rows say, every question about them ends."""

from itertools import pairwise

import pytest

from sonde._errors import SondeError
from sonde.graph.folding import Folder, ModuleTree
from sonde.graph.model import Graph
from sonde.record import GraphEdge, GraphModule, GraphNode, GraphPart

pytestmark = pytest.mark.usefixtures("ends")


def call(id, parent, module=None, kind="module", n=0):
    return GraphNode(id, id if module is None else module, n, kind, parent)


HOSTILE_GRAPHS = {
    "an empty id": [call("", "")],
    "an empty id that contains others": [call("", ""), call("a", ""), call("b", "a")],
    "an empty id inside another": [call("a", ""), call("", "a"), call("b", "")],
    "a node inside itself": [call("a", "a")],
    "two inside each other": [call("a", "b"), call("b", "a")],
    "a ring with a tail": [call("a", "b"), call("b", "c"), call("c", "a"), call("d", "a")],
    "the root inside a call": [call(".", "a", ""), call("a", ".")],
    "a tensor as a parent": [call("a/output/0", "", "a", "output"), call("b", "a/output/0")],
    "a parent that is not there": [call("a", "nowhere")],
    "ids of dots and hashes": [call("...", "", "..."), call("#0", "...", "#"), call(".#1", "", "")],
    "the same id of two kinds": [call("a", ""), call("a", "", "a", "input"), call("b", "a")],
    "strange calls": [call("a", "", n=-1), call("b", "a", n=2**31 - 1)],
    "one deep in the next": [call(f"n{i}", f"n{i - 1}" if i else "") for i in range(3000)],
    "all alike": [call(f"h.{i}", "") for i in range(3000)],
}
"""Nodes by what is wrong with them. One more is one more line."""


@pytest.mark.parametrize("name", HOSTILE_GRAPHS)
def test_every_level_of_a_hostile_graph_can_be_asked_for(name):
    nodes = HOSTILE_GRAPHS[name]
    names = [node.id for node in nodes]
    edges = [GraphEdge(a, b, 1) for a, b in pairwise(names)]
    modules = [GraphModule(node.module, "T") for node in nodes]
    graph = Graph.of([GraphPart(0, modules, nodes, [*edges, GraphEdge("", "", 1)], 1)])
    assert "" not in graph.by_id
    folder = Folder(graph)
    for at in ["", ".", *list(graph.by_id)[:20]]:
        try:
            level = graph.level(at)
        except SondeError:
            continue
        folder.fold(level.nodes, level.edges)
    assert sum(len(inside) for inside in graph.inside.values()) == len(graph.nodes)
    for node in graph.nodes:
        seen = set()
        while node is not None:
            assert node.id not in seen
            seen.add(node.id)
            node = graph.by_id.get(node.parent)
    assert ModuleTree(graph.modules).folded_path[""] == ("", "")
