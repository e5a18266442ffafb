"""The taker: decides which passes are traced, and adds up what was seen.

The first pass is traced, and the first one of any part of the model that is called by itself. After
that a pass costs one comparison: which modules were called, how often, and in which order. A pass
unlike all before it makes the taker trace until it has seen one of that kind.

Nothing leaves this class but through `publish` and `report`: no exception reaches the training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final
from weakref import ref

from torch import Tensor, nn

from sonde._signals import IGNORING, pass_on
from sonde._torch_internals.frames import is_compiled
from sonde._torch_internals.modules import compiled_call, own_parameters
from sonde.graph.model import tree_nodes
from sonde.graph.torch.passing import TensorAccess, TracedPass
from sonde.graph.torch.trace import TraceMode, is_inside_compiled_call, is_traceable
from sonde.record import GraphEdge, GraphModule, GraphNode, GraphPart

_MAX_TRACES: Final = 64
_MAX_TRACED_NODES: Final = 400_000
"""Nodes in all traces together: a model that is another one in each pass ends here."""

_MAX_RECOUNTED: Final = 20_000
"""Nodes of a graph whose counts are told once more at the end."""

_MAX_EXTRA: Final = 500

_NOTES: Final = {
    "compiled": "The model is compiled: its modules are shown, not what flows between them.",
    "changing": "The model takes other ways in other passes; not all of them were followed.",
    "calls": "Some modules are called very often in a pass; their last calls are drawn as one.",
}

Signature = tuple[tuple[int, ...], tuple[int, ...]]


class _Kind:
    """Passes that were alike: what was seen in those that were traced, and how many there were."""

    __slots__ = ("edges", "nodes", "passes", "told")

    def __init__(self) -> None:
        self.nodes: dict[str, GraphNode] = {}
        self.edges: dict[tuple[str, str], None] = {}
        self.passes = 0
        self.told = 0

    @property
    def is_traced(self) -> bool:
        return bool(self.nodes)


class GraphTaker:
    """Takes the graph of one model. Used by one thread at a time."""

    def __init__(
        self,
        model: nn.Module,
        framework: TensorAccess,
        *,
        publish: Callable[[GraphPart], None],
        report: Callable[[Exception], None],
        max_calls: int,
    ) -> None:
        """Take the graph of `model`.

        Args:
            model: held weakly.
            framework: how modules are named and what tensors a call takes and gives.
            publish: gets each part of the graph as soon as it was seen.
            report: gets what went wrong; the taker is off from then on.
            max_calls: calls of one module in a pass that are told apart.
        """
        self._model = ref(model)
        self._framework = framework
        self._publish = publish
        self._report = report
        self._max_calls = max_calls
        self._kinds: dict[Signature, _Kind] = {}
        self._untraced = 0
        self._tops: set[str] = set()
        self._modules: dict[str, GraphModule] = {}
        self._notes: dict[str, str] = {}
        self._traces = 0
        self._traced_nodes = 0
        self._is_off = False
        self._is_inside = False
        self._pass: TracedPass | None = None
        self._raising: BaseException | None = None
        self._hooked: list[TracedPass] = []
        self._leftover: list[TraceMode] = []

    # -- what the hooks say --------------------------------------------------------------------

    def begin(
        self,
        path: str,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        step: int,
    ) -> None:
        """An outermost call begins that is recorded."""
        try:
            self._let_go()
            if self._is_off:
                return
            self._is_inside = True
            if self._is_wanted(path):
                self._trace(path, module, args, kwargs, step)
        except Exception as error:
            self._fail(error)

    def end(self, output: object, calls: Mapping[Any, int], *, step: int) -> None:
        """The outermost call is over. `calls` are how often each module was called, in order."""
        if self._is_off or not self._is_inside:
            return
        self._is_inside = False
        try:
            traced = self._pass
            if traced is not None:
                try:
                    traced.end(output)
                finally:
                    self._stop_pass()
                if sys.exc_info()[1] is not self._raising:
                    return  # it did not return: an exception is on its way
                self._unhook()
                if traced.error is not None:
                    raise traced.error
            kind = self._seen(calls)
            if traced is not None:
                self._take(traced, kind, step)
        except Exception as error:
            self._fail(error)

    def attach(self, name: str, x: Tensor) -> None:
        """A tensor was given a name inside the pass."""
        if self._pass is not None:
            self._pass.attach(name, x)

    def compiled(self, *, step: int) -> None:
        """Compiled code runs: there are no calls to be seen, only modules."""
        if self._is_off or "compiled" in self._notes:
            return
        try:
            self._notes["compiled"] = _NOTES["compiled"]
            modules = self._new_modules()
            nodes = [] if self._traces else tree_nodes(m.path for m in modules)
            self._tell(step, modules=modules, nodes=nodes)
        except Exception as error:
            self._fail(error)

    def close(self, *, step: int) -> None:
        """Tell how often everything was seen in the end."""
        try:
            self._let_go()
            if not self._is_off:
                self._tell_counts(step)
        except Exception as error:
            self._fail(error)
        self._is_off = True
        self._kinds.clear()
        self._modules.clear()

    # -- which passes --------------------------------------------------------------------------

    def _is_wanted(self, path: str) -> bool:
        if self._traces >= _MAX_TRACES or self._traced_nodes >= _MAX_TRACED_NODES:
            return False
        return path not in self._tops or self._untraced > 0

    def _trace(
        self,
        path: str,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        step: int,
    ) -> None:
        model = self._model()
        if model is None or not is_traceable():
            return
        if is_inside_compiled_call() or _has_compiled_parts(model):
            self.compiled(step=step)
            self._is_off = True
            return
        self._tops.add(path)
        self._raising = sys.exc_info()[1]
        self._pass = TracedPass(self._framework, model, max_calls=self._max_calls)
        self._pass.begin(path, module, args, kwargs)

    def _seen(self, calls: Mapping[Any, int]) -> _Kind:
        """Count a pass of that kind."""
        signature: Signature = (tuple(map(id, calls)), tuple(calls.values()))
        kind = self._kinds.get(signature)
        if kind is None:
            if len(self._kinds) >= 4 * _MAX_TRACES:
                self._notes["changing"] = _NOTES["changing"]
                return _Kind()
            kind = self._kinds[signature] = _Kind()
            self._untraced += 1
        kind.passes += 1
        return kind

    # -- what was seen -------------------------------------------------------------------------

    def _take(self, traced: TracedPass, kind: _Kind, step: int) -> None:
        nodes = traced.trace.used_nodes()
        edges = [e for e in traced.trace.edges if e[0] in nodes and e[1] in nodes]
        self._traces += 1
        self._traced_nodes += len(nodes)
        if traced.trace.has_many_calls:
            self._notes["calls"] = _NOTES["calls"]
        due = 0
        if not kind.is_traced:
            self._untraced -= 1
            due = kind.told = kind.passes
        new_nodes = [n for i, n in nodes.items() if kind.nodes.get(i) != n]
        new_edges = [e for e in edges if e not in kind.edges]
        kind.nodes.update(nodes)
        kind.edges.update(dict.fromkeys(edges))
        if new_nodes or new_edges:
            self._tell(
                step,
                modules=self._new_modules(),
                nodes=[replace(n, count=due) for n in new_nodes],
                edges=[GraphEdge(source, target, due) for source, target in new_edges],
                passes=due,
            )

    def _tell_counts(self, step: int) -> None:
        """Passes that came after the graph was told, and were like one that was traced."""
        if self._untraced > 0:
            self._notes.setdefault("changing", _NOTES["changing"])
        nodes: dict[str, GraphNode] = {}
        edges: dict[tuple[str, str], int] = {}
        passes = 0
        for kind in self._kinds.values():
            due = kind.passes - kind.told
            if not kind.is_traced or due <= 0 or self._traced_nodes > _MAX_RECOUNTED:
                continue
            kind.told = kind.passes
            passes += due
            for i, node in kind.nodes.items():
                known = nodes.get(i)
                count = due if known is None else known.count + due
                nodes[i] = replace(node, inputs=(), outputs=(), count=count)
            for edge in kind.edges:
                edges[edge] = edges.get(edge, 0) + due
        if passes or self._notes:
            self._tell(
                step,
                nodes=list(nodes.values()),
                edges=[GraphEdge(source, target, n) for (source, target), n in edges.items()],
                passes=passes,
            )

    def _tell(
        self,
        step: int,
        *,
        modules: list[GraphModule] | None = None,
        nodes: list[GraphNode],
        edges: list[GraphEdge] | None = None,
        passes: int = 0,
    ) -> None:
        notes = list(self._notes.items())
        self._publish(GraphPart(step, modules or [], nodes, edges or [], passes, notes))

    def _new_modules(self) -> list[GraphModule]:
        model = self._model()
        if model is None:
            return []
        found = {path: _described(path, m) for path, m in self._framework.modules(model)}
        new = [m for path, m in found.items() if self._modules.get(path) != m]
        self._modules.update(found)
        return new

    # -- letting go ----------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Of a pass that never ended, and of modes that could not leave when they should have."""
        self._stop_pass()
        self._unhook()
        if self._leftover:
            self._leftover = [mode for mode in self._leftover if not mode.stop()]

    def _unhook(self) -> None:
        while self._hooked:  # in this order: a signal handler may raise in between
            self._hooked[-1].unhook()
            self._hooked.pop()

    def _stop_pass(self) -> None:
        """A signal may interrupt this: the pass is let go of when all the rest is done."""
        if self._pass is not None:
            mode = self._pass.stop()
            if mode is not None:
                self._leftover.append(mode)
            self._hooked.append(self._pass)
            self._pass = None

    def _fail(self, error: Exception) -> None:
        with IGNORING:
            self._stop_pass()
        pass_on(error)
        self._is_off = True
        self._modules.clear()
        self._kinds.clear()
        self._report(error)


def _described(path: str, module: nn.Module) -> GraphModule:
    try:
        extra = str(module.extra_repr())[:_MAX_EXTRA]
    except Exception as error:  # of a model's own code
        pass_on(error)
        extra = ""
    own = 0
    for parameter in own_parameters(module).values():
        if parameter is not None:
            with IGNORING:  # one that a lazy module has yet to make
                own += parameter.numel()
    return GraphModule(path, type(module).__name__, extra, own)


def _has_compiled_parts(model: nn.Module) -> bool:
    """Whether a module, its `forward` or a function that it holds is compiled."""
    return any(
        compiled_call(m) is not None
        or type(m).__name__ == "OptimizedModule"
        or is_compiled(type(m).forward)
        or any(map(is_compiled, vars(m).values()))
        for m in model.modules()
    )
