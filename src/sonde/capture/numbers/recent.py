"""Recent: the numbers of the last few steps, for `watch.metrics`.

Any thread may put and ask at any time. There is no lock: each change is one operation on a dict.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Keeps what was put for the latest `steps` steps, and at most `names` things for each."""

    def __init__(self, *, steps: int, names: int = 10_000) -> None:
        self._most_steps = steps
        self._most_names = names
        self._steps: dict[int, dict[K, V]] = {}

    @property
    def last_step(self) -> int:
        """The latest step of which anything is known, or 0."""
        return max(list(self._steps), default=0)

    def put(self, step: int, name: K, value: V) -> None:
        """Keep the value; of the same name in the same step, the last one."""
        found = self._steps.setdefault(step, {})
        if len(found) < self._most_names or name in found:
            found[name] = value
        while len(self._steps) > self._most_steps:
            self._steps.pop(min(list(self._steps)), None)

    def of(self, step: int) -> dict[K, V]:
        """What was put for a step, in the order in which names came."""
        return dict(self._steps.get(step, {}))
