"""The graph of a model, from the traced function: its calls and what flows between them.

Each value of the function carries the calls whose outputs reached it without passing through
another call. Where such a value enters a call of the same level, there is an edge. A `scan` over
stacked layers is drawn as the chain of its layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from sonde.capture.jax.jaxprs import jaxprs_in, opened, stacks_in
from sonde.capture.jax.taps import Call, JaxTap, cotap_p, tap_p
from sonde.graph.model import node_id
from sonde.record import CallPort, GraphEdge, GraphModule, GraphNode, GraphPart

_NOTE: Final = (
    "traced",
    "The graph is that of the traced step. What reaches a module beside its arguments has no edge.",
)

Sources = frozenset[Call]
_NONE: Final[Sources] = frozenset()


def graph_of(closed: ClosedJaxpr, step: int) -> GraphPart | None:
    """What a traced function shows of its model's graph; None if it calls no module."""
    jaxpr, _ = opened(closed)
    flow = _Flow()
    flow.walk(jaxpr, [_NONE] * len(jaxpr.invars))
    return _Drawing(flow, dict(stacks_in(jaxpr))).part(step) if flow.calls else None


@dataclass
class _Seen:
    """Arrays that a call takes and returns."""

    inputs: dict[str, CallPort] = field(default_factory=dict)
    outputs: dict[str, CallPort] = field(default_factory=dict)


class _Flow:
    """Calls in their order, with what they take and return, and edges between them."""

    def __init__(self) -> None:
        self.calls: dict[Call, _Seen] = {}
        self.edges: dict[tuple[Call, Call], None] = {}

    def walk(self, jaxpr: Jaxpr, inputs: Sequence[Sources]) -> list[Sources]:
        """Follow the values of a function. Returns the sources of what it returns."""
        sources: dict[Var, Sources] = dict(zip(jaxpr.invars, inputs, strict=True))

        def read(atom: Var | Literal) -> Sources:
            return _NONE if isinstance(atom, Literal) else sources.get(atom, _NONE)

        for eqn in jaxpr.eqns:
            found = [read(a) for a in eqn.invars]
            if eqn.primitive is tap_p:
                sources[eqn.outvars[0]] = self._meet(eqn.params["tap"], eqn.invars[0], found[0])
                continue
            outputs = None if eqn.primitive is cotap_p else self._inside(eqn, found)
            if outputs is None:
                outputs = [_NONE.union(*found)] * len(eqn.outvars)
            sources.update(zip(eqn.outvars, outputs, strict=True))
        return [read(a) for a in jaxpr.outvars]

    def _inside(self, eqn: JaxprEqn, inputs: list[Sources]) -> list[Sources] | None:
        """Follow the values through the functions of an equation, if there are any."""
        outputs: list[Sources] | None = None
        for jaxpr in jaxprs_in(eqn.params):
            n = len(jaxpr.invars)
            if n > len(inputs):
                continue
            found = self.walk(jaxpr, inputs[len(inputs) - n :])
            if len(found) == len(eqn.outvars):
                pairs = zip(outputs or [_NONE] * len(found), found, strict=True)
                outputs = [a | b for a, b in pairs]
        return outputs

    def _meet(self, tap: JaxTap, x: Var | Literal, sources: Sources) -> Sources:
        call = tap.call
        if call is None or tap.kind not in ("input", "output"):
            return sources
        seen = self.calls.setdefault(call, _Seen())
        port = CallPort(tap.slot, x.aval.dtype.name, tuple(x.aval.shape))
        if tap.kind == "output":
            seen.outputs[tap.slot] = port
            return frozenset({call})
        seen.inputs[tap.slot] = port
        self.edges.update(((s, call), None) for s in sources if s.parent is call.parent)
        return _NONE


class _Drawing:
    """Nodes and edges by name, with stacked layers taken apart."""

    def __init__(self, flow: _Flow, stacks: dict[str, int]) -> None:
        self._flow = flow
        self._stacks = stacks
        self._numbers: dict[Call, int] = {}
        made: dict[str, int] = {}
        for call in flow.calls:
            self._numbers[call] = made.get(call.path, 0)
            made[call.path] = self._numbers[call] + 1

    def part(self, step: int) -> GraphPart:
        nodes, modules = [], {}
        for call, seen in self._flow.calls.items():
            paths = self._paths(call.path)
            parents = [""] if call.parent is None else self._ids(call.parent)
            for i, path in enumerate(paths):
                parent = parents[i] if len(parents) == len(paths) else parents[0]
                nodes.append(
                    GraphNode(
                        node_id(path, self._numbers[call]),
                        path,
                        self._numbers[call],
                        "module",
                        parent,
                        tuple(seen.inputs.values()),
                        tuple(seen.outputs.values()),
                        1,
                    )
                )
                modules[path] = GraphModule(path, call.type, "", call.size)
        edges = [e for a, b in self._flow.edges for e in self._edges(a, b)]
        for call in self._flow.calls:
            if call.path in self._stacks:
                ids = self._ids(call)
                edges += [GraphEdge(a, b, 1) for a, b in itertools.pairwise(ids)]
        return GraphPart(step, list(modules.values()), nodes, edges, 1, [_NOTE])

    def _edges(self, source: Call, target: Call) -> list[GraphEdge]:
        ends, begins = self._ids(source), self._ids(target)
        if len(ends) == len(begins) and source.path not in self._stacks:
            return [GraphEdge(a, b, 1) for a, b in zip(ends, begins, strict=True)]
        return [GraphEdge(ends[-1], begins[0], 1)]

    def _ids(self, call: Call) -> list[str]:
        return [node_id(path, self._numbers.get(call, 0)) for path in self._paths(call.path)]

    def _paths(self, path: str) -> list[str]:
        for stack, n in self._stacks.items():
            if stack and (path == stack or path.startswith(f"{stack}.")):
                return [f"{stack}.{i}{path[len(stack) :]}" for i in range(n)]
        return [path]
