"""Results: what a trace has found, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sonde.tracing.paths import suggestion


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

    def __len__(self) -> int:
        return len(self.values)


class Results(Mapping[str, Result]):
    """Results by name. Grows while the trace goes on."""

    def __init__(self) -> None:
        self._found: dict[str, Result] = {}

    def put(self, name: str, result: Result) -> None:
        """Append to what there is under the name."""
        self._found.setdefault(name, Result()).extend(result)

    def __getitem__(self, name: str) -> Result:
        try:
            return self._found[name]
        except KeyError:
            raise KeyError(f"`{name}` was not seen.{suggestion(name, self._found)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._found))

    def __len__(self) -> int:
        return len(self._found)

    def __repr__(self) -> str:
        inside = ", ".join(f"{name!r}: {len(r)} values" for name, r in self._found.items())
        return f"Results({{{inside}}})"
