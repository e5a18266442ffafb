"""The recorder: from a tensor at a spot to a row on its device, and from full rows to the drain.

Knows devices, site ids and windows; knows nothing of modules, hooks and schedules. Not thread-safe:
the capture serialises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor

from sonde.capture.drain import Drain, End, Part
from sonde.capture.rows import Row, Rows, Spot
from sonde.capture.torch.tables import Sketcher, difference
from sonde.capture.torch.troubles import Troubles
from sonde.kernels import torch as plain
from sonde.kernels.torch import Unsupported, name_of
from sonde.record import Site, SiteInfo

MAX_ROWS: Final = 1 << 16
"""Rows per device, 1 GiB: sites beyond are skipped and counted."""

Tables = Callable[[torch.device], Sketcher]


class Recorder:
    """Takes tensors; hands windows of rows to the drain."""

    def __init__(self, drain: Drain, troubles: Troubles, tables: Tables) -> None:
        self._drain = drain
        self._troubles = troubles
        self._tables = tables
        self._devices: dict[torch.device, Rows] = {}
        self._ids: dict[tuple[Site, torch.dtype], int] = {}
        self._new_sites: list[SiteInfo] = []
        self._dropped: set[tuple[str, int]] = set()
        self._handed: set[tuple[str, int]] = set()

    def table_on(self, device: torch.device) -> Sketcher:
        """The table of that device."""
        return self._rows_of(device).table  # type: ignore[return-value]  # made by `tables`

    @property
    def has_shared(self) -> bool:
        """Whether spots share rows: what comes next must go into new ones."""
        return any(rows.window.has_shared for rows in self._devices.values())

    # -- tensors in ----------------------------------------------------------------------------

    def add(self, spot: Spot, x: Tensor, row: Row | None = None) -> Row | None:
        """Sketch `x` at the spot, or point to the row that already holds it; the row that does."""
        rows = self._rows_of(x.device)
        if spot.dtype is not x.dtype or spot.rows is not rows:
            spot = self._declared(spot, x, rows)
        if spot.off:
            return None
        if row is not None and rows.share(spot, row):
            return row
        if x.numel() == 0:
            rows.touch(spot)
            return None
        opened = self._open(spot, rows)
        if opened is None:
            return None
        table: Sketcher = rows.table  # type: ignore[assignment]
        try:
            table.add(opened.index, x)
        except Unsupported as reason:
            spot.off = True
            rows.undo(spot, opened)
            self._troubles.skip(spot.site.name, str(reason))
            return None
        except Exception as error:
            spot.off = True
            rows.forget(spot)
            self._troubles.failed(spot.site.name, error)
            return None
        except BaseException:  # the user interrupts: leave nothing half-done
            rows.forget(spot)
            raise
        return opened

    @torch.no_grad()
    def add_many(
        self,
        found: Sequence[tuple[Spot, Tensor]],
        *,
        copies: Sequence[Tensor | None] = (),
        olds: Sequence[Tensor] = (),
    ) -> None:
        """Sketch many tensors: per device in one go where they are dense, one by one where not.

        With `copies`, each tensor that has one is copied there on the way. With `olds`, it is the
        difference to these that is sketched.
        """
        batches: dict[Rows, _Batch] = {}
        for i, (spot, x) in enumerate(found):
            copy = copies[i] if copies else None
            old = olds[i] if olds else None
            rows = self._rows_of(x.device)
            if (
                plain.is_plain(x)
                and plain.is_dense(x)
                and x.numel()
                and (old is None or old.stride() == x.stride())
            ):
                if spot.dtype is not x.dtype or spot.rows is not rows:
                    spot = self._declared(spot, x, rows)
                row = None if spot.off else self._open(spot, rows)
                if row is not None:
                    batch = batches.get(rows)
                    if batch is None:
                        batch = batches[rows] = _Batch()
                    batch.put(spot, row.index, x, copy, old)
                    continue
            elif not spot.off:
                self.add(spot, x.detach() if old is None else difference(x, old))
            if copy is not None:
                copy.copy_(x)
        for rows, batch in batches.items():
            self._give(rows, batch)

    # -- windows out ---------------------------------------------------------------------------

    def hand_over(self, step_of: Callable[[str], int]) -> None:
        """Give what was filled so far to the drain; drop the step if that would mean to wait."""
        for rows in self._devices.values():
            if not rows.window.touched:
                continue
            steps = {phase: step_of(phase) for phase in rows.window.touched}
            table: Sketcher = rows.table  # type: ignore[assignment]
            if self._drain.has_room and table.can_take and self._dropped.isdisjoint(steps.items()):
                filled, window = rows.take()
                sites, self._new_sites = self._new_sites, []
                self._drain.put(Part(steps, filled, window, sites))
                self._handed.update(steps.items())
            else:
                rows.discard()
                self._dropped.update(steps.items())

    def end(self, phase: str, step: int) -> bool:
        """All of that step and phase was handed over; false if it had to be dropped."""
        key = (phase, step)
        dropped = key in self._dropped
        self._dropped.discard(key)
        self._handed.discard(key)
        self._drain.put(End(step, phase, dropped))
        return not dropped

    def end_phases(self, *, besides: str) -> None:
        """End every other phase that has something waiting."""
        for phase, step in list(self._handed | self._dropped):
            if phase != besides:
                self.end(phase, step)

    # -- inside --------------------------------------------------------------------------------

    def _rows_of(self, device: torch.device) -> Rows:
        rows = self._devices.get(device)
        if rows is None:
            rows = self._devices[device] = Rows(self._tables(device), MAX_ROWS)
        return rows

    def _declared(self, spot: Spot, x: Tensor, rows: Rows) -> Spot:
        """The spot for tensors of this dtype and device; its site is declared when it is new."""
        spot = spot.variant(x.dtype, rows)
        if spot.rows is None:
            spot.dtype, spot.rows = x.dtype, rows
            site = spot.site
            known = self._ids.get((site, x.dtype))
            if known is None:
                known = self._ids[site, x.dtype] = len(self._ids)
                self._new_sites.append(
                    SiteInfo(known, site, name_of(x.dtype), tuple(x.shape), spot.module_type)
                )
            spot.id = known
        return spot

    def _open(self, spot: Spot, rows: Rows) -> Row | None:
        row = rows.open_row(spot)
        if row is None:
            spot.off = True
            self._troubles.skip(spot.site.name, f"more than {rows.limit} rows on one device")
        return row

    def _give(self, rows: Rows, batch: _Batch) -> None:
        table: Sketcher = rows.table  # type: ignore[assignment]
        copies = batch.copies if any(x is not None for x in batch.copies) else ()
        try:
            table.add_many(batch.indices, batch.tensors, copies=copies, olds=batch.olds)
        except BaseException:
            for spot in batch.spots:
                rows.forget(spot)
            raise


class _Batch:
    """Tensors of one device, to be sketched together."""

    __slots__ = ("copies", "indices", "olds", "spots", "tensors")

    def __init__(self) -> None:
        self.spots: list[Spot] = []
        self.indices: list[int] = []
        self.tensors: list[Tensor] = []
        self.copies: list[Tensor | None] = []
        self.olds: list[Tensor] = []

    def put(
        self, spot: Spot, index: int, x: Tensor, copy: Tensor | None, old: Tensor | None
    ) -> None:
        self.spots.append(spot)
        self.indices.append(index)
        self.tensors.append(x)
        self.copies.append(copy)
        if old is not None:
            self.olds.append(old)
