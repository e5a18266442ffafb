"""A wish: answers that a report takes as a whole or leaves out as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sonde.present.archive import Asked


@dataclass(frozen=True, slots=True)
class Wish:
    """Answers that belong together, made when they are asked for. `what` is their kind, `n` how
    many of the kind they are."""

    what: str
    answers: Callable[[], Iterable[Asked]]
    n: int = 1
