"""Slices of tensors: heads of attention, which are many and lie evenly in a few tensors.

To make a tensor for each of them takes longer than to read them. Where they lie follows from where
the tensors lie that they are slices of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, overload

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sonde.kernels.torch import is_plain

if TYPE_CHECKING:
    from sonde.capture.torch.rows.bundles import TensorShare

_ALIGNED: Final = 16
"""Bytes that kernels read at a time: where a slice begins within as many is part of its looks."""


class Slices(Sequence[Tensor]):
    """What tensors hold along their second dimension, one after the other; made when asked for."""

    __slots__ = ("_made", "wholes")

    def __init__(self, wholes: Sequence[Tensor]) -> None:
        self.wholes = wholes
        self._made: list[Tensor] | None = None

    def __len__(self) -> int:
        return sum(x.shape[1] for x in self.wholes)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._all())

    @overload
    def __getitem__(self, i: int) -> Tensor: ...
    @overload
    def __getitem__(self, i: slice) -> list[Tensor]: ...
    def __getitem__(self, i: int | slice) -> Tensor | list[Tensor]:
        return self._all()[i]

    def _all(self) -> list[Tensor]:
        if self._made is None:
            self._made = [one for x in self.wholes for one in x.unbind(1)]
        return self._made


class KnownSlices:
    """Slices that were seen before: where their sketches go, and where each lies in its tensor."""

    __slots__ = ("_first", "_looks", "_offsets", "_spots", "_which", "share")

    def __init__(self, spots: Sequence[object], share: TensorShare, slices: Slices) -> None:
        self.share = share
        self._spots = spots
        self._looks = _looks(slices)
        self._first = [x.data_ptr() for x in slices.wholes]
        counts = [x.shape[1] for x in slices.wholes]
        steps = [x.stride(1) * x.element_size() for x in slices.wholes]
        self._which = np.repeat(np.arange(len(counts)), counts)
        self._offsets = np.concatenate(
            [np.arange(n, dtype=np.int64) * step for n, step in zip(counts, steps, strict=True)]
        )

    def fits(self, spots: Sequence[object], slices: Slices) -> bool:
        """Whether these are the same spots, and slices that differ in nothing but their place."""
        return (
            self._spots is spots
            and self._looks == _looks(slices)
            and all(
                is_plain(x) and (x.data_ptr() - first) % _ALIGNED == 0
                for x, first in zip(slices.wholes, self._first, strict=True)
            )
        )

    def addresses(self, slices: Slices) -> bytes:
        """Where each of them lies, as int64."""
        wholes = np.array([x.data_ptr() for x in slices.wholes], dtype=np.int64)
        each: NDArray[np.int64] = wholes[self._which] + self._offsets
        return each.tobytes()


def _looks(slices: Slices) -> list[object]:
    return [(x.dtype, x.get_device(), x.shape, x.stride()) for x in slices.wholes]
