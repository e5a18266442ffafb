"""Rows of the step being recorded: which site's numbers stand where, until they are handed over.

A `Spot` is a site in a phase. When a tensor appears there, its sketch goes into a row of the table
of its device. A tensor that was already sketched in this pass (the output of a child that its
parent returns, the input of the next layer) is not read again: the spot points to the row that
holds it. A row to which somebody else points is closed; what comes next opens a new one. So a
spot's record is the merge of the rows it points to, exactly, and each tensor is read once.

Nothing here knows a framework. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sonde.capture.quick import Book, Place, Row
from sonde.record import Kind, Site, Sketches

QUICK_PHASE: Final = "train"
"""The phase of all that takes the quick path."""


class Table(Protocol):
    """Rows on one device. Filled by the training thread, taken away full, given back empty.

    A table that the quick path can fill has a `book`, and keeps it up to date.
    """

    @property
    def can_take(self) -> bool:
        """Whether the rows can be taken away now, without waiting for earlier ones."""
        ...

    def ensure(self, n_rows: int) -> None:
        """Have at least `n_rows` rows; those that are filled keep their numbers."""

    def take(self) -> Filled:
        """The rows as they are now; from here on the table is empty."""

    def discard(self) -> None:
        """Empty the table; what it held is lost."""


class Filled(Protocol):
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
    book of its device says. `place` is where the quick path puts its tensors, if it may. A tensor
    of another dtype or device has its own spot, among the `variants`.
    """

    __slots__ = (
        *("call", "dtype", "id", "kind", "module_type", "off", "own", "parts"),
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
        self.rows: Rows | None = None
        self.off = False
        self.place: Place | None = None
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
        """Take the quick path no more, until there is another place."""
        if self.place is not None:
            self.place.off = True
            self.place = None

    def variant(self, dtype: object, rows: Rows) -> Spot:
        """This site's spot for tensors like that: itself, if it is still undecided."""
        if self.rows is None:
            return self
        for spot in self.variants:
            if spot.dtype is dtype and spot.rows is rows:
                return spot
        made = Spot(self.kind, self.path, self.call, self.slot, self.module_type, self.phase)
        self.variants.append(made)
        return made


class Group:
    """Sites that are touched together, in one phase: all parameters of a model.

    They have rows of their own, so that touching a thousand of them costs what touching one does.
    """

    __slots__ = ("_touched", "_window", "all", "ids", "indices", "phase")

    def __init__(self, ids: list[int], indices: list[int], phase: str) -> None:
        self.phase = phase
        self.all = np.ones(len(ids), dtype=np.bool_)
        self.ids = np.array(ids, dtype=np.int32)
        self.indices = np.array(indices, dtype=np.int64)
        self._window = -1
        self._touched = self.all


class Touched(NamedTuple):
    """A group, and which of its sites were touched in a window."""

    group: Group
    sites: NDArray[np.bool_]


@dataclass(slots=True)
class Window:
    """What was touched since the last hand-over: per phase, site ids with their lists of rows;
    groups; and, once the window has ended, what the book says: pairs of a site's id and a row as
    int64, all of `QUICK_PHASE`."""

    number: int = 0
    touched: dict[str, list[tuple[int, list[int]]]] = field(default_factory=dict)
    groups: list[Touched] = field(default_factory=list)
    booked: bytes = b""
    has_shared: bool = False

    @property
    def phases(self) -> list[str]:
        """The phases of which the window holds anything, but for what the book says."""
        return list(dict.fromkeys([*self.touched, *(t.group.phase for t in self.groups)]))


class Rows:
    """The rows of one device, in the window that is being filled.

    `device` is its number among its kind, -1 for the host.
    `open_row` gives the row to sketch into, `share` points a spot to a row that already holds the
    tensor, `take` ends the window.
    """

    __slots__ = ("_next", "_spare", "book", "device", "limit", "table", "window")

    def __init__(self, table: Table, limit: int, device: int = -1) -> None:
        self.table = table
        self.book: Book | None = getattr(table, "book", None)
        self.limit = limit
        self.device = device
        self.window = Window()
        self._next = 0
        self._spare: list[int] = []

    @property
    def phases(self) -> list[str]:
        """The phases of which anything was touched in this window."""
        phases = self.window.phases
        if self.book is not None and self.book.count and QUICK_PHASE not in phases:
            phases.append(QUICK_PHASE)
        return phases

    @property
    def has_shared(self) -> bool:
        """Whether spots share rows: what comes next must go into new ones."""
        return self.window.has_shared or (self.book is not None and self.book.has_shared)

    def open_row(self, spot: Spot) -> Row | None:
        """A row of the spot's that may be added to; None when the limit of rows is reached."""
        window = self.window
        number = window.number
        for row in spot.own:
            if row.window != number:
                row.window, row.events, row.shared = number, 1, False
                if spot.window != number:
                    self.touch(spot)
                spot.parts.append(row.index)
                return row
            if not row.shared:
                row.events += 1
                return row
        if self._next >= self.limit:
            return None
        self.table.ensure(self._next + 1)
        row = Row(self._next, number)
        self._next += 1
        self.touch(spot)
        spot.own.append(row)
        spot.parts.append(row.index)
        return row

    def make_spare(self, n: int) -> None:
        """Have that many rows aside, for a time in which none can be made."""
        n = min(n - len(self._spare), self.limit - self._next)
        if n > 0:
            self.table.ensure(self._next + n)
            self._spare += range(self._next, self._next + n)
            self._next += n

    def spare_row(self) -> int | None:
        """One of the rows that were put aside, None when they are used up."""
        return self._spare.pop() if self._spare else None

    def new_group(self, ids: list[int], phase: str) -> Group | None:
        """Rows for the sites of these ids in a phase; None when there are not enough left."""
        first = self._next
        if first + len(ids) > self.limit:
            return None
        self.table.ensure(first + len(ids))
        self._next += len(ids)
        return Group(ids, list(range(first, self._next)), phase)

    def touch_group(self, group: Group, some: list[int] | None = None) -> None:
        """Mark sites of the group as seen: all of them, or some."""
        if group._window != self.window.number:
            group._window = self.window.number
            group._touched = group.all if some is None else np.zeros(len(group.ids), dtype=np.bool_)
            self.window.groups.append(Touched(group, group._touched))
        if group._touched is not group.all:
            group._touched[slice(None) if some is None else some] = True

    def forget_group(self, group: Group) -> None:
        """Drop what the group has in this window; its rows may hold anything and are given up."""
        self.window.groups = [t for t in self.window.groups if t.group is not group]
        group._window = -1

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

    def take(self) -> tuple[Filled, Window]:
        """End the window: its rows and who points to them. The next window begins empty."""
        ended = self._turn()
        return self.table.take(), ended

    def discard(self) -> None:
        """End the window and forget what it held."""
        self._turn()
        self.table.discard()

    def _turn(self) -> Window:
        ended = self.window
        self.window = Window(number=ended.number + 1)
        if self.book is not None:
            ended.booked = self.book.turn(self.window.number)
        return ended

    def _untouch(self, spot: Spot) -> None:
        touched = self.window.touched[spot.phase]
        touched.remove((spot.id, spot.parts))
        if not touched:
            del self.window.touched[spot.phase]
        spot.window = -1
