"""What recording costs on a CUDA device: how much longer recorded steps take there than others.

At the end of each step an event is put on the training stream. Two completed events
give the time between two ends, whatever made it long: our kernels, or a host that was held up by
our hooks. Nothing waits: completed events are collected when the next one is recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final, NamedTuple

import torch

_KEPT: Final = 64
"""Steps of each kind that a median is taken of."""

_WAITING: Final = 32
"""Events that may be on their way: more are not put."""

_ENOUGH: Final = 3
"""Steps of a kind from which on its median says something."""


class Cost(NamedTuple):
    """Seconds between the ends of two steps on the device: medians of the last ones."""

    recorded_step_s: float
    other_step_s: float


class _Span(NamedTuple):
    first: torch.cuda.Event
    last: torch.cuda.Event
    is_recorded: bool


class StepTimer:
    """Times steps. `added_s` is what recorded ones took longer than usual, so far."""

    def __init__(
        self,
        new_event: Callable[[], torch.cuda.Event] = lambda: torch.cuda.Event(enable_timing=True),
        stream: Callable[[], torch.cuda.Stream] = torch.cuda.current_stream,
    ) -> None:
        self.added_s = 0.0
        self._new_event = new_event
        self._stream = stream
        self._last: torch.cuda.Event | None = None
        self._spans: deque[_Span] = deque()
        self._free: list[torch.cuda.Event] = []
        self._recorded: deque[float] = deque(maxlen=_KEPT)
        self._others: deque[float] = deque(maxlen=_KEPT)

    @property
    def cost(self) -> Cost | None:
        """None until there were some steps of both kinds."""
        recorded, others = list(self._recorded), list(self._others)
        if len(recorded) < _ENOUGH or len(others) < _ENOUGH:
            return None
        return Cost(median(recorded), median(others))

    def mark(self, *, is_recorded: bool) -> None:
        """A step ends, which was recorded or not."""
        self._look()
        if len(self._spans) >= _WAITING:
            self._last = None
            return
        event = self._free.pop() if self._free else self._new_event()
        event.record(self._stream())
        if self._last is not None:
            self._spans.append(_Span(self._last, event, is_recorded))
        self._last = event

    def skip(self) -> None:
        """End a step that is not timed."""
        self._last = None

    def _look(self) -> None:
        while self._spans and self._spans[0].last.query():
            span = self._spans.popleft()
            took_s = span.first.elapsed_time(span.last) / 1e3
            self._free.append(span.first)
            if not span.is_recorded:
                self._others.append(took_s)
                continue
            self._recorded.append(took_s)
            if len(self._others) >= _ENOUGH:
                self.added_s += max(0.0, took_s - median(self._others))


def meter_for(model: torch.nn.Module) -> StepTimer | None:
    """One for the device that the model is on, if it can tell the time."""
    first = next(iter(model.parameters()), None)
    if first is None or first.device.type != "cuda":
        return None
    return StepTimer(stream=partial(torch.cuda.current_stream, first.device))
