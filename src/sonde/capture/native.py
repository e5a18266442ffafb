"""The native path of hooks: what they do most of the time, in C, and what they share with Python.

A watched step calls hundreds of hooks. Most of them find the same as in the step before: a module
that returns one tensor, dense and of the same format, later its gradient. An extension does all
that in one call and few cache lines; whatever is unusual or doubtful it leaves to Python, before it
has changed anything. Where there is no extension (an install without a compiler), or no way for it
to ask tensors what they are, everything goes through Python.

    Row        a row of a table: in which window it was opened, at which index, how often it was
               added to
    Book       the rows of a device: where they lie, and which sites were added to which
    Place      where the tensors of a spot go: its row in a book, or rows of others
    Seen       a tensor met in a pass: the row that holds it, the hook on its gradient
    GradHook   a hook on a gradient, for all the spots that its tensor was seen at
    Native      a capture: `live` while it records, `alone` while nobody else looks at what is
               recorded, `hears_gradients` while it does and nobody looks at these, `bound` to the
               pass that is running, `waiting` for a module to return what compiled code did
    Lane       a module: for each of its calls, the places of what it returns; `leave` gives the
               number of the call, -1 if that was left to Python
    Point      a tap in compiled code: the places of its tensor, at most `MOST_PLACES`
    Bunch      several taps that are one operator: the points of as many tensors, at most
               `MOST_TOGETHER`

    measure(exchange, types, tensors)
        Where tensors lie, and for each how many values of which format on which device: two arrays
        of int64. None if one of them is not of these types, or not in order in memory.
    holdings(references, dicts, name)
        Identities of what each object holds: of the values of its dicts of these names, and of its
        own attribute, 0 if it has none. None if one of the former is no dict.
    referents(references)
        What weak references refer to, None in place of what is gone.
    signs(objects, name)
        Identities of objects, each with the truth of an attribute.
    pick(kept, keys, made, type)
        What a dict of dicts holds, whose keys are these very objects, if the value of each is made
        like this: how many entries, and the keys of those of a type. None if it is not.

A book notes pairs of a site's id and a row's index; `turn` gives those of the window that ends. It
gives out rows in order, `next` is the next one, up to its `limit`: what comes then is left to
Python. A `Seen` has no row any more once that is in another window than when it was noted.
"""

from __future__ import annotations

from array import array
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING, Any
from weakref import ref

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
    "holdings",
    "measure",
    "pick",
    "referents",
    "signs",
    "use_number",
]

try:
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
        holdings,
        measure,
        pick,
        referents,
        signs,
        use_number,
    )
except ImportError:  # built without a compiler
    AVAILABLE = False
else:
    AVAILABLE = True

if not TYPE_CHECKING and not AVAILABLE:
    Book = Bunch = Lane = Place = Point = Native = None
    MOST_PLACES = MOST_TOGETHER = 0

    def measure(_exchange: Any, _types: Any, _tensors: Any) -> None:
        """There is no telling."""

    def holdings(references: list[ref[Any]], dicts: tuple[str, ...], name: str) -> bytes:
        """Identities of what each object holds."""
        found: list[int] = []
        for held in (found for found in referents(references) if found is not None):
            own = vars(held)
            for each in dicts:
                found += map(id, own[each].values())
            found.append(id(own[name]) if name in own else 0)
        return array("q", found).tobytes()

    def referents(references: list[ref[Any]]) -> list[Any]:
        """What weak references refer to."""
        return [reference() for reference in references]

    def signs(objects: list[Any], name: str) -> bytes:
        """Identities of objects, each with the truth of an attribute."""
        pairs = ((id(each), bool(getattr(each, name))) for each in objects)
        return array("q", chain.from_iterable(pairs)).tobytes()

    def pick(
        kept: dict[Any, Any], keys: list[Any], made: list[tuple[int, list[str]]], type: type
    ) -> list[Any] | None:
        """What a dict of dicts holds, if it is made as it was."""
        found: list[Any] = []
        if not (len(made) == len(keys) == len(kept)) or not all(map(is_, kept, keys)):
            return None
        for each, (n, names) in zip(kept.values(), made, strict=True):
            own = [each.get(name) for name in names]
            if len(each) != n or not all(isinstance(x, type) for x in own):
                return None
            found += own
        return found

    def use_number(_number: int) -> None:
        """There is nobody to tell."""

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

        def __init__(self, x: Any, version: int) -> None:
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

        def __init__(self, owner: Any, spot: Any, returned: bool = False) -> None:
            self.owner = owner
            self.spots = [spot]
            self.returned = returned

        def __call__(self, grad: Any) -> None:
            # There is none for an output of compiled code that nobody used.
            if grad is not None and not self.owner.asleep:
                self.owner.gradient(self.spots, grad, self.returned)
