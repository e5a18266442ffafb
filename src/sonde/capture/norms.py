"""Norms of all gradients of a step, out of the sketches of its parameters' gradients.

Computed in the drain's thread from sums that are there anyway, so training does nothing for them.
A norm is that of the recorded parameters. Where a parameter is cut into parts that lie on several
ranks, no rank knows it: there is none here, and readers compute it from the sketches of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import COUNTS, FINAL, STAGES, SUMS, NumberBatch, SiteInfo, SketchBatch

NAMES: Final = {stage: "grad_norm" if stage == FINAL else f"grad_norm/{stage}" for stage in STAGES}
"""What the norm of each stage is called."""

_SUM_SQ: Final = SUMS.index("sum_sq")
_NANS: Final = COUNTS.index("nans")
_INFS: Final = [COUNTS.index("pos_infs"), COUNTS.index("neg_infs")]


class Norms:
    """Turns the sketches of a step into the norms of its gradients.

    Names in `taken` are left out: the user logs them.
    """

    def __init__(self, taken: Container[str] = ()) -> None:
        self._taken = taken
        self._stages = np.empty(0, np.int8)
        self._is_spread = False

    def declare(self, infos: Sequence[SiteInfo]) -> None:
        """Take note of sites; their ids are used by the batches that follow."""
        size = max((info.id for info in infos), default=-1) + 1
        if size > len(self._stages):
            more = np.full(max(size, 2 * len(self._stages)) - len(self._stages), -1, np.int8)
            self._stages = np.concatenate([self._stages, more])
        for info in infos:
            if info.site.kind == "param_grad":
                self._stages[info.id] = STAGES.index(info.site.stage)
                self._is_spread |= info.part is not None and (info.part, info.parts) != (0, 1)

    def of(self, batch: SketchBatch) -> NumberBatch | None:
        """The norms of a step; None if it has no gradients of parameters."""
        if batch.phase != "train" or self._is_spread:
            return None
        stages = self._stages[batch.ids]
        found = {
            name: _norm(batch, stages == i)
            for i, name in enumerate(NAMES.values())
            if name not in self._taken and (stages == i).any()
        }
        if not found:
            return None
        names = list(found)
        where: list[str | None] = [None] * len(names)
        return NumberBatch(batch.step, batch.phase, names, where, np.array(list(found.values())))


def _norm(batch: SketchBatch, rows: NDArray[np.bool_]) -> float:
    counts = batch.sketches.counts[rows]
    if counts[:, _NANS].any():
        return math.nan
    if counts[:, _INFS].any():
        return math.inf
    return math.sqrt(float(batch.sketches.sums[rows, _SUM_SQ].sum()))
