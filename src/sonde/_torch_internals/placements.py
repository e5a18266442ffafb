"""Tensors that are spread over ranks: what torch keeps private of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sonde._python import frame_at
from sonde._signals import pass_on
from sonde._torch_internals.registry import uses

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement


class DistributedSpec(Protocol):
    """Where a distributed tensor lies: a mesh, and how it is placed along each dimension."""

    @property
    def mesh(self) -> DeviceMesh: ...

    @property
    def placements(self) -> Sequence[Placement]: ...


_store = uses(
    "default_store",
    "torch.distributed.distributed_c10d:_get_default_store",
    purpose="ranks agree on the name of a run without a collective",
    fallback="the name is that of the launcher's job, or has to be given",
).find()

_COLLECTIVES: Final = "torch.distributed._functional_collectives"
_collective = uses(
    "collective_tensor",
    f"{_COLLECTIVES}:AsyncCollectiveTensor",
    purpose="a tensor whose collective still runs is read when it is there",
    fallback="such tensors are skipped",
)
_FSDP: Final = "torch.distributed.fsdp"
_fsdp = uses(
    "fsdp_state",
    f"{_FSDP}:FSDPModule._get_fsdp_state",
    purpose="which dimensions of a mesh have a batch of their own",
    fallback="the names of the dimensions decide",
)

_PIPELINE: Final = "torch.distributed.pipelining.stage"
uses(
    "stage_inference",
    f"{_PIPELINE}:PipelineStage._forward_metadata_inference",
    purpose="the forward by which a pipeline stage learns shapes is no training",
    fallback="that of older versions is known by its name; else it counts as a micro-batch",
    seen=("2.13", "2.15"),
)
_INFERENCES: Final = ("_forward_metadata_inference", "_shape_inference")


def agree(key: str, proposal: str) -> str | None:
    """Return what the first rank proposed under this key; None where ranks have no store.

    A request to the store, not a collective: a rank that never asks keeps no other waiting.
    """
    if _store is None or not dist.is_available() or not dist.is_initialized():
        return None
    try:
        found = _store[0]().compare_set(key, "", proposal)
    except Exception as error:  # a store may be of any kind
        pass_on(error)
        return None
    return found.decode() if isinstance(found, bytes) else str(found)


def waited_for(x: Tensor) -> Tensor:
    """Return the tensor itself, once the collective that makes it has ended.

    On a GPU the stream waits, and the host does not.
    """
    if _COLLECTIVES not in sys.modules or not (found := _collective.find()):
        return x
    if isinstance(x, found[0]):
        inner: Tensor = x.wait()
        return inner
    return x


def data_meshes(modules: Iterable[nn.Module]) -> Iterator[DeviceMesh]:
    """Return the meshes over which FSDP2 spreads parameters: each rank there has its own batch."""
    if _FSDP not in sys.modules or not (found := _fsdp.find()):
        return
    kind = sys.modules[_FSDP].FSDPModule
    for module in modules:
        if not isinstance(module, kind):
            continue
        state = found[0](module)
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:
            groups = [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            mesh = getattr(getattr(group, "mesh_info", None), "mesh", None)
            if mesh is not None:
                yield mesh


def is_inferring_shapes() -> bool:
    """Whether a pipeline stage calls its module only to learn the shapes of what it returns."""
    if _PIPELINE not in sys.modules:
        return False
    frame: FrameType | None = frame_at(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name in _INFERENCES and frame.f_globals.get("__name__") == _PIPELINE:
            return True
        frame = frame.f_back
    return False


def swaps_parameters(module: nn.Module) -> bool:
    """Whether the module has other parameters while its forward runs, as FSDP2 has it."""
    if _FSDP not in sys.modules:
        return False
    kind = getattr(sys.modules[_FSDP], "FSDPModule", None)
    return kind is not None and isinstance(module, kind)


def sources(x: Tensor, most: int) -> list[DistributedSpec] | None:
    """Return the specs of the distributed tensors that a plain tensor was computed from.

    None if there are more than `most` operations in between.
    """
    first = x.grad_fn
    if first is None:
        return []
    found: list[DistributedSpec] = []
    waiting = [first]
    met = {first}
    while waiting:
        node = waiting.pop()
        spec = getattr(node, "dtensor_spec", None)
        if spec is not None:
            found.append(spec)
            continue
        for below, _ in node.next_functions:
            if below is not None and below not in met:
                met.add(below)
                waiting.append(below)
        if len(met) > most:
            return None
    return found


def is_grad_recorded() -> bool:
    """Whether operations leave a trace that `sources` can follow."""
    return torch.is_grad_enabled()
