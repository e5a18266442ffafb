"""The recorder: from a tensor at a spot to a row on its device, and from full rows to the drain.

Knows devices, site ids and windows; knows nothing of modules, hooks and schedules. Not thread-safe:
the capture serialises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from sonde._torch_internals.tensors import copy_each
from sonde.capture.drain import Drain, StepEnd, WindowRows
from sonde.capture.native import Place, Row
from sonde.capture.torch.facts import Facts, SiteFact
from sonde.capture.torch.ranks.local import local
from sonde.capture.torch.ranks.placement import TensorPart
from sonde.capture.torch.rows.bundles import Kept, TensorBundle, TensorShare
from sonde.capture.torch.rows.cuda_graphs import CapturedCudaGraph, can_capture
from sonde.capture.torch.rows.host import (
    FORMATS,
    DeviceRows,
    PlainTable,
    SketchTable,
    TensorCopies,
    difference,
    gated,
    is_one_stretch,
)
from sonde.capture.troubles import Troubles
from sonde.capture.window import NATIVE_PHASE, Rows, SiteGroup, Spot
from sonde.kernels.torch import Unsupported, name_of
from sonde.record import PARAMETER_KINDS, Site, SiteInfo

_TOGETHER: Final = 4
"""Tensors that are read together have at most this part of the rows of a window, one over it."""

Tables = Callable[[torch.device], SketchTable]


class Recorder:
    """Takes tensors; hands windows of rows to the drain."""

    def __init__(
        self,
        drain: Drain,
        troubles: Troubles,
        tables: Tables,
        step_of: Callable[[str], int] = lambda _phase: 0,
    ) -> None:
        self._drain = drain
        self._troubles = troubles
        self._tables = tables
        self._step_of = step_of
        self._devices: dict[torch.device, DeviceRows] = {}
        self._ids: dict[tuple[Site, torch.dtype], int] = {}
        self._infos: list[SiteInfo] = []
        self._new_sites: list[SiteInfo] = []
        self.facts: Facts | None = None
        self._dropped: set[tuple[str, int]] = set()
        self._handed: set[tuple[str, int]] = set()
        self._several: dict[tuple[Spot, ...], TensorBundle] = {}
        self._is_sliced = False
        self._memory: dict[str, int] | None = None
        self.capturing: CapturedCudaGraph | None = None

    def table_on(self, device: torch.device) -> SketchTable:
        """The table of that device."""
        return self._rows_of(device).table

    @property
    def has_shared(self) -> bool:
        """Whether spots share rows: what comes next must go into new ones."""
        return any(rows.has_shared for rows in self._devices.values())

    # -- tensors in ----------------------------------------------------------------------------

    def add(self, spot: Spot, x: Tensor, row: Row | None = None) -> Row | None:
        """Sketch `x` at the spot, or point to the row that already holds it; the row that does."""
        rows: DeviceRows | None = spot.rows
        if rows is None or spot.dtype is not x.dtype or rows.device != x.get_device():
            rows = self._rows_of(x.device)
            spot = self._declared(spot, x, rows)
        if spot.off:
            return None
        return (self._add if type(x) is Tensor else self._add_local)(spot, rows, x, row)

    def _add(self, spot: Spot, rows: DeviceRows, x: Tensor, row: Row | None) -> Row | None:
        """The same for a spot that is declared, and a tensor that lies here."""
        if self.capturing is not None:
            self._add_captured(self.capturing, spot, rows, x)
            return None
        if row is not None and rows.share(spot, row):
            if spot.place is None:
                self._give_place(spot, rows, None, x)
            return row
        if x.numel() == 0:
            rows.touch(spot)
            return None
        opened = rows.open_row(spot)
        if opened is None:
            self._hand_over(rows, early=True)
            opened = rows.open_row(spot)
            assert opened is not None
        if not self._sketch(spot, rows, opened, x):
            return None
        if (spot.place is None or spot.place.row is None) and opened is spot.own[0]:
            self._give_place(spot, rows, opened, x)
        return opened

    def _add_local(self, spot: Spot, rows: DeviceRows, x: Tensor, row: Row | None) -> Row | None:
        """The same for a tensor of another class: what of it lies on this rank."""
        try:
            return self._add(spot, rows, local(x), row)
        except Unsupported as reason:
            spot.switch_off()
            self._troubles.skip(spot.site.name, str(reason))
            return None

    def _sketch(self, spot: Spot, rows: DeviceRows, opened: Row, x: Tensor) -> bool:
        """Add the tensor to the open row; False if that cannot be, now or ever."""
        try:
            rows.table.add(opened.index, x)
        except Unsupported as reason:
            spot.switch_off()
            rows.undo(spot, opened)
            self._troubles.skip(spot.site.name, str(reason))
            return False
        except Exception as error:
            rows.forget(spot)
            self._troubles.pass_on(error)
            spot.switch_off()
            self._troubles.failed(spot.site.name, error)
            return False
        except BaseException:  # the user interrupts: leave nothing half-done
            rows.forget(spot)
            raise
        return True

    def _add_captured(
        self, captured: CapturedCudaGraph, spot: Spot, rows: DeviceRows, x: Tensor
    ) -> None:
        """A CUDA graph is being captured: each replay is to sketch what it finds there."""
        if not x.is_cuda or x.numel() == 0:
            return  # what happens elsewhere happens once, now
        table = gated(rows.table)
        index = captured.row(rows, spot) if can_capture(x) and table is not None else None
        if table is None or index is None:
            self._troubles.skip(spot.site.name, "cannot be read inside a CUDA graph")
        else:
            table.add(index, x, gated=True)

    def spare_rows(self, device: torch.device, n: int) -> None:
        """Have rows aside on that device, for the capture of a CUDA graph."""
        self._rows_of(device).make_spare(n)

    def loose(self, spots: list[Spot], tensors: Sequence[Tensor]) -> TensorBundle:
        """A bundle for which nothing is prepared."""
        bundle = TensorBundle(spots, tensors)
        bundle.odd = list(range(len(tensors)))
        return bundle

    @torch.no_grad()
    def add_together(self, bundle: TensorBundle, tensors: Sequence[Tensor | None]) -> None:
        """Sketch the tensors of a bundle, those that are there: per device in one go."""
        if bundle.fits(tensors):
            for share in bundle.shares:
                self._add_share(share, share.of(tensors), None)
            for k in bundle.odd:
                self._add_odd(bundle, k, tensors[k])
            return
        for share in bundle.shares:
            some = [i for i, k in enumerate(share.positions) if bundle.fits_at(k, tensors[k])]
            own = [x for i in some if (x := tensors[share.positions[i]]) is not None]
            if own:
                self._add_share(share, own, some)
        for k, x in enumerate(tensors):
            if k in bundle.odd or (x is not None and not bundle.fits_at(k, x)):
                self._add_odd(bundle, k, x)

    @torch.no_grad()
    def keep(self, bundle: TensorBundle, tensors: Sequence[Tensor], *, sketches: bool) -> Kept:
        """Copy the tensors of a bundle that fits them, and sketch them in the same go if asked."""
        kept: list[TensorCopies | Tensor] = []
        for share in bundle.shares:
            own = share.of(tensors)
            copies = TensorCopies(own, share.offsets)
            if sketches:
                self._add_share(share, own, None, copies=copies)
            else:
                own = [x.detach() for x in own]
                copy_each([copies.like(i, x) for i, x in enumerate(own)], own)
            kept.append(copies)
        for k in bundle.odd:
            if sketches:
                self._add_odd(bundle, k, tensors[k])
            kept.append(tensors[k].detach().clone())
        return kept

    @torch.no_grad()
    def add_changes(self, bundle: TensorBundle, tensors: Sequence[Tensor], since: Kept) -> None:
        """Sketch how much the tensors changed since they were kept, in a bundle just like this;
        this one fits them, too. Kept while they could not be read at their addresses, as in a
        `vmap`, there is a copy of each."""
        if (
            bundle.shares
            and len(since) == len(tensors)
            and all(isinstance(o, Tensor) for o in since)
        ):
            for k, old in enumerate(since):
                assert isinstance(old, Tensor)
                self._add_odd(bundle, k, difference(tensors[k], old))
            return
        for share, olds in zip(bundle.shares, since, strict=False):
            assert isinstance(olds, TensorCopies)
            self._add_share(share, share.of(tensors), None, olds=olds)
        for k, old in zip(bundle.odd, since[len(bundle.shares) :], strict=True):
            assert isinstance(old, Tensor)
            self._add_odd(bundle, k, difference(tensors[k], old))

    def add_several(self, spots: list[Spot], tensors: Sequence[Tensor]) -> None:
        """Sketch views that are seen together, of whatever sizes each time: in one go if it can
        be."""
        if self.capturing is not None:
            self.add_together(self.loose(spots, tensors), tensors)
            return
        key = tuple(spots)
        bundle = self._several.get(key)
        if bundle is None:
            bundle = self._several[key] = self.prepare(spots, tensors, copied=False)
        if not bundle.fits(tensors) and not self._refit(bundle, tensors):
            bundle = self.loose(spots, tensors)
        self.add_together(bundle, tensors)

    def _refit(self, bundle: TensorBundle, tensors: Sequence[Tensor]) -> bool:
        """Prepare the bundle for other sizes; whether it could be. Its rows are unchanged."""
        if len(bundle.shares) != 1 or bundle.odd:
            return False
        share = bundle.shares[0]
        table = share.rows.table
        was = [(looks.dtype, looks.device) for looks in bundle.looks]
        if [(x.dtype, x.get_device()) for x in tensors] != was:
            return False
        if not all(x.numel() and table.takes(x) for x in tensors):
            return False
        share.group.offsets = share.group.offsets.copy()  # its identity stood for the sizes
        bundle.resize(tensors)
        return True

    def prepare(
        self, spots: list[Spot], tensors: Sequence[Tensor], *, copied: bool = True
    ) -> TensorBundle:
        """A bundle for tensors like these: their sites are declared, and get rows if their tensors
        can be read together; if they are to be `copied` or compared, that too."""
        bundle = TensorBundle(spots, tensors)
        together: dict[DeviceRows, list[int]] = {}
        for k, x in enumerate(tensors):
            rows = self._rows_of(x.device)
            if x.numel() and (is_one_stretch(x) if copied else rows.table.takes(x)):
                together.setdefault(rows, []).append(k)
            else:
                bundle.odd.append(k)
        for rows, found in together.items():
            most = rows.limit // _TOGETHER
            for positions in (found[i : i + most] for i in range(0, len(found), most)):
                own = [tensors[k] for k in positions]
                declared = [self._declared(spots[k], tensors[k], rows) for k in positions]
                self._declare_changed(declared)
                group = SiteGroup([spot.id for spot in declared], spots[0].phase)
                bundle.shares.append(
                    TensorShare(rows, group, positions, TensorCopies.offsets_of(own))
                )
        return bundle

    def _add_share(
        self,
        share: TensorShare,
        tensors: Sequence[Tensor],
        some: list[int] | None,
        *,
        copies: TensorCopies | None = None,
        olds: TensorCopies | None = None,
    ) -> None:
        group = share.group
        if not share.rows.touch_group(group, some):
            self._hand_over(share.rows, early=True)
            share.rows.touch_group(group, some)
        offsets = group.offsets if some is None else group.offsets[some]
        table = share.rows.table
        try:
            table.add_many(offsets, tensors, first=group.first, copies=copies, olds=olds)
        except BaseException:
            share.rows.forget_group(group)
            raise

    def _add_odd(self, bundle: TensorBundle, k: int, x: Tensor | None) -> None:
        if x is not None and not bundle.spots[k].off:
            self.add(bundle.spots[k], x.detach())

    # -- windows out ---------------------------------------------------------------------------

    def hand_over(self, step_of: Callable[[str], int]) -> None:
        """Give what was filled so far to the drain; drop the step if that would mean to wait."""
        self._step_of = step_of
        for rows in self._devices.values():
            self._hand_over(rows)

    def _hand_over(self, rows: DeviceRows, *, early: bool = False) -> None:
        """The same for one device; `early` if its rows are used up in the middle of a step."""
        phases = rows.phases
        if not phases:
            if early:
                rows.discard()
            return
        if early and not self._is_sliced:
            self._is_sliced = True
            text = f"a step has more sites than {rows.limit}: it is recorded in parts, all of them"
            self._troubles.tell("sliced", text)
        steps = {phase: self._step_of(phase) for phase in phases}
        if self._drain.has_room and rows.table.can_take and self._dropped.isdisjoint(steps.items()):
            filled, window = rows.take(early=early)
            sites, self._new_sites = self._new_sites, []
            self._drain.put(WindowRows(steps, filled, window, sites))
            self._handed.update(steps.items())
        else:
            rows.discard()
            self._dropped.update(steps.items())

    def close(self) -> None:
        """Give back the memory of all rows. What was handed over is still read."""
        self._memory = self.memory
        for rows in self._devices.values():
            rows.table.close()
        for known in (self._several, self._ids, self._infos):
            known.clear()

    @property
    def memory(self) -> dict[str, int]:
        """What rows take, in bytes, and for how many sites: now, or before they were given back."""
        if self._memory is not None:
            return self._memory
        taken = [rows.table.nbytes for rows in list(self._devices.values())]
        return {
            "sites": len(self._ids),
            "host_bytes": sum(host for host, _ in taken),
            "device_bytes": sum(device for _, device in taken),
        }

    def end(self, phase: str, step: int) -> bool:
        """All of that step and phase was handed over; false if it had to be dropped."""
        key = (phase, step)
        dropped = key in self._dropped
        self._dropped.discard(key)
        self._handed.discard(key)
        self._drain.put(StepEnd(step, phase, dropped))
        return not dropped

    def end_phases(self, which: Callable[[str], bool] = lambda _phase: True) -> None:
        """End these phases (all by default), where something is waiting."""
        for phase, step in list(self._handed | self._dropped):
            if which(phase):
                self.end(phase, step)

    # -- inside --------------------------------------------------------------------------------

    def _rows_of(self, device: torch.device) -> DeviceRows:
        rows = self._devices.get(device)
        if rows is None:
            table = self._tables(device)
            rows = self._devices[device] = Rows(table, _index_of(device))
            if isinstance(table, PlainTable):
                self._troubles.slower(device.type, table.reason)
        return rows

    def _declared(self, spot: Spot, x: Tensor, rows: DeviceRows) -> Spot:
        """The spot for tensors of this dtype and device; its site is declared when it is new."""
        spot = spot.variant(x.dtype, rows)
        if spot.rows is None:
            spot.dtype, spot.rows = x.dtype, rows
            site = spot.site
            known = self._ids.get((site, x.dtype))
            if known is None:
                known = self._ids[site, x.dtype] = len(self._ids)
                facts = SiteFact() if self.facts is None else self.facts.of(site)
                part = facts.part if spot.part is None else spot.part
                info = SiteInfo(
                    known,
                    site,
                    name_of(x.dtype),
                    _shape_of(x, part),
                    spot.module_type,
                    facts.requires_grad,
                    facts.dropout_p,
                    part.part,
                    part.parts,
                )
                self._infos.append(info)
                self._new_sites.append(info)
            spot.id = known
        return spot

    def _declare_changed(self, spots: list[Spot]) -> None:
        """Declare those again of which something has changed: a parameter was frozen or thawed."""
        if self.facts is None:
            return
        for known in [self._infos[spot.id] for spot in spots]:
            facts = self.facts.of(known.site)
            info = replace(known, requires_grad=facts.requires_grad, dropout_p=facts.dropout_p)
            if known.site.kind in PARAMETER_KINDS:
                info = replace(info, part=facts.part.part, parts=facts.part.parts)
            if info != known:
                self._infos[known.id] = info
                self._new_sites.append(info)

    def _give_place(self, spot: Spot, rows: DeviceRows, row: Row | None, x: Tensor) -> None:
        """Let what comes next to this spot take the native path, if there is one."""
        code = FORMATS.get(x.dtype)
        if rows.book is not None and code is not None and spot.phase == NATIVE_PHASE:
            spot.leave_place()
            spot.place = Place(rows.book, row, spot.id, code)


def _shape_of(x: Tensor, part: TensorPart) -> tuple[int, ...]:
    """The shape of the whole tensor, of which `x` may be a part."""
    here = tuple(x.shape)
    return part.shape if part.shape is not None and part.local in (None, here) else here


def _index_of(device: torch.device) -> int:
    """What `Tensor.get_device()` says of tensors there."""
    return -1 if device.type in {"cpu", "meta"} else device.index or 0
