"""Windows: values on their way from where they were captured to where they are kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final

from sonde.tracing.results import Moment, Result
from sonde.tracing.values import Flag

_SMALL_BYTES: Final = 1 << 20
_FEW: Final = 256


@dataclass(frozen=True, slots=True)
class TracedVariable:
    """A variable by its full name, and the parts of it: the module and what is inside that."""

    name: str
    module: str
    slot: str
    module_type: str


@dataclass(slots=True)
class CapturedValue:
    """A captured value; with `flags`, only once they are read it is known whether it has changed.

    `Any`: whatever the variable held.
    """

    variable: TracedVariable
    value: Any
    moment: Moment
    line: int
    flags: list[Flag]


@dataclass(slots=True)
class TraceWindow:
    """What was captured in some iterations. Windows are numbered from 0, on each rank alike."""

    number: int
    entries: list[CapturedValue] = field(default_factory=list)
    size_bytes: int = 0
    """Of all values when they were captured."""

    @property
    def is_small(self) -> bool:
        """Whether it may as well take some more."""
        return self.size_bytes < _SMALL_BYTES and len(self.entries) < _FEW

    def results(self, rank: int) -> dict[TracedVariable, Result]:
        """The values by variable, in the order in which they were captured."""
        found: dict[TracedVariable, Result] = {}
        for entry in self.entries:
            result = found.get(entry.variable)
            if result is None:
                result = found[entry.variable] = Result()
            result.append(entry.value, rank, entry.moment, entry.line)
        return found


class ByteBudget:
    """How many bytes of values may be held at a time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.held_bytes -= size_bytes
