"""Rows for arrays that numpy reads: which site's numbers stand where, until a step ends.

Sketches are made at once, on the thread that hands an array over, so nothing of it is kept.
"""

from __future__ import annotations

import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.capture.drain import Drain, StepEnd, WindowRows
from sonde.capture.window import Window
from sonde.kernels import arrays
from sonde.kernels.layout import Table, new_table, unpack
from sonde.record import Site, SiteInfo, Sketches

_THREADS: Final = min(4, os.cpu_count() or 1)


class ArrayRows:
    """Takes arrays; hands the rows of a step to the drain."""

    def __init__(self, drain: Drain) -> None:
        self._drain = drain
        self._ids: dict[tuple[Site, str], int] = {}
        self._new: list[SiteInfo] = []
        self._table: Table = new_table(8)
        self._rows: dict[tuple[str, int], int] = {}

    @property
    def memory(self) -> dict[str, int]:
        """What rows take, in bytes, and for how many sites."""
        return {"sites": len(self._ids), "host_bytes": self._table.nbytes, "device_bytes": 0}

    @property
    def phases(self) -> list[str]:
        """The phases of which anything is held."""
        return list(dict.fromkeys(phase for phase, _ in self._rows))

    def add(self, site: Site, phase: str, array: NDArray[np.generic], module_type: str) -> None:
        """Add the sketch of an array at a site in a phase.

        Raises:
            TypeError: If the array holds no numbers.
        """
        declared = self._ids.get((site, array.dtype.name), len(self._ids))
        row = self._rows.get((phase, declared), len(self._rows))
        if row == len(self._table):
            self._table = np.concatenate([self._table, new_table(row)])
        arrays.add(self._table, row, array, threads=_THREADS)
        self._rows[phase, declared] = row
        if declared == len(self._ids):
            self._ids[site, array.dtype.name] = declared
            info = SiteInfo(declared, site, array.dtype.name, array.shape, module_type)
            self._new.append(info)

    def hand_over(self, steps: dict[str, int]) -> bool:
        """Give what is held of these phases to the drain, each as of its step; all of it if the
        drain has room, else nothing. Returns whether it had."""
        held = {key: row for key, row in self._rows.items() if key[0] in steps}
        window = Window()
        for (phase, site), row in held.items():
            window.touched.setdefault(phase, []).append((site, [row]))
        has_room = self._drain.has_room
        filled = self._table
        if held:  # first: a signal handler may raise, and rows must not be handed over twice
            kept = {key: row for key, row in self._rows.items() if key not in held}
            table = new_table(max(8, len(self._rows)))
            for new, old in enumerate(kept.values()):
                table[new] = filled[old]
            self._table, self._rows = table, dict(zip(kept, range(len(kept)), strict=True))
        if held and has_room:
            self._drain.put(WindowRows(steps, _FilledTable(filled), window, self._new))
            self._new = []
        for phase, step in steps.items():
            self._drain.put(StepEnd(step, phase, dropped=not has_room))
        return has_room


class _FilledTable:
    """A table that was handed over: nothing else writes to it any more."""

    can_wait = True

    def __init__(self, table: Table) -> None:
        self._table = table
        self.size_bytes = table.nbytes

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        return unpack(self._table[rows])
