"""The store of `torch.distributed`, for gathering: every rank reaches it, without collectives."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from sonde._signals import pass_on
from sonde.tracing.torch.internals import default_store
from sonde.tracing.torch.tensor_ops import from_raw, map_tensors, plain, raw
from sonde.tracing.values import ObjectCopy


def rank_and_world() -> tuple[int, int] | None:
    """Rank and number of ranks; None where there is only this process."""
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


class SharedStore:
    """See `sonde.tracing.gathering.KeyValueStore`."""

    def __init__(self, prefix: str) -> None:
        store: Any = default_store()
        clone = getattr(store, "clone", None)
        with contextlib.suppress(RuntimeError, NotImplementedError):
            # A connection of its own: a long wait elsewhere does not hold it up.
            store = clone() if clone is not None else store
        prefixed: Any = dist.distributed_c10d.PrefixStore
        self._store = prefixed(f"sonde/{prefix}", store)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        found: bytes = self._store.get(key)
        return found

    def add(self, key: str, amount: int) -> int:
        found: int = self._store.add(key, amount)
        return found

    def delete(self, key: str) -> None:
        try:
            self._store.delete_key(key)
        except (RuntimeError, NotImplementedError) as error:
            pass_on(error)
            self._store.set(key, b"")  # a store that keeps all keys at least keeps no values


class TensorCodec:
    """Nested values with tensors as bytes. The modules of the store are given by the owner."""

    def __init__(self, packing: ModuleType, safetensors: ModuleType) -> None:
        self._packing = packing
        self._safetensors = safetensors

    def encode(self, value: object) -> bytes:
        tree, arrays = self._packing.flatten(to_arrays(value, self._packing.PackedArray))
        named = [(str(n), array) for n, array in enumerate(arrays)]
        data: bytes = self._safetensors.encode(named, {"sonde": json.dumps(tree)})[0]
        return data

    def decode(self, data: bytes) -> object:
        found, metadata = self._safetensors.decode(data)
        tree = json.loads(metadata["sonde"])
        places = sorted(_places(tree), key=lambda p: p["v"])
        values = [self._value(p, found[str(p["v"])].data) for p in places]
        return self._packing.unflatten(tree, values, ObjectCopy)

    def _value(self, place: Mapping[str, Any], data: bytes | memoryview) -> object:
        """A tensor, or the numpy array that it was."""
        dtype, shape = place["dtype"], tuple(place["shape"])
        self._packing.check_shape(dtype, shape, len(data))
        if place.get("numpy"):
            return self._packing.decode(dtype, shape, data)
        return from_raw(dtype, shape, data)


def to_arrays(value: object, array: Callable[..., object]) -> object:
    """A kept value with each tensor as an array of bytes, made by `array`."""

    def change(tensor: Tensor) -> object:
        dense = plain(tensor)
        return array(str(dense.dtype).removeprefix("torch."), tuple(dense.shape), raw(dense))

    return map_tensors(value, change)


def prefix_of(paths: Sequence[str], ordinal: int) -> str:
    """What the messages of a trace are called: the same on each rank that traces the same."""
    text = "\0".join([*paths, str(ordinal)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _places(tree: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.get("$") == "array":
                found.append(node)
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
    return found
