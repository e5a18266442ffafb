"""Rows of the step being recorded: which site's numbers stand where, until they are handed over.

A `Spot` is a site in a phase. When a tensor appears there, its sketch goes into a row of the table
of its device. A tensor that was already sketched in this pass (the output of a child that its
parent returns, the input of the next layer) is not read again: the spot points to the row that
holds it. A row with another reference is closed; what comes next opens a new one. So a
spot's record is the merge of the rows it points to, exactly, and each tensor is read once.

A table has a fixed number of rows, whatever the size of the model. They are given out in order,
anew in each window; when none is left in the middle of a step, the window ends there, and the step
has one more. So rows take as much memory for ten thousand sites as for a thousand.

Nothing here knows a framework. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sonde.capture.native import Book, Place, Row
from sonde.record import Kind, Site, Sketches

NATIVE_PHASE: Final = "train"
"""The phase of all that takes the native path."""

_MOST_FIXED: Final = 1 << 16
"""Rows of a device that are the same in every window, 1 GiB."""


class RowTable(Protocol):
    """Rows on one device. Filled by the training thread, taken away full, given back empty.

    A table that the native path can fill has a `book`, and keeps it up to date.
    """

    @property
    def can_take(self) -> bool:
        """Whether the rows can be taken away now, without waiting for earlier ones."""
        ...

    @property
    def slice_rows(self) -> int:
        """How many rows a window may have."""
        ...

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes that it holds now: on the host, on its device."""
        ...

    def ensure(self, n_rows: int) -> None:
        """Have at least `n_rows` rows; those that are filled keep their numbers."""

    def take(self, used: int | None = None, *, early: bool = False) -> FilledRows:
        """The first `used` rows (all, if not given) as they are now, and those behind `slice_rows`;
        from here on the table is empty. `early`, in the middle of a step: others follow soon."""

    def discard(self) -> None:
        """Empty the table; what it held is lost."""

    def close(self) -> None:
        """Give all memory back; the table is not used any more. Rows that were taken stay."""


TableT = TypeVar("TableT", bound=RowTable)
"""The tables of one framework."""


class FilledRows(Protocol):
    """Rows that were taken from a table. `sketches` may wait for the device: call it elsewhere.

    `can_wait` says that the table has room enough for more, until these are read.
    """

    size_bytes: int
    can_wait: bool

    def sketches(self, rows: NDArray[np.int64]) -> Sketches:
        """The given rows as columns: all that were filled; one may be named twice. Called once."""


class Spot:
    """A site in a phase, for tensors of one dtype on one device.

    `id` is the site's, once declared; `parts` are the rows that make up its record, with what the
    book of its device says. `place` is where the native path puts its tensors, if it may. `part` is
    what the framework knows of the tensor's placement on ranks, None before it was asked. A tensor
    of another dtype or device has its own spot, among the `variants`.
    """

    __slots__ = (
        *("call", "dtype", "id", "kind", "module_type", "off", "own", "part", "parts"),
        *("path", "phase", "place", "rows", "slot", "variants", "window"),
    )

    def __init__(
        self, kind: Kind, path: str, call: int, slot: str, module_type: str, phase: str
    ) -> None:
        self.kind = kind
        self.path = path
        self.call = call
        self.slot = slot
        self.module_type = module_type
        self.phase = phase
        self.id = -1
        self.dtype: object = None
        self.rows: Rows[Any] | None = None  # of the framework that made the spot
        self.off = False
        self.place: Place | None = None
        self.part: Any = None  # of the framework that made the spot
        self.own: list[Row] = []
        self.parts: list[int] = []
        self.variants: list[Spot] = []
        self.window = -1

    @property
    def site(self) -> Site:
        return Site(self.path, self.kind, self.call, self.slot)

    def switch_off(self) -> None:
        """Record nothing here any more."""
        self.off = True
        self.leave_place()

    def leave_place(self) -> None:
        """Take the native path no more, until there is another place."""
        if self.place is not None:
            self.place.off = True
            self.place = None

    def variant(self, dtype: object, rows: Rows[Any]) -> Spot:
        """This site's spot for tensors like that: itself, if it is still undecided."""
        if self.rows is None:
            return self
        for spot in self.variants:
            if spot.dtype is dtype and spot.rows is rows:
                return spot
        made = Spot(self.kind, self.path, self.call, self.slot, self.module_type, self.phase)
        made.part = self.part
        self.variants.append(made)
        return made


class SiteGroup:
    """Sites that are touched together, in one phase: parameters of a model.

    They have rows next to each other, so that touching a hundred of them costs what touching one
    does: in a window the i-th has the row `first + offsets[i]`. With `indices`, these are its rows
    in every window.
    """

    __slots__ = ("all", "first", "ids", "is_fixed", "offsets", "phase", "touched", "window")

    def __init__(self, ids: list[int], phase: str, indices: list[int] | None = None) -> None:
        self.phase = phase
        self.all = np.ones(len(ids), dtype=np.bool_)
        self.ids = np.array(ids, dtype=np.int32)
        self.first = 0
        self.offsets = np.arange(len(ids)) if indices is None else np.array(indices, dtype=np.int64)
        self.is_fixed = indices is not None
        self.window = -1
        self.touched = self.all


class TouchedGroup(NamedTuple):
    """A group, which of its sites were touched in a window, and where its rows were."""

    group: SiteGroup
    sites: NDArray[np.bool_]
    first: int


@dataclass(slots=True)
class Window:
    """What was touched since the last hand-over: per phase, site ids with their lists of rows;
    groups; and, once the window has ended, what the book says: pairs of a site's id and a row as
    int64, all of `NATIVE_PHASE`."""

    number: int = 0
    touched: dict[str, list[tuple[int, list[int]]]] = field(default_factory=dict)
    groups: list[TouchedGroup] = field(default_factory=list)
    booked: bytes = b""
    has_shared: bool = False

    @property
    def phases(self) -> list[str]:
        """The phases of which the window holds anything, but for what the book says."""
        return list(dict.fromkeys([*self.touched, *(t.group.phase for t in self.groups)]))


