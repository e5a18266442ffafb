"""Who is watching now: how code inside of a model finds the captures that want to hear from it.

The one piece of state that belongs to the process: `sonde.attach` is called without a watch in
hand.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Listening(Protocol):
    """A capture, as seen from inside of a model."""

    @property
    def recording(self) -> bool:
        """Whether the current step is recorded."""

    def attach(self, x: Any, name: str) -> None:
        """Take a named tensor. `Any`: of whichever framework."""


_ACTIVE: WeakSet[Any] = WeakSet()


def add(capture: Listening) -> None:
    _ACTIVE.add(capture)


def discard(capture: Listening) -> None:
    _ACTIVE.discard(capture)


def attach(x: T, name: str) -> T:
    """Give a tensor inside of a model a name, under which its values and gradients are recorded.

    Returns `x` itself. Does nothing when nobody watches.

        def forward(self, x):
            scores = sonde.attach(q @ k.transpose(-2, -1), "scores")
    """
    if _ACTIVE:
        for capture in list(_ACTIVE):
            capture.attach(x, name)
    return x
