"""CUDA graphs: work that is captured once and replayed, without a hook being called.

While a graph is captured our hooks run once, and what they launch is captured with the rest: into
rows of their own, behind a gate on the device. Each replay then writes there what its tensors hold
by then, if the gate is open. So we have to hear of three things: a capture begins (rows must be
there, and the hooks must be on, whatever the schedule says), it ends, a graph is replayed (its
sites are seen in this step). Where the optimizer is in the graph, a step ends with the replay.

`torch.cuda.CUDAGraph` tells nobody of these, so its methods are wrapped while somebody watches;
they do exactly what they did. Everything that captures goes through them: `torch.cuda.graph`,
`torch.cuda.make_graphed_callables`, and the compiler's modes that use CUDA graphs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from sonde._signals import IGNORING
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
        self._known: WeakKeyDictionary[Any, CapturedCudaGraph] = WeakKeyDictionary()
        self._observer: Observer | None = None
        self.before_end: Callable[[], None] = lambda: None
        _listen(self)

    def close(self) -> None:
        """Hear of no graph any more; those that there are write nothing."""
        _forget(self)
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

    def ended(self, graph: Any) -> None:
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

    def replays(self, graph: Any) -> None:
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

    def replayed(self, graph: Any) -> None:
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


def can_capture(x: Tensor) -> bool:
    """Whether it can be read without anything that a capture does not allow."""
    return x.is_cuda and plain.is_plain(x)


def _open(captured: CapturedCudaGraph, is_open: bool) -> None:
    for table in {id(rows.table): rows.table for rows, _ in captured.groups}.values():
        written = gated(table)
        if written is not None:
            written.open_gate(is_open)


# -- telling -----------------------------------------------------------------------------------

_WRITTEN: Final[WeakKeyDictionary[Any, list[object]]] = WeakKeyDictionary()
"""Memory of ours that a graph reads and writes, also when nobody watches any more."""
_LISTENERS: Final[WeakSet[CudaGraphs]] = WeakSet()
_LOCK: Final = threading.Lock()
_ORIGINALS: Final[dict[tuple[Any, str], Any]] = {}


def _listen(graphs: CudaGraphs) -> None:
    with _LOCK:
        if not _LISTENERS and torch.cuda.is_available():
            _install()
        _LISTENERS.add(graphs)


def _forget(graphs: CudaGraphs) -> None:
    with _LOCK:
        _LISTENERS.discard(graphs)
        if not _LISTENERS:
            for (owner, name), original in _ORIGINALS.items():
                setattr(owner, name, original)
            _ORIGINALS.clear()


def _install() -> None:
    graph: Any = torch.cuda.CUDAGraph

    def begin(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        _each(lambda g: g.begins())
        try:
            return original(self, *args, **kwargs)
        except BaseException:
            _each(lambda g: g.ended(self))
            raise

    def end(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            _each(lambda g: g.ended(self))

    def replay(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        _each(lambda g: g.replays(self))
        result = original(self, *args, **kwargs)
        _each(lambda g: g.replayed(self))
        return result

    def make(original: Any, callables: Any, *args: Any, **kwargs: Any) -> Any:
        several = callables if isinstance(callables, tuple) else (callables,)
        modules = [m for m in several if isinstance(m, nn.Module)]
        put_back: list[Callable[[], None]] = []
        _each(lambda g: put_back.append(g.unhook(modules)))
        try:
            return original(callables, *args, **kwargs)
        finally:
            for put in put_back:
                put()

    _wrap(graph, "capture_begin", begin)
    _wrap(graph, "capture_end", end)
    _wrap(graph, "replay", replay)
    _wrap(torch.cuda, "make_graphed_callables", make)
    _wrap(torch.cuda.graphs, "make_graphed_callables", make)


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    _ORIGINALS[owner, name] = original

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, wrapped)


def _each(act: Callable[[CudaGraphs], object]) -> None:
    for graphs in list(_LISTENERS):
        try:
            act(graphs)
        except Exception as error:  # training goes on
            graphs.capture.troubles.failed("CUDA graphs", error)