class Rows(Generic[TableT]):
    """The rows of one device, in the window that is being filled.

    `device` is its number among its kind, -1 for the host.
    `open_row` gives the row to sketch into, `share` points a spot to a row that already holds the
    tensor, `take` ends the window.
    """

    __slots__ = ("_fixed", "_next", "_spare", "book", "device", "limit", "table", "window")

    def __init__(self, table: TableT, device: int = -1) -> None:
        self.table = table
        self.book: Book | None = getattr(table, "book", None)
        self.limit = table.slice_rows
        self.device = device
        self.window = Window()
        self._next = 0
        self._fixed = 0
        self._spare: list[int] = []
        if self.book is not None:
            self.book.limit = self.limit

    @property
    def used(self) -> int:
        """Rows that were given out in this window."""
        return self._next if self.book is None else self.book.next

    @property
    def phases(self) -> list[str]:
        """The phases of which anything was touched in this window."""
        phases = self.window.phases
        if self.book is not None and self.book.count and NATIVE_PHASE not in phases:
            phases.append(NATIVE_PHASE)
        return phases

    @property
    def has_shared(self) -> bool:
        """Whether spots share rows: what comes next must go into new ones."""
        return self.window.has_shared or (self.book is not None and self.book.has_shared)

    def open_row(self, spot: Spot) -> Row | None:
        """A row of the spot's that may be added to; None if the window has to end first."""
        number = self.window.number
        for row in spot.own:
            if row.window != number:
                first = self._claim(1)
                if first is None:
                    return None
                row.index, row.window, row.events, row.shared = first, number, 1, False
                self.touch(spot)
                spot.parts.append(first)
                return row
            if not row.shared:
                row.events += 1
                return row
        first = self._claim(1)
        if first is None:
            return None
        row = Row(first, number)
        self.touch(spot)
        spot.own.append(row)
        spot.parts.append(first)
        return row

    def _claim(self, n: int) -> int | None:
        """The first of `n` rows that are next to each other; None if there are not as many left."""
        first = self.used
        if first + n > self.limit:
            return None
        self.table.ensure(first + n)
        if self.book is None:
            self._next = first + n
        else:
            self.book.next = first + n
        return first

    def make_spare(self, n: int) -> None:
        """Have that many rows aside, which are the same in every window: behind all others."""
        n = min(n - len(self._spare), _MOST_FIXED - self._fixed)
        if n > 0:
            first = self.limit + self._fixed
            self.table.ensure(first + n)
            self._spare += range(first, first + n)
            self._fixed += n

    def spare_row(self) -> int | None:
        """One of the rows that were put aside, None when they are used up."""
        return self._spare.pop() if self._spare else None

    def touch_group(self, group: SiteGroup, some: list[int] | None = None) -> bool:
        """Mark sites of the group as seen: all of them, or some; False if the window has to end
        first."""
        if group.window != self.window.number:
            if not group.is_fixed:
                first = self._claim(len(group.ids))
                if first is None:
                    return False
                group.first = first
            group.window = self.window.number
            group.touched = group.all if some is None else np.zeros(len(group.ids), dtype=np.bool_)
            self.window.groups.append(TouchedGroup(group, group.touched, group.first))
        if group.touched is not group.all:
            group.touched[slice(None) if some is None else some] = True
        return True

    def forget_group(self, group: SiteGroup) -> None:
        """Drop what the group has in this window; its rows may hold anything and are given up."""
        self.window.groups = [t for t in self.window.groups if t.group is not group]
        group.window = -1

    def share(self, spot: Spot, row: Row) -> bool:
        """Point the spot to a row that holds this tensor; False if it holds more than that."""
        if row.window != self.window.number or row.events != 1:
            return False
        self.touch(spot)
        row.shared = True
        self.window.has_shared = True
        spot.parts.append(row.index)
        return True

    def undo(self, spot: Spot, row: Row) -> None:
        """Take back that a row was opened: nothing was added to it."""
        row.events -= 1
        if row.events == 0:
            row.window = -1
            spot.parts.remove(row.index)
            if not spot.parts:
                self._untouch(spot)

    def forget(self, spot: Spot) -> None:
        """Drop what the spot has in this window; its rows may hold anything and are given up."""
        spot.own.clear()
        spot.leave_place()
        if self.book is not None:
            self.book.forget(spot.id)
        if spot.window == self.window.number:
            self._untouch(spot)

    def touch(self, spot: Spot) -> None:
        """Mark the spot as seen, also without a value: an empty tensor."""
        window = self.window
        if spot.window != window.number:
            spot.window = window.number
            spot.parts = []
            window.touched.setdefault(spot.phase, []).append((spot.id, spot.parts))

    def take(self, *, early: bool = False) -> tuple[FilledRows, Window]:
        """End the window: its rows and who points to them. The next window begins empty."""
        used = self.used
        ended = self._turn()
        return self.table.take(used, early=early), ended

    def discard(self) -> None:
        """End the window and forget what it held."""
        self._turn()
        self.table.discard()

    def _turn(self) -> Window:
        ended = self.window
        self.window = Window(number=ended.number + 1)
        self._next = 0
        if self.book is not None:
            ended.booked = self.book.turn(self.window.number)
        return ended

    def _untouch(self, spot: Spot) -> None:
        touched = self.window.touched[spot.phase]
        touched.remove((spot.id, spot.parts))
        if not touched:
            del self.window.touched[spot.phase]
        spot.window = -1
