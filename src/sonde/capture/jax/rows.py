"""Rows on their way from devices to the drain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
from sonde.record import Site, SiteInfo, Sketches

_Touched = list[tuple[int, list[int]]]
"""Sites by number, each with its rows."""


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
    touched: dict[tuple[int, Collection[Site]], _Touched] = field(default_factory=dict)


class _HeldRows(NamedTuple):
    """Rows that wait for their step to end."""

    layout: Layout
    fetched: FetchedRows
    phase: str
    types: Mapping[str, str]
    is_given: bool


class DeviceRows(ArrayRows):
    """Takes arrays of numpy's as they are, and rows that functions return.

    Rows are held until their step ends: what a user gives by hand stands in place of what a
    function showed at the same site.
    """

    def __init__(self, drain: Drain) -> None:
        super().__init__(drain)
        self._held: list[_HeldRows] = []

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys([*super().phases, *(held.phase for held in self._held)]))

    @property
    def has_room(self) -> bool:
        return self._drain.has_room

    def put(
        self,
        layout: Layout,
        rows: Array,
        phase: str,
        types: Mapping[str, str],
        *,
        is_given: bool = False,
    ) -> None:
        """Take the rows of a function, without waiting for them."""
        fetched = FetchedRows(rows)
        if fetched.n_devices:
            self._held.append(_HeldRows(layout, fetched, phase, types, is_given))

    def hand_over(self, steps: dict[str, int]) -> bool:
        has_room = self._drain.has_room
        ended = [held for held in self._held if held.phase in steps]
        self._held = [held for held in self._held if held.phase not in steps]
        if has_room:
            for held in ended:
                given = () if held.is_given else _given(ended, held.phase)
                self._send(held, steps[held.phase], given)
        super().hand_over(steps)  # ends those phases, also where it holds nothing of them
        return has_room

    def _send(self, held: _HeldRows, step: int, given: Collection[Site]) -> None:
        layout, n = held.layout, held.fetched.n_devices
        touched = layout.touched.get((n, given))
        if touched is None:
            touched = layout.touched[n, given] = [
                (
                    self._declare(h, held.types),
                    [d * layout.n_rows + r for d in range(n) for r in h.rows],
                )
                for h in layout.harvested
                if h.site not in given
            ]
        if touched:
            window = Window(touched={held.phase: touched})
            self._drain.put(WindowRows({held.phase: step}, held.fetched, window, self._new))
            self._new = []

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


def _given(held: Sequence[_HeldRows], phase: str) -> Collection[Site]:
    """The sites of a phase that were given by hand."""
    layouts = [h.layout for h in held if h.is_given and h.phase == phase]
    return frozenset(h.site for layout in layouts for h in layout.harvested) if layouts else ()
