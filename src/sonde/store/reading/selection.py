"""A selection: which rows of a run are meant, as a condition in SQL with its parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sonde._errors import SondeError

Steps = int | tuple[int | None, int | None] | slice | range | Sequence[int] | None
"""One step, (first, last) with both included, a slice or range as in Python, or a list of steps."""


@dataclass(slots=True)
class Selection:
    """Conditions that must all hold. Values travel as parameters, never as text."""

    conditions: list[str] = field(default_factory=list)
    parameters: list[object] = field(default_factory=list)

    def add(self, condition: str, *parameters: object) -> Selection:
        self.conditions.append(condition)
        self.parameters += parameters
        return self

    def equal(self, column: str, value: object) -> Selection:
        """`column = value`; no condition at all if the value is None."""
        return self if value is None else self.add(f"{column} = ?", value)

    def one_of(self, column: str, values: Iterable[object] | None) -> Selection:
        """`column` is one of the values; no condition at all for None."""
        if values is None:
            return self
        found = list(values)
        if not found:
            return self.add("false")
        if len(found) <= 32:  # literals reach the scan; a list is joined
            return self.add(f"{column} in ({', '.join('?' * len(found))})", *found)
        return self.add(f"{column} in (select unnest(?))", found)

    def steps(self, steps: Steps) -> Selection:
        """Only these steps."""
        match steps:
            case None:
                return self
            case bool():
                pass
            case int():
                return self.add("step = ?", steps)
            case range() | slice() if steps.step in {None, 1}:
                return self._between(steps.start, steps.stop, ending=False)
            case range():
                return self.one_of("step", list(steps))
            case slice():
                raise SondeError(f"`steps` cannot skip: got {steps}. Use `range(a, b, n)`.")
            case (first, last) if isinstance(steps, tuple):
                return self._between(first, last, ending=True)
            case _:
                try:
                    return self.one_of("step", [operator.index(step) for step in steps])
                except TypeError:
                    pass
        raise SondeError(
            "`steps` must be a step, a pair (first, last), a range or a list of steps, "
            f"got {steps!r}."
        )

    def _between(self, first: int | None, last: int | None, *, ending: bool) -> Selection:
        for bound in (first, last):
            if bound is not None and not hasattr(bound, "__index__"):
                raise SondeError(f"`steps` must be whole numbers, got {bound!r}.")
        if first is not None:
            self.add("step >= ?", int(first))
        if last is not None:
            self.add("step <= ?" if ending else "step < ?", int(last))
        return self

    @property
    def where(self) -> str:
        return " and ".join(self.conditions) or "true"
