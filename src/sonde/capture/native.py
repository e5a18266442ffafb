"""The native path of hooks: what they do most of the time, in C, and what they share with Python.

A watched step calls hundreds of hooks. Most of them find the same as in the step before: a module
that returns one tensor, dense and of the same format, later its gradient. An extension does all
that in one call and few cache lines; whatever is unusual or doubtful it leaves to Python, before it
has changed anything. Where there is no extension (an install without a compiler), or no way for it
to ask tensors what they are, everything goes through Python.

Without it, a step of GPT-2-small on an H200 takes 8 % longer at `every=1`: 8 % without that of
module hooks, 8 % without that of gradient hooks. At `every=10` there is no difference to be seen
(`benchmarks/results/ablation.csv`).

    Row        a row of a table: in which window it was opened, at which index, how often it was
               added to
    Book       the rows of a device: where they lie, and which sites were added to which
    Place      where the tensors of a spot go: its row in a book, or rows of others
    Seen       a tensor met in a pass: the row that holds it, the hook on its gradient
    GradHook   a hook on a gradient, for all the spots that its tensor was seen at
    Native      a capture: `live` while it records, `alone` while no observer needs what is
               recorded, `hears_gradients` while it does and no observer needs these, `bound` to the
               pass that is running, `waiting` for a module to return what compiled code did
    Lane       a module: for each of its calls, the places of what it returns; `leave` gives the
               number of the call, -1 if that was left to Python
    Point      a tap in compiled code: the places of its tensor, at most `MOST_PLACES`
    Bunch      several taps that are one operator: the points of as many tensors, at most
               `MOST_TOGETHER`

A book notes pairs of a site's id and a row's index; `turn` gives those of the window that ends. It
gives out rows in order, `next` is the next one, up to its `limit`: what comes then is left to
Python. A `Seen` has no row any more once that is in another window than when it was noted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from sonde._built import refuse_stale

__all__ = [
    "AVAILABLE",
    "MOST_PLACES",
    "MOST_TOGETHER",
    "Book",
    "Bunch",
    "GradHook",
    "Lane",
    "Native",
    "Place",
    "Point",
    "Row",
    "Seen",
    "use_number",
]

try:
    from sonde.capture import _native

    refuse_stale(_native)
    from sonde.capture._native import (
        MOST_PLACES,
        MOST_TOGETHER,
        Book,
        Bunch,
        GradHook,
        Lane,
        Native,
        Place,
        Point,
        Row,
        Seen,
        use_number,
    )
except ImportError:  # built without a compiler, or from other sources
    AVAILABLE = False
else:
    AVAILABLE = True

if not TYPE_CHECKING and not AVAILABLE:
    Book = Bunch = Lane = Place = Point = Native = None
    MOST_PLACES = MOST_TOGETHER = 0

    def use_number(_number: int) -> None:
        """There is no observer."""

    class Row:
        """One row of a table and what it holds in the current window."""

        __slots__ = ("events", "index", "shared", "window")

        def __init__(self, index: int, window: int) -> None:
            self.index = index
            self.window = window
            self.events = 1
            self.shared = False

    class Seen:
        """A tensor met in a pass: the row that holds it, the hook on its gradient."""

        __slots__ = ("_row", "_window", "grad", "ref", "version")

        def __init__(self, x: object, version: int) -> None:
            self.ref = ref(x)
            self.version = version
            self.row = None
            self.grad: GradHook | None = None

        @property
        def row(self) -> Row | None:
            """The row that holds the tensor, None once it is in a later window."""
            row = self._row
            return None if row is None or row.window != self._window else row

        @row.setter
        def row(self, row: Row | None) -> None:
            self._row = row
            self._window = -1 if row is None else row.window

    class GradHook:
        """Tensor hook: one per tensor, for all the spots at which that tensor was seen."""

        __slots__ = ("owner", "returned", "spots")

        def __init__(self, owner: object, spot: object, returned: bool = False) -> None:
            self.owner = owner
            self.spots = [spot]
            self.returned = returned

        def __call__(self, grad: object) -> None:
            # There is none for an unused output of compiled code.
            if grad is not None and not self.owner.asleep:
                self.owner.gradient(self.spots, grad, self.returned)
