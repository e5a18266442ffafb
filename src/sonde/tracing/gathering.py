"""Gathering: the values of all ranks on rank 0, through a key-value store that all of them reach.

Each rank but 0 puts its windows into the store as numbered messages, and goes on. Rank 0 takes them
out when they are there. No rank takes part in a collective operation and none waits for another in
its training thread: a rank that traces less, or nothing, or that has died, is only late. Rank 0
goes on without a late rank after `timeout_s`; what it sends later is kept all the same, with its
own iterations.

A message is a safetensors file with JSON in its header (a `Codec` makes it). Nothing that is
received is executed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypedDict

from sonde.tracing.results import Result
from sonde.tracing.troubles import TraceTroubles
from sonde.tracing.windows import TracedVariable

_CHUNK_BYTES: Final = 4 << 20
"""Of a message that is put into the store at once; torch's takes no more than 8 MiB."""

_POLL_S: Final = 0.02

Batch = dict[TracedVariable, Result]


class SentResult(TypedDict):
    """The values of one variable, as a message holds them."""

    name: str
    module: str
    slot: str
    type: str
    iterations: list[int]
    values: list[Any]
    calls: list[int]
    lines: list[int]
    phases: list[str]


class KeyValueStore(Protocol):
    """A store that is shared by all ranks. No method waits for a key to appear."""

    def set(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 to begin with; its new value."""

    def delete(self, key: str) -> None: ...


class Codec(Protocol):
    """Values as bytes, and back. `Any`: nested values with tensors in them."""

    def encode(self, value: object) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class Gathering:
    """The part of one rank in gathering. See `sonde.tracing.pipeline.Ranks`."""

    def __init__(
        self,
        store: KeyValueStore,
        codec: Codec,
        troubles: TraceTroubles,
        *,
        rank: int,
        world_size: int,
        timeout_s: float,
        limit_bytes: int,
    ) -> None:
        self.rank = rank
        self._troubles = troubles
        self._others = [r for r in range(world_size) if r != rank]
        self._timeout_s = timeout_s
        self._outbox = _Outbox(store, codec, rank, limit_bytes)
        self._inboxes = {r: _Inbox(store, codec, r) for r in self._others} if rank == 0 else {}
        self._own: list[tuple[int, Batch, float]] = []

    def exchange(self, number: int, batch: Batch) -> list[Batch]:
        if self.rank != 0:
            if not self._outbox.send({"window": number, "batch": _plain(batch)}):
                lost = sum(len(result) for result in batch.values())
                reason = "rank 0 does not take what the other ranks send."
                self._troubles.refuse(f"{lost} gathered values", reason, step=-1)
            return []
        self._own.append((number, batch, time.monotonic()))
        self._receive()
        return self._complete(is_last=False)

    def finish(self) -> list[Batch]:
        if self.rank != 0:
            self._outbox.send({"end": True})
            return []
        found: list[Batch] = []
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            if self._receive():
                deadline = time.monotonic() + self._timeout_s
            found += self._complete(is_last=False)
            if all(inbox.has_ended for inbox in self._inboxes.values()):
                break
            time.sleep(_POLL_S)
        silent = [r for r, inbox in self._inboxes.items() if not inbox.has_ended]
        if silent:
            some = ", ".join(str(r) for r in silent)
            self._troubles.warn(
                f"Rank {some} did not end its trace within {self._timeout_s:g} s. "
                "What it had sent is kept."
            )
        return found + self._complete(is_last=True)

    def _receive(self) -> bool:
        """Take what has arrived; true if there was something."""
        arrived = [inbox.receive(self._troubles) for inbox in self._inboxes.values()]
        return any(arrived)

    def _complete(self, *, is_last: bool) -> list[Batch]:
        """Windows for which all ranks have sent theirs, or are too late, or no more will come."""
        found = []
        while self._own or (is_last and any(i.windows for i in self._inboxes.values())):
            if self._own:
                number, batch, since_s = self._own[0]
                awaited = [i for i in self._inboxes.values() if not i.has_sent(number)]
                if awaited and not is_last:
                    if time.monotonic() - since_s < self._timeout_s:
                        break
                    for inbox in awaited:
                        inbox.is_late = True  # not waited for again until it sends something
                del self._own[0]
            else:
                number = min(i.windows[0][0] for i in self._inboxes.values() if i.windows)
                batch = {}
            parts = [batch]
            for inbox in self._inboxes.values():
                while inbox.windows and inbox.windows[0][0] <= number:
                    parts.append(inbox.windows.pop(0)[1])
            found.append(_merged(parts))
        return found


class _Outbox:
    """Messages from this rank to rank 0."""

    def __init__(self, store: KeyValueStore, codec: Codec, rank: int, limit_bytes: int) -> None:
        self._store = store
        self._codec = codec
        self._rank = rank
        self._limit_bytes = limit_bytes
        self._sizes: list[int] = []
        self._sent = 0

    def send(self, message: dict[str, object]) -> bool:
        """Put a message into the store; false if too much waits there already."""
        data = self._codec.encode(message)
        waiting = self._sent - self._store.add(f"{self._rank}/taken", 0)
        if waiting and sum(self._sizes[-waiting:]) + len(data) > self._limit_bytes:
            return False
        chunks = [data[i : i + _CHUNK_BYTES] for i in range(0, len(data), _CHUNK_BYTES)]
        for n, chunk in enumerate(chunks):
            self._store.set(f"{self._rank}/{self._sent}/{n}", chunk)
        self._store.set(f"{self._rank}/{self._sent}", str(len(chunks)).encode())
        self._sent = self._store.add(f"{self._rank}/sent", 1)
        self._sizes.append(len(data))
        return True


class _Inbox:
    """Messages from one rank, on rank 0."""

    def __init__(self, store: KeyValueStore, codec: Codec, rank: int) -> None:
        self.windows: list[tuple[int, Batch]] = []
        self.has_ended = False
        self.is_late = False
        self._store = store
        self._codec = codec
        self._rank = rank
        self._taken = 0

    def has_sent(self, number: int) -> bool:
        """Whether nothing more is waited for, for that window."""
        return self.has_ended or self.is_late or any(n >= number for n, _ in self.windows)

    def receive(self, troubles: TraceTroubles) -> bool:
        """Take what has arrived; true if there was something."""
        some = False
        while self._taken < self._store.add(f"{self._rank}/sent", 0):
            key = f"{self._rank}/{self._taken}"
            n = int(self._store.get(key))
            data = b"".join(self._store.get(f"{key}/{i}") for i in range(n))
            for name in (key, *(f"{key}/{i}" for i in range(n))):
                self._store.delete(name)
            self._taken = self._store.add(f"{self._rank}/taken", 1)
            try:
                message = self._codec.decode(data)
                if "end" in message:
                    self.has_ended = True
                else:
                    batch = _batch(message["batch"], self._rank)
                    self.windows.append((int(message["window"]), batch))
            except Exception as error:  # whatever a rank sends, this one goes on
                troubles.failed(f"message of rank {self._rank}", error, raises=False)
            self.is_late = False
            some = True
        return some


def _plain(batch: Batch) -> list[SentResult]:
    return [
        {
            "name": v.name,
            "module": v.module,
            "slot": v.slot,
            "type": v.module_type,
            "iterations": r.iterations,
            "values": r.values,
            "calls": r.calls,
            "lines": r.lines,
            "phases": r.phases,
        }
        for v, r in batch.items()
    ]


def _batch(plain: Sequence[SentResult], rank: int) -> Batch:
    found: Batch = {}
    for p in plain:
        variable = TracedVariable(p["name"], p["module"], p["slot"], p["type"])
        ranks = [rank] * len(p["iterations"])
        found[variable] = Result(
            p["iterations"], ranks, p["values"], p["calls"], p["lines"], p["phases"]
        )
    return found


def _merged(parts: Sequence[Batch]) -> Batch:
    """The values of all parts, one rank after the other."""
    found: Batch = {}
    for part in parts:
        for variable, result in part.items():
            found.setdefault(variable, Result()).extend(result)
    return found
