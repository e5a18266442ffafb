"""Placement: which part of a logical tensor this rank holds, so that readers count it once.

A *part* is a number. Rows of one site and step with the same part hold the same values, and one of
them counts; `parts` is how many different ones make the whole tensor.

- Parameters, gradients, updates and optimizer state are parts of one logical tensor. The part is
  the place in the mesh, over those dimensions that shard it; a plain parameter is part 0 of 1.
- Activations differ between ranks that have batches of their own, and have no part then. Ranks of
  a tensor-parallel group share a batch: what they hold alike has the part of the lowest rank.

Everything is decided from placements: no rank asks another.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from weakref import ref

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde._signals import pass_on
from sonde._torch_internals.placements import (
    DistributedSpec,
    data_meshes,
    is_grad_recorded,
    sources,
)
from sonde.capture.torch.ranks.local import is_distributed

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.tensor import DTensor, Shard

_MOST_OPERATIONS: Final = 4096
_OWN_BATCH: Final = ("dp", "fsdp", "data", "batch", "repl", "ep", "expert", "cp", "context", "pp")
"""How names of mesh dimensions begin whose ranks have different batches or different modules."""

Line = tuple[int, ...]
"""Ranks along one dimension of a mesh."""


class TensorPart(NamedTuple):
    """What of a tensor is held here. `part` is None for values that no other rank holds; `shape` is
    that of the whole tensor and `local` that of the part, where they differ."""

    part: int | None = None
    parts: int | None = None
    shape: tuple[int, ...] | None = None
    local: tuple[int, ...] | None = None


OWN: Final = TensorPart()
WHOLE: Final = TensorPart(0, 1)


class RankLayout:
    """The placement of a model's tensors on the ranks of a training."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ref(model)
        self._shards: dict[int, int] = {}
        self._group: SharedBatch | None = None
        self.refresh()

    def refresh(self) -> None:
        """Look at the model again: it has changed."""
        model = self._model()
        found = [] if model is None else list(model.modules())
        self._shards = dict(_flat_shards(found))
        data = {line for mesh in data_meshes(found) for line in _lines(mesh)}
        parameters = (p for module in found for p in module.parameters(recurse=False))
        distributed = [p for p in parameters if is_distributed(p)]
        for mesh in {p.device_mesh for p in distributed}:
            _read_dimensions(mesh)
        groups = [_shared_batch(p, data) for p in distributed]
        self._group = max((g for g in groups if g is not None), key=_size_of, default=None)

    @property
    def shares_batch(self) -> bool:
        """Whether other ranks have the same batch as this one."""
        return self._group is not None

    def of_parameter(self, parameter: Tensor) -> TensorPart:
        """The part of a parameter, and of all that belongs to it."""
        if is_distributed(parameter):
            return _part_of(parameter)
        shard = self._shards.get(id(parameter))
        return WHOLE if shard is None else TensorPart(shard)

    def of_activation(self, x: Tensor) -> TensorPart | None:
        """The part of an input or output of a module; None if that cannot be told from it."""
        if is_distributed(x):
            ranks = _ranks(x.device_mesh)
            at = x.device_mesh.get_coordinate()
            if at is None:
                return OWN
            kept = [i for i, p in enumerate(x.placements) if not p.is_replicate()]
            return _held_by(ranks, at, kept)._replace(shape=tuple(x.shape))
        group = self._group
        if group is None:
            return OWN
        if x.grad_fn is None and not is_grad_recorded():
            return None
        specs = sources(x, _MOST_OPERATIONS)
        if specs is None:
            return None
        sharded = {line for spec in specs for line in _sharded_lines(spec)}
        kept = [i for i, line in enumerate(group.lines) if line in sharded]
        return _held_by(group.ranks, group.at, kept)


class SharedBatch(NamedTuple):
    """Ranks that work on the same batch, this one at the place `at` of them."""

    ranks: NDArray[np.int64]
    at: Sequence[int]

    @property
    def lines(self) -> list[Line]:
        return [_line(self.ranks, self.at, i) for i in range(self.ranks.ndim)]


def _size_of(group: SharedBatch) -> int:
    return group.ranks.size


@lru_cache(maxsize=256)
def _ranks(mesh: DeviceMesh) -> NDArray[np.int64]:
    """The ranks of a mesh. Its tensor is read once, when a model is attached, and not in a step."""
    found: NDArray[np.int64] = mesh.mesh.cpu().numpy().astype(np.int64)
    return found


