"""Bundles: tensors that are seen together again and again, and what is prepared for them once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde._signals import pass_on
from sonde._torch_internals.tensors import stands_for_zeros
from sonde.capture.torch.rows.host import DeviceRows, TensorCopies
from sonde.capture.window import SiteGroup, Spot

_VECTOR: Final = 16
"""Bytes that kernels read at a time."""

Kept = Sequence["TensorCopies | Tensor"]
"""Copies of a bundle's tensors: one for each share, then one for each odd tensor."""


class TensorShare(NamedTuple):
    """Tensors of a bundle that are dense and on one device: as many as are read together."""

    rows: DeviceRows
    group: SiteGroup
    positions: list[int]
    offsets: NDArray[np.int64]

    def of(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Those of the tensors that are this share."""
        if len(self.positions) == len(tensors):
            return tensors
        return [tensors[k] for k in self.positions]


class TensorLooks(NamedTuple):
    """What a tensor must be like to be read as another one was. `offset` says for what does not lie
    in order where it begins: kernels read whole vectors of it."""

    size: int
    dtype: torch.dtype
    device: int
    stride: tuple[int, ...]
    offset: int


def looks_of(x: Tensor) -> TensorLooks:
    offset = 0 if _is_in_order(x) else x.data_ptr() % _VECTOR
    return TensorLooks(x.numel(), x.dtype, x.get_device(), x.stride(), offset)


def _is_in_order(x: Tensor) -> bool:
    """Whether its values lie one after the other, or not at any address at all."""
    return x.layout is not torch.strided or x.is_contiguous()


class TensorBundle:
    """Sites whose tensors are seen together, again and again: all parameters of an optimizer.

    What can be prepared for them is prepared once: a step costs little more than a launch.
    """

    __slots__ = ("_sizes", "_strides", "_types", "_views", "looks", "odd", "shares", "spots")

    def __init__(self, spots: list[Spot], tensors: Sequence[Tensor]) -> None:
        self.spots = spots
        self.shares: list[TensorShare] = []
        self.odd: list[int] = []
        self.resize(tensors)

    def resize(self, tensors: Sequence[Tensor]) -> None:
        """Be for tensors of these sizes."""
        self.looks = [looks_of(x) for x in tensors]
        self._sizes = [looks.size for looks in self.looks]
        self._strides = [looks.stride for looks in self.looks]
        self._types = [(looks.dtype, looks.device) for looks in self.looks]
        self._views = [k for k, x in enumerate(tensors) if not _is_in_order(x)]

    def fits(self, tensors: Sequence[Tensor | None]) -> TypeGuard[Sequence[Tensor]]:
        """Whether all are there, and as they were prepared for.

        Asked for hundreds of tensors at every recorded step, so each question is one call of torch
        for all of them. Only views are looked at one by one.
        """
        here = [x for x in tensors if x is not None]
        if not len(here) == len(tensors) == len(self.looks):
            return False
        try:
            return (
                list(map(Tensor.numel, here)) == self._sizes
                and list(map(Tensor.stride, here)) == self._strides
                and [(x.dtype, x.get_device()) for x in here] == self._types
                and not any(map(stands_for_zeros, here))
                and [k for k, x in enumerate(here) if not _is_in_order(x)] == self._views
                and all(self.fits_at(k, here[k]) for k in self._views)
            )
        except (AttributeError, RuntimeError, TypeError) as error:  # sparse, nested: no strides
            pass_on(error)
            return all(map(self.fits_at, count(), here))

    def copies(self, tensors: Sequence[Tensor], kept: Kept) -> Iterator[tuple[int, Tensor]]:
        """The copies that were kept of these tensors, each with its place among them."""
        if self.shares and all(isinstance(copy, Tensor) for copy in kept):  # kept one by one
            yield from ((k, copy) for k, copy in enumerate(kept) if isinstance(copy, Tensor))
            return
        for share, copies in zip(self.shares, kept, strict=False):
            assert isinstance(copies, TensorCopies)
            for i, k in enumerate(share.positions):
                yield k, copies.like(i, tensors[k])
        for k, copy in zip(self.odd, kept[len(self.shares) :], strict=True):
            assert isinstance(copy, Tensor)
            yield k, copy

    def fits_at(self, k: int, x: Tensor | None) -> bool:
        """Whether this one is there, and as it was prepared for: in memory, too."""
        if x is None or stands_for_zeros(x):
            return False
        return looks_of(x) == self.looks[k]
