"""The inbox of a writer: what was handed over and not looked at yet, bounded by bytes.

Handing over is one append under a lock that is not written in Python: a signal can neither leave
the lock taken nor half of a record behind.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final, Literal

from sonde._signals import Bell, Gate
from sonde.store.writing.publisher import TakenItem

FLUSH_BYTES: Final = 32 << 20
"""More than this is not left to wait for company."""

DropCause = Literal["queue_full", "disk", "closed", "invalid", "failed"]


class Inbox:
    """Takes records from any thread; one thread takes them out."""

    def __init__(self, limit_bytes: int) -> None:
        self.bell = Bell()
        self.refuses: DropCause | None = None
        """Why nothing is taken any more, if so."""
        self.oldest_s = 0.0
        self.size_bytes = 0
        self._limit_bytes = limit_bytes
        self._entries: list[TakenItem] = []
        self._taken_out = 0
        self._dropped: dict[str, int] = {}
        self._waiting: deque[Gate] = deque()
        # Reentrant: a signal handler may log while this thread is in here.
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        return bool(self._entries)

    def put(self, what: str, item: object, size_bytes: int, records: int) -> bool:
        """Take something; false if it was dropped, which is counted."""
        entry = TakenItem(what, item, time.time_ns(), size_bytes, records)
        with self._lock:
            cause = self.refuses or (None if self._fits(size_bytes) else "queue_full")
            if cause is not None:
                self.drop(cause, records)
                return False
            is_first = not self._entries
            self.size_bytes += size_bytes
            self._entries.append(entry)  # from here on it counts
            if is_first:
                self.oldest_s = time.monotonic()
        if is_first or self.size_bytes > FLUSH_BYTES:
            self.bell.ring()
        return True

    def wait_for_room(self, size_bytes: int, timeout_s: float) -> None:
        """Wait until something of this size would be taken, or refused for good."""
        deadline_s = time.monotonic() + timeout_s
        while self.refuses is None and not self._fits(size_bytes):
            gate = Gate()
            self._waiting.append(gate)
            rest_s = deadline_s - time.monotonic()
            if rest_s <= 0:
                return
            if self.refuses is None and not self._fits(size_bytes):
                gate.wait(rest_s)

    def take(self) -> list[TakenItem]:
        """Take out all that is there."""
        with self._lock:
            entries, self._entries = self._entries, []
            self.size_bytes = 0
            self._taken_out += sum(entry.records for entry in entries)
        self.wake()
        return entries

    def wake(self) -> None:
        """Let those look again who wait for room."""
        while self._waiting:
            self._waiting.popleft().open()

    def drop(self, cause: DropCause, records: int) -> None:
        """Count records that were handed over and are lost."""
        with self._lock:
            self._dropped[cause] = self._dropped.get(cause, 0) + records

    def refuse(self, cause: DropCause) -> None:
        """Take nothing from now on."""
        self.refuses = cause
        self.wake()

    def counts(self) -> tuple[int, dict[str, int]]:
        """How many records were handed over so far, and how many of them dropped here, by cause."""
        with self._lock:
            inside = sum(entry.records for entry in self._entries)
            dropped = dict(self._dropped)
            return self._taken_out + inside + sum(dropped.values()), dropped

    def _fits(self, size_bytes: int) -> bool:
        return self.size_bytes + size_bytes <= self._limit_bytes
