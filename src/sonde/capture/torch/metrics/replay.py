"""Replays: what is computed of tensors again and again, as one launch instead of a hundred.

On a GPU the host needs longer to launch the small operations of a metric than the device to do
them. So the second time that something is computed of tensors of some shape it is recorded as a
CUDA graph; from then on the tensors are copied to where the graph looks for them, and it is
replayed. Its results are copied too, so that the next replay leaves them alone. Nothing waits.
Without it, a step of GPT-2-small with ten metrics and attention on an H200 takes 125 % longer at
`every=1` and 21 % longer at `every=10` (`benchmarks/results/ablation.csv`).

Only for what does the same each time (`sonde.metrics.torch.fixed`). Whatever cannot be recorded is
computed as before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from sonde._signals import IGNORING, pass_on
from sonde._torch_internals.streams import CAN_RECOVER, end_pool, raw_stream
from sonde._torch_internals.tensors import transform_level
from sonde.capture.torch.metrics.isolation import Isolation

MAX_BYTES: Final = 1 << 26
"""Size of tensors of which a copy is kept: for larger ones, launching is not what takes time."""

MAX_RECIPES: Final = 64
MAX_MET: Final = 1024
"""Where sequences have all lengths, shapes come and go: then no more is recorded."""

FREE_BYTES: Final = 2 << 30
"""Memory of the device that must be free for more to be recorded."""

Compute = Callable[..., tuple[Sequence[Tensor], Any]]
"""From tensors to tensors, and to whatever else there is to say of their shapes: `Any`."""


_Pool = tuple[int, int]
"""A memory pool of CUDA graphs."""


class Replays:
    """Computations on CUDA devices, by a name and by what their tensors look like.

    Not thread-safe: the capture serialises.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._is_off = not CAN_RECOVER
        self._recipes: dict[Hashable, _Recipe] = {}
        self._met: set[Hashable] = set()
        self._tried: set[Hashable] = set()
        self._pools: dict[tuple[int, int], _Pool] = {}

    def follow(
        self,
        name: Hashable,
        compute: Compute,
        tensors: Sequence[Tensor],
        is_fit: Callable[[], bool] = lambda: True,
    ) -> tuple[Sequence[Tensor], Any] | None:
        """What `compute` gives for these tensors; None if it has to be called for that.

        Before it is recorded, `is_fit` is asked whether it may be. If anything fails here, that is
        told, and from then on everything is computed as it would be without this.
        """
        if self._is_off:
            return None
        try:
            return self._follow(name, compute, tensors, is_fit)
        except Exception as error:
            pass_on(error)
            self._is_off = True
            self.forget()
            self._failed(error)
            return None

    def forget(self) -> None:
        """Give all memory back."""
        self._recipes.clear()
        self._pools.clear()

    def _follow(
        self,
        name: Hashable,
        compute: Compute,
        tensors: Sequence[Tensor],
        is_fit: Callable[[], bool],
    ) -> tuple[Sequence[Tensor], Any] | None:
        if not all(type(x) is Tensor and x.is_cuda for x in tensors) or _is_elsewhere(tensors):
            return None
        device = tensors[0].get_device()
        where = (device, raw_stream(device))
        key = (name, where, *((x.dtype, x.shape, x.stride()) for x in tensors))
        recipe = self._recipes.get(key)
        if recipe is not None:
            return recipe.follow(tensors)
        if not self._is_due(key, tensors) or not is_fit():
            return None
        pool = self._pools.setdefault(where, torch.cuda.graph_pool_handle())
        recipe = _recorded(compute, tensors, pool)
        if recipe is None:
            del self._pools[where]
            return None
        self._recipes[key] = recipe
        return recipe.follow(tensors)

    def _is_due(self, key: Hashable, tensors: Sequence[Tensor]) -> bool:
        """Whether to record now: what was met before, was not tried yet, and is small enough."""
        if key in self._tried or len(self._recipes) >= MAX_RECIPES:
            return False
        if key not in self._met:
            if len(self._met) < MAX_MET:
                self._met.add(key)
            return False
        self._tried.add(key)
        free, _ = torch.cuda.mem_get_info(tensors[0].device)
        return sum(x.nbytes for x in tensors) <= MAX_BYTES and free > FREE_BYTES


def _is_elsewhere(tensors: Sequence[Tensor]) -> bool:
    """Whether this happens on another device than these are on, inside a foreign
    recording, or inside a transformation."""
    here = torch.cuda.current_device()
    return (
        any(x.get_device() != here for x in tensors)
        or torch.cuda.is_current_stream_capturing()
        or transform_level() is not None
    )


class _Recipe:
    """One computation, recorded."""

    __slots__ = ("_given", "_notes", "_replay", "_results")

    def __init__(
        self,
        replay: Callable[[], None],
        given: Sequence[Tensor],
        results: Sequence[Tensor],
        notes: Any,
    ) -> None:
        self._replay = replay
        self._given = given
        self._results = results
        self._notes = notes

    def follow(self, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Any]:
        for to, x in zip(self._given, tensors, strict=True):
            to.copy_(x)
        self._replay()
        return [x.clone() for x in self._results], self._notes


def _recorded(compute: Compute, tensors: Sequence[Tensor], pool: _Pool) -> _Recipe | None:
    """The computation as a graph, None if there cannot be one."""
    device = tensors[0].device
    made: _Recipe | None = None
    here = torch.cuda.current_stream(device)
    side = torch.cuda.Stream(device)
    with Isolation(device), torch.cuda.device(device):
        given = [torch.empty_like(x) for x in tensors]
        side.wait_stream(here)
        with torch.cuda.stream(side):
            # Without `torch.cuda.graph`, which waits for the device and empties caches first; and
            # below the methods by which we hear of graphs of others.
            graph: Any = super(torch.cuda.CUDAGraph, torch.cuda.CUDAGraph())
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    results, notes = compute(*given)
                finally:
                    graph.capture_end()
                made = _Recipe(graph.replay, given, results, notes)
            except Exception as error:
                made = None
                _recover(device, pool)
                pass_on(error)
        here.wait_stream(side)
    return made


def _recover(device: torch.device, pool: _Pool) -> None:
    """After a recording that failed, torch takes memory and random numbers for being recorded
    still: stop the one, and set the other right by a recording that goes well."""
    with IGNORING:  # it was not
        end_pool(device.index, pool)
    x = torch.zeros(1, device=device)
    graph: Any = super(torch.cuda.CUDAGraph, torch.cuda.CUDAGraph())
    graph.capture_begin(pool=None, capture_error_mode="thread_local")
    x.add_(1)
    graph.capture_end()
