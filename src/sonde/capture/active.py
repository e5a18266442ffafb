"""Who is watching now: how code inside a model finds those that want to hear from it.

The one piece of state that belongs to the process: `sonde.attach`, `sonde.log` and their like are
called without a watch in hand. Without a watch, they do nothing.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class ActiveCapture(Protocol):
    """A capture, as seen from inside a model."""

    def attach(self, x: object, name: str) -> None:
        """Take a named tensor, of whichever framework."""


class NumberReceiver(Protocol):
    """What takes numbers from inside a model. `Any`: tensors of its framework."""

    def is_watching(self) -> bool:
        """Whether something that is logged now would be recorded."""
        ...

    def log(self, name: str, value: object, reduce: Any) -> None:
        """Take a number or a tensor of numbers."""

    def attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        output: Any,
        *,
        mask: Any,
        is_causal: bool,
        scale: float | None,
    ) -> None:
        """Take a call of attention."""


_ACTIVE: tuple[ActiveCapture, ...] = ()
"""Never changed in place: compiled code that attaches is compiled anew when another watch
watches."""

_OBSERVING: tuple[NumberReceiver, ...] = ()

_LOCK = threading.Lock()


def add(capture: ActiveCapture, observer: NumberReceiver | None = None) -> None:
    global _ACTIVE, _OBSERVING
    with _LOCK:
        _ACTIVE = (*_ACTIVE, capture)
        if observer is not None:
            _OBSERVING = (*_OBSERVING, observer)


def discard(capture: ActiveCapture, observer: NumberReceiver | None = None) -> None:
    global _ACTIVE, _OBSERVING
    with _LOCK:
        _ACTIVE = tuple(c for c in _ACTIVE if c is not capture)
        _OBSERVING = tuple(o for o in _OBSERVING if o is not observer)


def attach(x: T, name: str) -> T:
    """Name a tensor inside a model, and record its values and gradients.

    Returns `x` itself. Without a watch it does nothing. Tensors that are given the same name
    within one call of a module are recorded together.

        def forward(self, x):
            scores = sonde.attach(q @ k.transpose(-2, -1), "scores")
    """
    for capture in _ACTIVE:
        capture.attach(x, name)
    return x


def is_watching() -> bool:
    """Whether the current step is recorded, so that logging has an effect."""
    return any(observer.is_watching() for observer in _OBSERVING)


def log(name: str, value: object, *, reduce: object = "mean") -> None:
    """Record a number, or the numbers of a tensor, from inside a model: as a metric of the
    module that is being called.

    What is logged under one name in a step is put together, every element counting the same:
    `reduce` is `mean`, `sum`, `min`, `max` or a function of all of them. Nothing waits for a
    tensor, and without a watch nothing happens.

        def forward(self, x):
            gate = self.gate(x).sigmoid()
            sonde.log("open", gate)
    """
    for observer in _OBSERVING:
        observer.log(name, value, reduce)


def attention(
    query: object,
    key: object,
    value: object = None,
    *,
    output: object = None,
    mask: object = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> None:
    """Record a call of attention that Sonde cannot recognize, such as your own kernel.

    Tensors are (batch, heads, length, width), as `scaled_dot_product_attention` takes them; keys
    and values may have fewer heads. The mask is boolean (true takes part) or added to the logits.
    """
    for observer in _OBSERVING:
        observer.attention(query, key, value, output, mask=mask, is_causal=is_causal, scale=scale)
