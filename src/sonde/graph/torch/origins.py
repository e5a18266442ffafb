"""Origins: where the data in a tensor came from, while a model runs.

An origin is a node inside a frame (a call that is going on or is over). Tensors are told apart
by storage, then by region of the storage, then by identity: a view shares the data of its base,
a module that returns a view of its input returns something else than its input, and one that
returns the very same tensor is taken to have made it.

Storages are held weakly. While that lasts an address is not used again for another storage, though
its memory is free; so nothing is kept alive, and nothing is mistaken for something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import ref

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from sonde._signals import pass_on
from sonde._torch_internals.tensors import storage_key

Region = tuple[int, tuple[int, ...], tuple[int, ...]]


class CallFrame:
    """A call of a module: a level of the graph. `overlay` says what its own inputs are to it."""

    __slots__ = ("depth", "node", "overlay", "parent", "took_outside")

    def __init__(self, node: str, parent: CallFrame | None) -> None:
        self.node = node
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.overlay: dict[int, _Store] = {}
        self.took_outside = False
        """Whether something was used in it that was not passed to it."""


Origin = tuple[CallFrame, str]
Origins = frozenset[Origin]

NOTHING: Final[Origins] = frozenset()

_MAX_REGIONS: Final = 256
"""Parts of one storage that are told apart; a storage with more is taken as a whole."""


class _Store:
    """What is known of one storage: of all of it, of regions, and of tensors by identity."""

    __slots__ = ("base", "objects", "regions", "weak")

    def __init__(self, weak: object) -> None:
        self.weak = weak
        self.base = NOTHING
        self.regions: dict[Region, Origins] = {}
        self.objects: dict[int, tuple[ref[Tensor], Origins]] = {}

    def object(self, x: Tensor) -> Origins | None:
        known = self.objects.get(id(x))
        return known[1] if known is not None and known[0]() is x else None

    def region(self, region: Region) -> Origins:
        """Of a region that has no entry: of everything that may share data with it."""
        found = self.regions.get(region)
        if found is not None:
            return found
        shared = self.base
        for other, origins in self.regions.items():
            if not _are_apart(other, region):
                shared |= origins
        return shared

    def write(self, region: Region, origins: Origins, *, is_part: bool) -> None:
        """The region was written to: all that shares data with it is touched."""
        if is_part and len(self.regions) < _MAX_REGIONS:
            for other, known in self.regions.items():
                if other != region and not _are_apart(other, region):
                    self.regions[other] = known | origins
        else:
            self.base = origins if not is_part else self.base | origins
            self.regions.clear()
        self.regions[region] = origins


class TensorOrigins:
    """Who made what, in one pass. `ignored` are tensors that carry no data from call to call:
    parameters and buffers."""

    def __init__(self, ignored: Iterable[Tensor]) -> None:
        self._stores: dict[int, _Store] = {}
        self._ignored = {key for x in ignored if (key := _key(x)) is not None}

    def of(self, x: Tensor, frame: CallFrame) -> Origins:
        """Where the tensor comes from, as seen from a frame: the innermost that knows counts."""
        key = _key(x)
        if key is None:
            return NOTHING
        is_ignored = key in self._ignored
        region = _region(x)
        at: CallFrame | None = frame
        while at is not None:
            store = at.overlay.get(key)
            if store is not None:
                found = store.object(x)
                if found is None and not is_ignored:
                    found = store.region(region)
                if found:
                    return found
            at = at.parent
        store = None if is_ignored else self._stores.get(key)
        return NOTHING if store is None else store.region(region)

    def made(self, x: Tensor, origins: Origins) -> None:
        """An operation returned the tensor: a new one, or a view of one that is known."""
        key = _key(x)
        if key is None or key in self._ignored or not origins:
            return
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = _Store(_weak(x))
            store.base = origins
        store.regions.setdefault(_region(x), origins)

    def viewed(self, x: Tensor, origins: Origins) -> None:
        """An operation returned a view of data that may not have an entry yet. A region that was
        written by itself is known better than what it was taken from."""
        key = _key(x)
        if key is None or key in self._ignored or not origins:
            return
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = _Store(_weak(x))
        store.regions.setdefault(_region(x), origins)

    def written(self, x: Tensor, origins: Origins, frame: CallFrame) -> None:
        """The data of the tensor was changed in place."""
        key = _key(x)
        if key is None or key in self._ignored:
            return
        store = self._stores.get(key)
        if store is None:
            store = self._stores[key] = _Store(_weak(x))
        self._settle(key, store, frame)
        store.write(_region(x), origins, is_part=_is_part(x))

    def passed(self, x: Tensor, origins: Origins, frame: CallFrame, *, is_input: bool) -> None:
        """To this frame the tensor comes from there, whatever it is to others."""
        key = _key(x)
        if key is None:
            return
        store = frame.overlay.get(key)
        if store is None:
            store = frame.overlay[key] = _Store(_weak(x))
        if is_input:
            origins |= store.object(x) or NOTHING  # the same tensor may be passed twice
            if key not in self._ignored:
                store.regions[_region(x)] = origins
        store.objects[id(x)] = (ref(x), origins)

    @staticmethod
    def _settle(key: int, store: _Store, frame: CallFrame) -> None:
        """What frames know of a storage becomes known to all, before it changes."""
        chain = []
        at: CallFrame | None = frame
        while at is not None:
            over = at.overlay.pop(key, None)
            if over is not None:
                chain.append(over)
            at = at.parent
        for over in reversed(chain):
            store.regions.update(over.regions)


def _key(x: Tensor) -> int | None:
    try:
        return storage_key(x)
    except Exception as error:
        pass_on(error)
        return None  # no storage of its own: sparse, a wrapper of a transformation


def _weak(x: Tensor) -> object:
    return StorageWeakRef(x.untyped_storage())


def _region(x: Tensor) -> Region:
    try:
        return (int(x.storage_offset()), tuple(x.shape), tuple(x.stride()))
    except Exception as error:
        pass_on(error)
        return (0, (), ())


def _is_part(x: Tensor) -> bool:
    """Whether the storage holds more than the tensor."""
    return x.numel() * x.element_size() < x.untyped_storage().nbytes()


def _are_apart(a: Region, b: Region) -> bool:
    """Whether two regions surely share no element: one ends before the other begins, or both are
    slices of the same rows (or columns) that lie beside each other."""
    (a_low, a_high), (b_low, b_high) = _span(a), _span(b)
    if a_high <= b_low or b_high <= a_low:
        return True
    a_pitch, a_width = _inner(a)
    b_pitch, b_width = _inner(b)
    if a_pitch != b_pitch or a_pitch <= 0:
        return False
    a_at, b_at = a[0] % a_pitch, b[0] % b_pitch
    if a_at + a_width > a_pitch or b_at + b_width > b_pitch:
        return False
    return a_at + a_width <= b_at or b_at + b_width <= a_at


def _span(region: Region) -> tuple[int, int]:
    offset, shape, stride = region
    if 0 in shape:
        return offset, offset
    return offset, offset + 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _inner(region: Region) -> tuple[int, int]:
    """The largest step of a region, and how far it reaches without that step."""
    _, shape, stride = region
    steps = sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1)
    if not steps:
        return 0, 1
    return steps[-1][0], 1 + sum((n - 1) * s for s, n in steps[:-1])
