"""Who is watching now: how code inside of a model finds the captures that want to hear from it.

The one piece of state that belongs to the process: `sonde.attach` is called without a watch in
hand.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Listening(Protocol):
    """A capture, as seen from inside of a model."""

    def attach(self, x: Any, name: str) -> None:
        """Take a named tensor. `Any`: of whichever framework."""


_ACTIVE: tuple[Listening, ...] = ()
"""Never changed in place: compiled code that attaches is compiled anew when somebody else
watches."""


_LOCK = threading.Lock()


def add(capture: Listening) -> None:
    global _ACTIVE
    with _LOCK:
        _ACTIVE = (*_ACTIVE, capture)


def discard(capture: Listening) -> None:
    global _ACTIVE
    with _LOCK:
        _ACTIVE = tuple(c for c in _ACTIVE if c is not capture)


def attach(x: T, name: str) -> T:
    """Give a tensor inside of a model a name, under which its values and gradients are recorded.

    Returns `x` itself. Does nothing when nobody watches. Tensors that are given the same name
    within one call of a module are recorded together.

        def forward(self, x):
            scores = sonde.attach(q @ k.transpose(-2, -1), "scores")
    """
    for capture in _ACTIVE:
        capture.attach(x, name)
    return x
