"""Windows: values on their way from where they were captured to where they are kept."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from sonde.tracing.results import Result
from sonde.tracing.values import Flag


@dataclass(frozen=True, slots=True)
class Moment:
    """When something was seen: the iteration, its phase, and which call of the method in it."""

    iteration: int
    phase: str
    call: int


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable by its full name, and the parts of it: the module and what is inside of that."""

    name: str
    module: str
    slot: str
    module_type: str


@dataclass(slots=True)
class Entry:
    """A captured value; with `flags`, only once they are read it is known whether it has changed.

    `Any`: whatever the variable held.
    """

    variable: Variable
    value: Any
    moment: Moment
    line: int
    size_bytes: int
    flags: list[Flag] = field(default_factory=list)


@dataclass(slots=True)
class Window:
    """What was captured in some iterations. Windows are numbered from 0, on each rank alike."""

    number: int
    entries: list[Entry] = field(default_factory=list)

    def results(self, rank: int) -> dict[Variable, Result]:
        """The values by variable, in the order in which they were captured."""
        found: dict[Variable, Result] = {}
        for entry in self.entries:
            result = found.setdefault(entry.variable, Result())
            result.iterations.append(entry.moment.iteration)
            result.ranks.append(rank)
            result.values.append(entry.value)
            result.calls.append(entry.moment.call)
            result.lines.append(entry.line)
            result.phases.append(entry.moment.phase)
        return found


class Budget:
    """How many bytes of values may be held at a time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._lock = threading.Lock()

    @property
    def room_bytes(self) -> int:
        return self.limit_bytes - self.held_bytes

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self.held_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        with self._lock:
            self.held_bytes -= size_bytes
