"""The structure of a watched module, under the names of `torchexplorer.core`.

Everything here is read from the run: the graph, and the histograms of the tensors at a node.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final
from weakref import ref

from torch import nn

from sonde.graph.model import ROOT, Graph, Node
from sonde.record import CallPort
from sonde.sketch.histograms import HistogramHistory
from sonde.store.reading.histories import of_module
from sonde.store.reading.run import Run, open_run
from sonde.watching import Watch

InvocationId = int
ParamName = str

_ATTACHED: Final = "ᴬ"


class IncrementalHistogram:
    """One tensor over the recorded steps, with equal bins between its extrema over all of them.

    `nans` and `infs` are counted beside the bins, for each time.
    """

    def __init__(self, history: HistogramHistory) -> None:
        self.min, self.max = float(history.edges[0]), float(history.edges[-1])
        self.history_bins: list[list[float]] = history.counts.tolist()
        self.history_times, self.nans, self.infs = history.steps, history.nans, history.infs


@dataclass
class ModuleInvocationHistograms:
    """Histograms of one call of a module."""

    input_hists: list[IncrementalHistogram] = field(default_factory=list)
    output_hists: list[IncrementalHistogram] = field(default_factory=list)


@dataclass
class ModuleSharedHistograms:
    """Histograms of a module's own parameters, which all its calls share."""

    param_hists: dict[ParamName, IncrementalHistogram] = field(default_factory=dict)
    param_grad_hists: dict[ParamName, IncrementalHistogram] = field(default_factory=dict)


@dataclass
class ExplorerMetadata:
    """What is known of a module. Sizes have None where a dimension varied."""

    invocation_hists: dict[InvocationId, ModuleInvocationHistograms] = field(default_factory=dict)
    invocation_grad_hists: dict[InvocationId, ModuleInvocationHistograms] = field(
        default_factory=dict
    )
    shared_hists: ModuleSharedHistograms = field(default_factory=ModuleSharedHistograms)
    input_sizes: dict[InvocationId, list[list[int | None]]] = field(default_factory=dict)
    output_sizes: dict[InvocationId, list[list[int | None]]] = field(default_factory=dict)


class ModuleInvocationStructure:
    """One call of a module. `inner_graph` is a networkx DiGraph: its nodes are the calls inside,
    and the texts "Input 0", "Output 0", and "name ᴬ" of attached tensors."""

    def __init__(self, node: Node, source: RecordedStructure, graph: Graph) -> None:
        nx: Any = import_module("networkx")  # which torch brings along
        self.path = node.module
        self.invocation_id: InvocationId = node.call
        self.structure_id = node.id
        self.inner_graph: Any = nx.DiGraph()
        self._source = source
        inside = {each.id: self._inner(each, graph) for each in graph.inside.get(node.id, ())}
        if not any(each.kind in {"input", "output"} for each in graph.inside.get(node.id, ())):
            self._add_ports(node)
        for each in inside.values():
            self.inner_graph.add_node(each, label=str(each))
        for edge in graph.edges_inside.get(node.id, ()):
            self.inner_graph.add_edge(inside[edge.source], inside[edge.target])

    @property
    def module(self) -> nn.Module | None:
        """The module itself; None once the model is gone."""
        return self._source.module_at(self.path)

    def module_metadata(self) -> ExplorerMetadata:
        """Histograms and sizes of the module, read from the run now."""
        return self._source.metadata(self.path)

    def get_inner_structure(
        self, module: nn.Module, invocation_id: InvocationId
    ) -> ModuleInvocationStructure | None:
        """The call of that module inside this one."""
        calls = (c for c in self.inner_graph.nodes if isinstance(c, ModuleInvocationStructure))
        wanted = (module, invocation_id)
        return next((c for c in calls if (c.module, c.invocation_id) == wanted), None)

    def __str__(self) -> str:
        return f"{type(self.module).__name__}, Invocation {self.invocation_id}"

    def _inner(self, node: Node, graph: Graph) -> ModuleInvocationStructure | str:
        if node.kind == "module":
            return ModuleInvocationStructure(node, self._source, graph)
        slot = node.id.rpartition("/")[2]
        if node.kind == "attach":
            return f"{slot} {_ATTACHED}"
        return f"{node.kind.capitalize()} {slot}"

    def _add_ports(self, node: Node) -> None:
        """A call with nothing inside: every output depends on every input."""
        given = [f"Input {port.slot}" for port in node.inputs]
        made = [f"Output {port.slot}" for port in node.outputs]
        for name in (*given, *made):
            self.inner_graph.add_node(name, label=name)
        self.inner_graph.add_edges_from((a, b) for a in given for b in made)


class RecordedStructure:
    """The structure of a watched module, as far as its run has it."""

    def __init__(self, module: nn.Module, recorded: Watch, bins: int) -> None:
        self._module = ref(module)
        self._recorded = recorded
        self._bins = bins
        self._run: Run | None = None

    @property
    def structure(self) -> ModuleInvocationStructure | None:
        """The first call of the module; None until a training pass has been recorded."""
        run = self._opened()
        node = None if run is None else run.graph.by_id.get(ROOT)
        if run is None or node is None:
            return None
        return ModuleInvocationStructure(node, self, run.graph)

    def module_at(self, path: str) -> nn.Module | None:
        """The module at a path of the model."""
        root = self._module()
        return None if root is None else root.get_submodule(path)

    def metadata(self, path: str) -> ExplorerMetadata:
        """What the run has of a module."""
        found = ExplorerMetadata()
        run = self._opened()
        if run is None:
            return found
        for node in run.graph.calls.get(path, ()):
            found.input_sizes[node.call] = [_size(port) for port in node.inputs]
            found.output_sizes[node.call] = [_size(port) for port in node.outputs]
        for site, history in of_module(run, path, self._bins).items():
            call, slot, each = site.call, site.slot, IncrementalHistogram(history)
            match site.kind:
                case "input" | "output" | "input_grad" | "output_grad":
                    is_grad = site.kind.endswith("grad")
                    calls = found.invocation_grad_hists if is_grad else found.invocation_hists
                    hists = calls.setdefault(call, ModuleInvocationHistograms())
                    is_input = site.kind.startswith("input")
                    (hists.input_hists if is_input else hists.output_hists).append(each)
                case "param":
                    found.shared_hists.param_hists[slot] = each
                case "param_grad":
                    found.shared_hists.param_grad_hists[slot] = each
        return found

    def _opened(self) -> Run | None:
        """The run with all that was recorded so far."""
        path = self._recorded.path
        if path is None:
            return None
        self._recorded.flush()
        if self._run is None:
            self._run = open_run(path)
        return self._run


def _size(port: CallPort) -> list[int | None]:
    return [None if n < 0 else n for n in port.shape]
