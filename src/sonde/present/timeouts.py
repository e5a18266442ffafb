"""Patience: how long the server waits for a request that was begun and does not come.

A connection that sends nothing, or a request that comes a byte at a time, would hold its place for
ever; with enough of them no other gets in. So each has a time limit, and where there are more
connections than places, those that have waited longest are closed first: a connection that brings a
request at once is served however many others bring none.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sonde._require import require

PATIENCE_S: Final = 10.0
MAX_CONNECTIONS: Final = 150


def patient_protocol(
    patience_s: float = PATIENCE_S, max_connections: int = MAX_CONNECTIONS
) -> type[Any]:
    """Return uvicorn's HTTP protocol, with limits for connections that keep it waiting."""
    plain: Any = require("uvicorn.protocols.http.h11_impl", extra="view").H11Protocol
    waiting: dict[Timeouts, None] = {}  # those without a request, the longest first

    class Timeouts(plain):  # type: ignore[misc]  # uvicorn is optional, so it is Any
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect()
            if len(self.connections) > max_connections:
                self._make_room()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self.forget()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()  # it sets a time limit of its own
            if self.cycle.response_complete and not self.transport.is_closing():
                waiting[self] = None

        def _expect(self) -> None:
            """Begin to wait, or stop: all of a request is there when its answer is being made."""
            if self.cycle is not None and not self.cycle.response_complete:
                self.forget()
            elif self._timer is None:
                self._timer = self.loop.call_later(patience_s, self._give_up)
                waiting.setdefault(self)

        def _give_up(self) -> None:
            self._timer = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

        def _make_room(self) -> None:
            """Close the connection that has waited longest, unless it is this one."""
            for other in waiting:
                if other is self:
                    return
                if not other.transport.get_write_buffer_size():  # else it is still being answered
                    other.forget()
                    other.connections.discard(other)
                    other.transport.close()
                    return

        def forget(self) -> None:
            waiting.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Timeouts