def _read_dimensions(mesh: DeviceMesh) -> None:
    """Read the meshes of single dimensions too: activations lie on those."""
    if mesh.ndim > 1:
        for name in mesh.mesh_dim_names or ():
            try:
                _ranks(mesh[name])
            except Exception as error:  # a part of another mesh may not be cut further
                pass_on(error)


def _line(ranks: NDArray[np.int64], at: Sequence[int], dim: int) -> Line:
    index: list[int | slice] = list(at)
    index[dim] = slice(None)
    return tuple(int(r) for r in ranks[tuple(index)])


def _lines(mesh: DeviceMesh) -> list[Line]:
    at = mesh.get_coordinate()
    ranks = _ranks(mesh)
    return [] if at is None else [_line(ranks, at, i) for i in range(ranks.ndim)]


def _sharded_lines(spec: DistributedSpec) -> Iterator[Line]:
    lines = _lines(spec.mesh)
    for line, placement in zip(lines, spec.placements, strict=False):
        if not placement.is_replicate():
            yield line


def _shared_batch(parameter: DTensor, data: set[Line]) -> SharedBatch | None:
    """The dimensions of a parameter's mesh whose ranks have the same batch."""
    mesh = parameter.device_mesh
    at = mesh.get_coordinate()
    if at is None:
        return None
    names = mesh.mesh_dim_names or [""] * mesh.ndim
    lines = _lines(mesh)
    shared = [
        i
        for i, (name, line) in enumerate(zip(names, lines, strict=True))
        if line not in data and not str(name).lower().startswith(_OWN_BATCH) and len(line) > 1
    ]
    if not shared:
        return None
    index = tuple(slice(None) if i in shared else at[i] for i in range(mesh.ndim))
    return SharedBatch(_ranks(mesh)[index], [at[i] for i in shared])


def _held_by(ranks: NDArray[np.int64], at: Sequence[int], kept: Sequence[int]) -> TensorPart:
    """The part of values that are alike along all dimensions but those kept."""
    index = tuple(at[i] if i in kept else slice(None) for i in range(ranks.ndim))
    holders = ranks[index]
    return OWN if np.size(holders) <= 1 else TensorPart(int(np.min(holders)))


def _part_of(x: DTensor) -> TensorPart:
    """The part of a parameter by its place in the mesh."""
    mesh, at, shape = x.device_mesh, x.device_mesh.get_coordinate(), tuple(x.shape)
    if at is None:
        return TensorPart(None, None, shape)
    sharding = [(i, p) for i, p in enumerate(x.placements) if not p.is_replicate()]
    sizes = [mesh.size(i) for i, _ in sharding]
    part = int(np.ravel_multi_index([at[i] for i, _ in sharding], sizes)) if sizes else 0
    places = [(cast("Shard", p), n) for (_, p), n in zip(sharding, sizes, strict=True)]
    held = tuple(x.to_local().shape) if sizes else shape
    return TensorPart(part, _filled_parts(shape, places), shape, held)


def _filled_parts(shape: tuple[int, ...], places: Sequence[tuple[Shard, int]]) -> int | None:
    """How many parts have values; None if they are cut in a way that is not known."""
    if not all(type(p).__name__ in {"Shard", "_StridedShard"} for p, _ in places):
        return None
    # What FSDP2 cuts a second time was cut by tensor parallelism before.
    ordered = sorted(places, key=lambda place: hasattr(place[0], "split_factor"))
    filled = 0
    for cut in product(*(range(n) for _, n in ordered)):
        sizes = list(shape)
        for (placement, n), i in zip(ordered, cut, strict=True):
            step = -(-sizes[placement.dim] // n)
            sizes[placement.dim] = max(0, min(step, sizes[placement.dim] - step * i))
        filled += math.prod(sizes) > 0
    return filled


def _flat_shards(modules: Sequence[nn.Module]) -> Iterator[tuple[int, int]]:
    """Parameters that FSDP1 keeps as slices of one flat shard, each with its part."""
    loaded = sys.modules.get("torch.distributed.fsdp")
    kind = None if loaded is None else getattr(loaded, "FullyShardedDataParallel", None)
    if kind is None:
        return
    for module in modules:  # outer ones first: the innermost wrapper has the last word
        if isinstance(module, kind):
            wrapper: FullyShardedDataParallel = module
            if wrapper.sharding_strategy.name == "NO_SHARD":
                continue
            group = wrapper.process_group
            assert group is not None, "a wrapper that shards has ranks to shard over"
            part = group.rank()
            yield from ((id(parameter), part) for parameter in wrapper.parameters())
