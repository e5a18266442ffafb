"""The operators that compiled code calls where it has something to show, and what they do then.

`sonde::tap(x, key)` has its place as a constant; a tensor that several modules return or are given
has one for all of them. `sonde::taps(xs, keys)` is several of these in one, see `graph_passes.py`.
Where one compiled piece of code serves several modules (blocks that are compiled one by one), the
module must not be a constant: `sonde::tap_of(x, module, place)` gets it as a tensor, whose address
says who it is.
"""

from __future__ import annotations

import threading
from functools import partial
from itertools import count
from typing import Final
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor

from sonde.capture.native import Bunch
from sonde.capture.torch.compile.graph_passes import TapIdentity
from sonde.capture.torch.tap import Tap, TapKey, TapPlace

_ANY_LAYOUT: Final = (torch.Tag.flexible_layout,)
"""The order of values in memory is all one to a sketch. A compiler that does not know this writes a
second copy of a tensor for the tap, in the order of eager mode."""

_LIBRARY: Final = torch.library.Library("sonde", "DEF")
_LIBRARY.define("tap(Tensor x, int key) -> ()", tags=_ANY_LAYOUT)
_LIBRARY.define("taps(Tensor[] xs, int[] keys) -> ()", tags=_ANY_LAYOUT)
_LIBRARY.define("tap_of(Tensor x, Tensor module, int place) -> ()", tags=_ANY_LAYOUT)

_NUMBERS: Final = count()
KEYS: Final[dict[int, ref[TapKey]]] = {}
"""Taps by the number that stands for them in a graph. A number is never used again, since a graph
may outlive the watch; its entry is dropped with the key, which the modules' taps hold."""
_PLACES: Final[list[TapPlace]] = []
_TAPS: Final[WeakValueDictionary[int, Tap]] = WeakValueDictionary()
"""Taps by the address of the tensor that stands for them in shared code."""
_LOCK: Final = threading.Lock()


def add_key(tap: Tap, place: TapPlace) -> int:
    """A number for that place."""
    made, number = TapKey(tap, place), next(_NUMBERS)
    tap.fixed_keys.append(made)
    KEYS[number] = ref(made, partial(KEYS.pop, number))
    return number


def key_of(number: int) -> TapKey | None:
    """What that number stands for, None once the watch is closed."""
    known = KEYS.get(number)
    return None if known is None else known()


def add_place(place: TapPlace) -> int:
    """A number for that place of whichever module it is."""
    with _LOCK:
        if place not in _PLACES:
            _PLACES.append(place)
        return _PLACES.index(place)


def share(tap: Tap) -> None:
    """The module is part of code that serves several: let a tensor stand for it."""
    if tap.key is None:
        tap.key = torch.zeros((), dtype=torch.int64)
        _TAPS[tap.key.data_ptr()] = tap


def who(key: int) -> TapIdentity | None:
    """Whose tap that is, None if it has to run by itself."""
    known = key_of(key)
    owner = None if known is None or known.returned else known.owner()
    return None if known is None or owner is None else TapIdentity(owner.sign, known.is_gradient)


def _run(x: Tensor, key: int) -> None:
    known = key_of(key)
    if known is None or (known.point is not None and known.point.add(x)):
        return
    owner = known.owner()
    if owner is not None and not owner.asleep:
        owner.compiled(known, x)


def _run_several(xs: list[Tensor], keys: list[int]) -> None:
    first = key_of(keys[0])
    known = None if first is None else first.bunch
    if first is not None and (known is None or known[0] != keys):
        known = first.bunch = _bunch(keys)
    bunch = None if known is None else known[1]
    if first is not None and bunch is not None:
        owner = first.owner()
        # The first taps that run may have to begin a pass.
        if bunch.add(xs) or (owner is not None and owner.hears() and bunch.add(xs)):
            return
    for x, key in zip(xs, keys, strict=True):
        _run(x, key)


def _bunch(keys: list[int]) -> tuple[list[int], Bunch | None] | None:
    """The native path of these taps together: None while one has none, or for ever."""
    known = [found for key in keys if (found := key_of(key)) is not None]
    points = [found.point for found in known if found.point is not None]
    if len(points) < len(keys):
        return None
    try:
        return keys, Bunch(tuple(points))
    except ValueError:  # they do not go together
        return keys, None


def _run_of(x: Tensor, module: Tensor, place: int) -> None:
    tap = _TAPS.get(module.data_ptr())
    if tap is not None and not tap.owner.asleep:
        key = tap.keys.get(place)
        if key is None:
            key = tap.keys[place] = TapKey(tap, _PLACES[place])
        if key.point is None or not key.point.add(x):
            tap.owner.compiled(key, x)


def _pretend(x: Tensor, key: int) -> None:
    """At compile time nothing happens."""


def _pretend_several(xs: list[Tensor], keys: list[int]) -> None:
    """At compile time nothing happens."""


def _pretend_of(x: Tensor, module: Tensor, place: int) -> None:
    """At compile time nothing happens."""


_LIBRARY.impl("tap", _run, "CompositeExplicitAutograd")
_LIBRARY.impl("taps", _run_several, "CompositeExplicitAutograd")
_LIBRARY.impl("tap_of", _run_of, "CompositeExplicitAutograd")
torch.library.register_fake("sonde::tap", _pretend, lib=_LIBRARY)
torch.library.register_fake("sonde::taps", _pretend_several, lib=_LIBRARY)
torch.library.register_fake("sonde::tap_of", _pretend_of, lib=_LIBRARY)
TAP: Final = torch.ops.sonde.tap.default
TAPS: Final = torch.ops.sonde.taps.default
TAP_OF: Final = torch.ops.sonde.tap_of.default
ALL: Final = frozenset({TAP, TAPS, TAP_OF})
for _each in ALL:
    torch.fx.node.has_side_effect(_each)
