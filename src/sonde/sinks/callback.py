"""Any function as a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Unpack

from sonde.sinks.sink import Reading, Sink, SinkOptions


class Callback(Sink):
    """Calls a function with each reading, in a thread of its own.

    sonde.watch(model, sinks=[Callback(lambda r: print(r.step, r.numbers), stats="rms")])
    """

    def __init__(self, fn: Callable[[Reading], object], **options: Unpack[SinkOptions]) -> None:
        super().__init__(**options)
        self._fn = fn

    def write(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            self._fn(reading)
