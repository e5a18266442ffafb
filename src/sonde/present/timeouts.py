"""Patience: how long the server waits for a request that was begun and does not come.

A connection that sends nothing, or a request that comes a byte at a time, would hold its place for
ever; with enough of them no other gets in. So each has a time limit, and where there are more
connections than places, those that have waited longest are closed first: a connection that brings a
request at once is served however many others bring none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from sonde._require import require

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE_S: Final = 10.0
MAX_CONNECTIONS: Final = 150


def patient_protocol(
    patience_s: float = PATIENCE_S, max_connections: int = MAX_CONNECTIONS
) -> type[H11Protocol]:
    """Return uvicorn's HTTP protocol, with limits for connections that keep it waiting."""
    plain: Any = require("uvicorn.protocols.http.h11_impl", extra="view").H11Protocol
    waiting = _Waiting(patience_s)

    class Timeouts(plain):  # type: ignore[misc]  # uvicorn is optional, so it is `Any`
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            waiting.expect(self)
            if len(self.connections) > max_connections:
                waiting.make_room(self)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            waiting.expect(self)

        def connection_lost(self, exc: Exception | None) -> None:
            waiting.forget(self)
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            super().on_response_complete()  # it sets a time limit of its own
            if self.cycle.response_complete and not self.transport.is_closing():
                waiting.put(self)

    return Timeouts


class _Waiting:
    """Connections without a request, the longest first, each with a time limit from its first byte
    on."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._connections: dict[H11Protocol, None] = {}
        self._timers: dict[H11Protocol, asyncio.TimerHandle] = {}

    def put(self, connection: H11Protocol) -> None:
        """The connection waits from now on, under a time limit of uvicorn's."""
        self._connections[connection] = None

    def expect(self, connection: H11Protocol) -> None:
        """Begin to wait, or stop: all of a request is there when its answer is being made."""
        cycle = connection.cycle
        if cycle is not None and not cycle.response_complete:
            self.forget(connection)
        elif connection not in self._timers:
            later = connection.loop.call_later
            self._timers[connection] = later(self._patience_s, self._give_up, connection)
            self._connections.setdefault(connection)

    def forget(self, connection: H11Protocol) -> None:
        """The connection waits no more."""
        self._connections.pop(connection, None)
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def make_room(self, newest: H11Protocol) -> None:
        """Close the connection that has waited longest, unless it is this one."""
        for other in self._connections:
            if other is newest:
                return
            if not other.transport.get_write_buffer_size():  # else it is still being answered
                self.forget(other)
                other.connections.discard(other)
                other.transport.close()
                return

    def _give_up(self, connection: H11Protocol) -> None:
        self._timers.pop(connection, None)
        if connection.cycle is None or connection.cycle.response_complete:
            connection.transport.close()
