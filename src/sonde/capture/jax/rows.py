"""Rows on their way from devices to the drain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jax import Array
from numpy.typing import NDArray

from sonde.capture.array_rows import ArrayRows
from sonde.capture.drain import Drain, WindowRows
from sonde.capture.jax.sites import Harvested
from sonde.capture.window import Window
from sonde.kernels import c
from sonde.kernels import jax as kernels
from sonde.kernels.layout import Table, unpack
from sonde.record import SiteInfo, Sketches


class FetchedRows:
    """Rows that a function has returned: on their way to the host from now on."""

    can_wait = True

    def __init__(self, rows: Array) -> None:
        self._shards = [s.data for s in rows.addressable_shards if s.replica_id == 0]
        for shard in self._shards:
            shard.copy_to_host_async()
        self.size_bytes = sum(int(shard.nbytes) for shard in self._shards)

    @property
    def n_devices(self) -> int:
        """Devices of this process that have rows of their own."""
        return sum(int(shard.shape[0]) for shard in self._shards)

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        tables: list[Table] = [kernels.table_of(shard) for shard in self._shards]
        self._shards = []
        table = tables[0] if len(tables) == 1 else np.concatenate(tables)
        if c.available():
            return c.pack(table, rows, empties=False)
        return unpack(table[rows])


@dataclass
class Layout:
    """Where a function's rows belong: found once, used whenever it runs."""

    harvested: Sequence[Harvested]
    n_rows: int
    touched: dict[int, list[tuple[int, list[int]]]] = field(default_factory=dict)


class DeviceRows(ArrayRows):
    """Takes arrays of numpy's as they are, and rows that functions return."""

    def __init__(self, drain: Drain) -> None:
        super().__init__(drain)
        self._open: dict[str, None] = {}

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys([*super().phases, *self._open]))

    @property
    def has_room(self) -> bool:
        return self._drain.has_room

    def put(
        self, layout: Layout, rows: Array, phase: str, step: int, types: Mapping[str, str]
    ) -> None:
        """Hand the rows of a function to the drain, without waiting for them."""
        fetched = FetchedRows(rows)
        n = fetched.n_devices
        if not n:
            return
        touched = layout.touched.get(n)
        if touched is None:
            touched = layout.touched[n] = [
                (self._declare(h, types), [d * layout.n_rows + r for d in range(n) for r in h.rows])
                for h in layout.harvested
            ]
        self._open[phase] = None
        if touched:
            window = Window(touched={phase: touched})
            self._drain.put(WindowRows({phase: step}, fetched, window, self._new))
            self._new = []

    def hand_over(self, steps: dict[str, int]) -> bool:
        has_room = self._drain.has_room
        super().hand_over(steps)  # ends those phases, also where it holds nothing of them
        for phase in steps:
            self._open.pop(phase, None)
        return has_room

    def _declare(self, harvested: Harvested, types: Mapping[str, str]) -> int:
        cut = harvested.cut
        key = (harvested.site, cut.dtype)
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            module_type = cut.tap.type or types.get(cut.tap.path, "")
            self._new.append(
                SiteInfo(
                    self._ids[key],
                    harvested.site,
                    cut.dtype,
                    cut.shape,
                    module_type,
                    cut.tap.requires_grad,
                )
            )
        return self._ids[key]
