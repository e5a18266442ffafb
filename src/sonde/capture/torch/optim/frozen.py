"""Parameters that nothing trains: read once, and again when they change.

torch counts most changes (`_version`), and a new storage has another address. A write through
`.data`, as in a momentum encoder, shows in neither. So such a parameter is read now and then all
the same, after 1, 2, 4, 8, ... recorded steps; if that record differs from the last one, it is read
at every recorded step from then on. Records are compared in the drain's thread, as a sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde._torch_internals.tensors import version_of
from sonde.capture.window import Spot
from sonde.record import SUMS, Event, NumberBatch, SiteInfo, SketchBatch

_PLAIN: Final = (Tensor, nn.Parameter)
_SUM: Final = SUMS.index("sum")
_SUM_ABS: Final = SUMS.index("sum_abs")
_SAME: Final = 1e-6
"""Sums that differ by less, relative to that of magnitudes, differ by the order of additions."""


class _State:
    """A parameter: how it was when it was read, and when it is read again."""

    __slots__ = ("asked", "found", "moves", "pause", "sign", "wait")

    def __init__(self) -> None:
        self.sign: tuple[int, int, int] | None = None
        self.pause = self.wait = 1
        self.moves = False
        self.asked: dict[int, bool] = {}  # steps whose record is to come: is it like the last one?
        self.found: NDArray[np.float64] | None = None


class FrozenParameters:
    """What is known of parameters that nothing trains. Also a sink: it compares their records."""

    name = "frozen parameters"

    def __init__(self) -> None:
        self._states: dict[Spot, _State] = {}
        self._by_id: dict[int, _State] = {}

    def to_read(
        self, spots: Sequence[Spot], tensors: Sequence[Tensor], step: int, lost: int
    ) -> list[Tensor | None]:
        """Those of the tensors that are to be read in this step, None in place of the others.

        `lost` is how many steps were dropped so far: their records have to be made again.
        """
        return [
            x if self._is_due(spot, x, step, lost) else None
            for spot, x in zip(spots, tensors, strict=True)
        ]

    def read(self, spots: Sequence[Spot]) -> None:
        """These have been read for the first time: compare what comes of them."""
        for spot in spots:
            if spot.id >= 0 and spot.id not in self._by_id:
                self._by_id[spot.id] = self._states[spot]

    def _is_due(self, spot: Spot, x: Tensor, step: int, lost: int) -> bool:
        state = self._states.get(spot)
        if state is None:
            state = self._states[spot] = _State()
        if state.moves or type(x) not in _PLAIN or x.is_inference():
            return True
        sign = (version_of(x), x.data_ptr(), lost)
        if sign != state.sign:
            state.sign = sign
            state.pause = state.wait = 1
            state.asked = {step: False}
            return True
        state.wait -= 1
        if state.wait > 0:
            return False
        state.pause *= 2
        state.wait = state.pause
        state.asked[step] = True
        return True

    # -- a sink ----------------------------------------------------------------------------------

    def sketches(self, batch: SketchBatch) -> None:
        """Compare records of these parameters with the last ones."""
        if not self._by_id or batch.phase != "train":
            return
        known = np.fromiter(self._by_id, dtype=np.int64, count=len(self._by_id))
        for i in np.flatnonzero(np.isin(batch.ids, known)):
            state = self._by_id[int(batch.ids[i])]
            is_like_last = state.asked.pop(batch.step, None)
            if is_like_last is None:  # from before a change, or from a time when it was trained
                continue
            sums, extrema = batch.sketches.sums[i], batch.sketches.extrema[i]
            last, state.found = state.found, np.concatenate([sums, extrema])
            if is_like_last and last is not None and not _is_same(last, state.found):
                state.moves = True

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        """Nothing to do with these, and with all that follow."""

    def numbers(self, batch: NumberBatch) -> None: ...

    def event(self, event: Event) -> None: ...

    def close(self, reason: str) -> None: ...


def _is_same(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    n = len(SUMS)
    scale = np.abs(a[:n])
    scale[_SUM] = scale[_SUM_ABS]  # which cancels
    close = np.abs(a[:n] - b[:n]) <= _SAME * scale
    return bool((close | (np.isnan(a[:n]) & np.isnan(b[:n]))).all()) and np.array_equal(
        a[n:], b[n:], equal_nan=True
    )
