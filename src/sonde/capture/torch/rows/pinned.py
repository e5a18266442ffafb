"""Places in pinned host memory, where rows of a CUDA device are brought to and read.

The device writes packed rows: for each 16 words, as they are in a row but for how many of its bins
are not empty and where these begin; then one word for each such bin, with its count and its number.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from sonde.kernels import cuda, layout
from sonde.record import Sketches

_MOST_PLACES: Final = 6
_PINNED_BYTES: Final = 256 << 20
"""Pinned host memory for rows: as many places as that is enough for, but two at least."""
_ID_BITS: Final = 11
_BEGIN, _BINS = 14, 13
_FEW_WORDS: Final = 512
"""Words of a place per row, where a step needs several: on the average rows have far fewer bins.
Where that is not enough, what is lost is said, and later places are larger."""


class PinnedPlace:
    """Pinned host memory that rows are brought to, and stay in until they are read."""

    def __init__(self, memory: cuda.RawMemory) -> None:
        self.memory = memory
        self.arrived = torch.cuda.Event(blocking=True)
        self.arrived.record()  # it has no number before
        self.is_busy = False


class PinnedPlaces:
    """The places of a table: `rows` is how many rows it has, `is_sliced` whether a step needs
    several of them. Rows from `slice_rows` on are those for CUDA graphs."""

    def __init__(self, kernel: cuda.Kernel, slice_rows: int) -> None:
        self._kernel = kernel
        self.slice_rows = slice_rows
        self._all: list[PinnedPlace] = []
        self._words = _FEW_WORDS
        self._is_closed = False
        self.rows = 0
        self.is_sliced = False

    @property
    def nbytes(self) -> int:
        return sum(place.memory.nbytes for place in list(self._all))

    @property
    def free(self) -> int:
        """How many more can be had."""
        return self._most - sum(place.is_busy for place in list(self._all))

    @property
    def can_wait(self) -> bool:
        """Whether there are enough of them for what comes next."""
        return 2 * self.free > self._most

    @property
    def _bytes(self) -> int:
        """Of a place. In one that a whole step goes to there is room for all bins of all rows."""
        return 8 * self.rows * (self._words if self.is_sliced else layout.WORDS)

    @property
    def _most(self) -> int:
        n = _PINNED_BYTES // max(self._bytes, 1)
        return max(n if self.is_sliced else min(n, _MOST_PLACES), 2)

    def get(self) -> PinnedPlace:
        """One that is free; it is not any more. Called where its device is the current one."""
        wanted = self._bytes
        place = next((p for p in self._all if not p.is_busy), None)
        if place is None:
            place = PinnedPlace(self._kernel.allocate(wanted, on_host=True))
            self._all.append(place)
        elif place.memory.nbytes != wanted:
            place.memory.free()
            place.memory = self._kernel.allocate(wanted, on_host=True)
        place.is_busy = True
        return place

    def put(self, place: PinnedPlace) -> None:
        """It was read."""
        if self._is_closed:
            place.memory.free()
        place.is_busy = False

    def widen(self) -> None:
        """There was not enough room: from now on there is twice as much."""
        self._words = min(2 * self._words, layout.WORDS)

    def close(self) -> None:
        """Give back those that are free; the others once they are read."""
        self._is_closed = True
        for place in self._all:
            if not place.is_busy:
                place.memory.free()


class PlacedRows:
    """Rows on their way to the host: the first `used` of a table, then those for CUDA graphs."""

    def __init__(self, places: PinnedPlaces, place: PinnedPlace, used: int, n_rows: int) -> None:
        self._places = places
        self._place = place
        self._used = used
        self._n_rows = n_rows
        self.size_bytes = place.memory.nbytes
        self.can_wait = places.can_wait

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        try:
            self._place.arrived.synchronize()  # sleeps, and lets other threads run
            words = np.frombuffer(self._place.memory.view(), dtype=np.int64)
            fixed = self._places.slice_rows
            where = np.where(rows < fixed, rows, rows - fixed + self._used)
            return unpacked(words, self._n_rows, where)
        except NoRoom:
            self._places.widen()
            raise
        finally:
            self._places.put(self._place)


class NoRoom(Exception):  # noqa: N818  # what is said of records that are lost for it
    """A row did not fit into the place where it was to be brought."""


def unpacked(words: NDArray[np.int64], n_rows: int, rows: NDArray[np.int64]) -> Sketches:
    """The chosen ones of `n_rows` packed rows as columns; copies.

    Raises:
        NoRoom: if some of them were not written.
    """
    heads = words[: n_rows * layout.HEADER].reshape(n_rows, layout.HEADER)[rows]
    begins, lengths = heads[:, _BEGIN], heads[:, _BINS]
    if (begins < 0).any():
        raise NoRoom("rows have more bins than there is room for; later steps have twice as much")
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    at = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    bins = words[n_rows * layout.HEADER :][at]
    return Sketches(
        heads[:, 0:6].copy(),
        heads[:, 6:10].copy().view(np.float64),
        heads[:, 10:13].copy().view(np.float64),
        offsets,
        (bins & ((1 << _ID_BITS) - 1)).astype(np.int16),
        bins >> _ID_BITS,
    )
