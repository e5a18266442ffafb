"""Results: what a trace has found, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sonde.tracing.paths import suggestion


class Moment(NamedTuple):
    """When something was seen: the iteration, its phase, and which call of the method in it."""

    iteration: int
    phase: str
    call: int


@dataclass(slots=True)
class Result:
    """The values of one variable. `Any`: whatever it held.

    As they are captured, all lists go together. Callbacks may put fewer values in place of the
    captured ones; the other lists then still speak of those.
    """

    iterations: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)

    def extend(self, other: Result) -> None:
        """Append all of another result."""
        self.iterations += other.iterations
        self.ranks += other.ranks
        self.values += other.values
        self.calls += other.calls
        self.lines += other.lines
        self.phases += other.phases

    def append(self, value: object, rank: int, moment: Moment, line: int) -> None:
        """One more value."""
        self.iterations.append(moment.iteration)
        self.ranks.append(rank)
        self.values.append(value)
        self.calls.append(moment.call)
        self.lines.append(line)
        self.phases.append(moment.phase)

    def __len__(self) -> int:
        return len(self.values)


class Results(Mapping[str, Result]):
    """Results by name. Grows while the trace goes on."""

    def __init__(self) -> None:
        self.refresh: Callable[[], None] = lambda: None
        """Called before results are read: values that are still on their way should be here."""
        self._found: dict[str, Result] = {}

    def put(self, name: str, result: Result) -> None:
        """Append to what there is under the name."""
        self.at(name).extend(result)

    def at(self, name: str) -> Result:
        """What there is under the name, to append to."""
        found = self._found.get(name)
        if found is None:
            found = self._found[name] = Result()
        return found

    def __getitem__(self, name: str) -> Result:
        self.refresh()
        try:
            return self._found[name]
        except KeyError:
            raise KeyError(f"`{name}` was not seen.{suggestion(name, self._found)}") from None

    def __iter__(self) -> Iterator[str]:
        self.refresh()
        return iter(list(self._found))

    def __len__(self) -> int:
        self.refresh()
        return len(self._found)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name!r}: {len(r)} values" for name, r in self.items())
        return f"Results({{{inside}}})"
