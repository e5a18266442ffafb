"""Patience: how long the server waits for a request that was begun and does not come.

A connection that says nothing, or a request that comes a byte at a time, would hold its place for
ever; with enough of them nobody else gets in.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sonde._require import require

PATIENCE_S: Final = 10.0


def patient_protocol(patience_s: float = PATIENCE_S) -> type[Any]:
    """The HTTP protocol of uvicorn, ending connections that keep it waiting for longer."""
    plain: Any = require("uvicorn.protocols.http.h11_impl", extra="view").H11Protocol

    class Patient(plain):  # type: ignore[misc]  # uvicorn is optional, so it is Any
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _expect(self) -> None:
            """Begin to wait, or stop: all of a request is there when its answer is being made."""
            if self.cycle is not None and not self.cycle.response_complete:
                self._forget()
            elif self._timer is None:
                self._timer = self.loop.call_later(patience_s, self._give_up)

        def _give_up(self) -> None:
            self._timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        def _forget(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Patient
