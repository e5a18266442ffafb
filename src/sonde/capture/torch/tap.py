"""A tap: what is known of one watched module, and to whom its hooks report."""

from __future__ import annotations

from typing import Any, Protocol
from weakref import ref

from torch import Tensor, nn

from sonde.capture.rows import Spot
from sonde.record import Kind


class Owner(Protocol):
    """The capture that hooks report to."""

    asleep: bool

    def enter(self, tap: Tap, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A module was called, in eager mode, while something may have to be recorded."""

    def leave(self, tap: Tap, module: nn.Module, output: Any) -> None:
        """A module returned."""

    def gradient(self, spots: list[Spot], grad: Tensor) -> None:
        """The gradient of a tensor that was seen at these spots is known."""

    def compiled(
        self, tap: Tap, kind: Kind, call: int, slot: str, x: Tensor, *, training: bool
    ) -> None:
        """A tap in compiled code ran."""


class Tap:
    """One watched module: its path, what is wanted of it, its calls and its spots."""

    __slots__ = (
        *("__weakref__", "calls", "handles", "is_root", "kinds", "module", "owner"),
        *("passed", "path", "redone", "spots", "traced", "type"),
    )

    def __init__(
        self, owner: Owner, path: str, module: nn.Module, kinds: frozenset[Kind], *, is_root: bool
    ) -> None:
        self.owner = owner
        self.path = path
        self.type = type(module).__name__
        self.kinds = kinds
        self.is_root = is_root
        self.module = ref(module)
        self.spots: dict[tuple[Any, ...], Spot] = {}
        self.passed = -1
        self.calls = 0
        self.redone: tuple[int, int] = (-1, 0)
        self.traced: tuple[int, int] = (-1, 0)
        self.handles: list[Any] = []

    def next_call(self, passed: int) -> int:
        """The number of this call within the pass through the model."""
        if self.passed != passed:
            self.passed, self.calls = passed, 0
        call = self.calls
        self.calls += 1
        return call

    def next_redone(self, task: int) -> int:
        """The number of this call within a recomputation during backward."""
        count = self.redone[1] if self.redone[0] == task else 0
        self.redone = (task, count + 1)
        return count

    def next_traced(self, trace: int) -> None:
        """Count a call while a compiler traces the model."""
        self.traced = (trace, self.traced[1] + 1 if self.traced[0] == trace else 0)

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
