"""CUDA graphs: work that is captured once and replayed, without a hook being called.

While a graph is captured our hooks run once, and what they launch is captured with the rest: into
rows of their own, behind a gate on the device. Each replay then writes there what its tensors hold
by then, if the gate is open. So we have to hear of three things: a capture begins (rows must be
there, and the hooks must be on, whatever the schedule says), it ends, a graph is replayed (its
sites are seen in this step). Where the optimizer is in the graph, a step ends with the replay.

`torch.cuda.CUDAGraph` has no hooks for these, so its methods are wrapped while a model is watched:
see `sonde._torch_internals.patches`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from sonde._signals import IGNORING
from sonde._torch_internals.patches import forget_graphs, listen_to_graphs
from sonde.capture.torch.rows.host import DeviceRows, gated
from sonde.capture.window import SiteGroup, Spot
from sonde.kernels import torch as plain

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture
    from sonde.capture.torch.metrics.observer import Observer

_WAIT_S: Final = 10.0


class CapturedCudaGraph:
    """What one graph holds of ours: sites and the rows that a replay fills."""

    def __init__(self) -> None:
        self.ends_step = False
        self.groups: list[tuple[DeviceRows, SiteGroup]] = []
        self._rows: dict[tuple[DeviceRows, str], dict[int, int]] = {}

    def row(self, rows: DeviceRows, spot: Spot) -> int | None:
        """The row of a site: the same each time that it is met in this graph."""
        of = self._rows.setdefault((rows, spot.phase), {})
        index = of.get(spot.id)
        if index is None:
            index = rows.spare_row()
            if index is not None:
                of[spot.id] = index
        return index

    def close(self) -> None:
        """The capture is over: what is touched when it is replayed."""
        self.groups = [
            (rows, SiteGroup(list(of), phase, list(of.values())))
            for (rows, phase), of in self._rows.items()
            if of
        ]


class CudaGraphs:
    """The CUDA graphs that were captured while a capture of ours was there.

    `before_end` is called when a replay ends a step, while the step is still the current one.
    """

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self._known: WeakKeyDictionary[torch.cuda.CUDAGraph, CapturedCudaGraph] = (
            WeakKeyDictionary()
        )
        self._observer: Observer | None = None
        self.before_end: Callable[[], None] = lambda: None
        listen_to_graphs(self)

    def close(self) -> None:
        """Hear of no graph any more; those that there are write nothing."""
        forget_graphs(self)
        for captured in self._known.values():
            with IGNORING:  # the device may be gone by now
                _open(captured, False)
        self._known.clear()

    def begins(self) -> None:
        """A capture begins with the next launch. What it will need is made now."""
        capture = self.capture
        capture.drain.wait(_WAIT_S)  # a thread that asks the device something would end a capture
        with capture.lock:
            model = capture.model
            if model is None or capture.is_closed:
                return
            tensors = [*model.parameters(), *model.buffers()]
            n_modules = sum(1 for _ in model.modules())
            for device in {x.device for x in tensors if x.is_cuda}:
                capture.recorder.spare_rows(device, 8 * n_modules + 8 * len(tensors) + 64)
            capture.steps.wake()
            self._observer = capture.observer
            capture.observer = capture.collector.observer = None
            capture.steps.capture_cuda_graph(CapturedCudaGraph())

    def ended(self, graph: torch.cuda.CUDAGraph) -> None:
        """It is over, well or not."""
        capture = self.capture
        with capture.lock:
            captured = capture.recorder.capturing
            if captured is None:
                return
            capture.observer = capture.collector.observer = self._observer
            capture.steps.capture_cuda_graph(None)
            captured.close()
            if captured.groups or captured.ends_step:
                self._known[graph] = captured
                tables = [gated(rows.table) for rows, _ in captured.groups]
                _WRITTEN[graph] = [table.for_graphs for table in tables if table is not None]

    def replays(self, graph: torch.cuda.CUDAGraph) -> None:
        """The graph is about to run."""
        captured, capture = self._known.get(graph), self.capture
        if captured is None:
            return
        with capture.lock:
            if capture.phases.is_between:  # a step begins with it
                capture.steps.begin_step()
            wanted = capture.steps.wants("train")
            _open(captured, wanted)
            for rows, group in captured.groups if wanted else ():
                rows.touch_group(group)

    def replayed(self, graph: torch.cuda.CUDAGraph) -> None:
        """The graph is on its way."""
        captured = self._known.get(graph)
        if captured is not None and captured.ends_step:
            self.before_end()
            self.capture.steps.end_step()

    def unhook(self, modules: Sequence[nn.Module]) -> Callable[[], None]:
        """Take our hooks off these modules, and do not record calls to warm up; call what is
        returned to have all as it was."""
        pause = self.capture.steps.paused()
        put_back = self.capture.taps.unhook(modules)
        pause.__enter__()

        def restore() -> None:
            pause.__exit__(None, None, None)
            put_back()

        return restore

    def failed(self, error: Exception) -> None:
        """A method of this has raised; the training goes on."""
        self.capture.troubles.failed("CUDA graphs", error)


def can_capture(x: Tensor) -> bool:
    """Whether it can be read without anything that a capture does not allow."""
    return x.is_cuda and plain.is_plain(x)


def _open(captured: CapturedCudaGraph, is_open: bool) -> None:
    for table in {id(rows.table): rows.table for rows, _ in captured.groups}.values():
        written = gated(table)
        if written is not None:
            written.open_gate(is_open)


_WRITTEN: Final[WeakKeyDictionary[torch.cuda.CUDAGraph, list[object]]] = WeakKeyDictionary()
"""Memory of ours that a graph reads and writes, also after the watch has closed."""
