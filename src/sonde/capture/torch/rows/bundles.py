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
    is_view = x.layout is torch.strided and not x.is_contiguous()
    offset = x.data_ptr() % _VECTOR if is_view else 0
    return TensorLooks(x.numel(), x.dtype, x.get_device(), x.stride(), offset)


class TensorBundle:
    """Sites whose tensors are seen together, again and again: all parameters of an optimizer.

    What can be prepared for them is prepared once: a step costs little more than a launch.
    """

    __slots__ = ("_last", "looks", "odd", "shares", "spots")

    def __init__(self, spots: list[Spot], tensors: Sequence[Tensor]) -> None:
        self.spots = spots
        self.shares: list[TensorShare] = []
        self.odd: list[int] = []
        self._last: object = None
        self.resize(tensors)

    def resize(self, tensors: Sequence[Tensor]) -> None:
        """Be for tensors of these sizes."""
        self.looks = [looks_of(x) for x in tensors]

    def fits(self, tensors: Sequence[Tensor | None]) -> TypeGuard[Sequence[Tensor]]:
        """Whether all are there, and as they were prepared for."""
        try:
            # Where they lay when all was looked at: most of the time nothing has moved.
            here = [x for x in tensors if x is not None]
            now = (
                list(map(Tensor.data_ptr, here)),
                list(map(Tensor.numel, here)),
                list(map(Tensor.stride, here)),
                [x.dtype for x in here],
            )
        except (AttributeError, RuntimeError, TypeError) as error:  # one lies nowhere
            pass_on(error)
            now = None
        if now is not None and now == self._last:
            return True
        fits = len(tensors) == len(self.looks) and all(map(self.fits_at, count(), tensors))
        self._last = now if fits else None
        return fits

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
