"""Watches that are not closed: for `unwatch`, for traces, and for forked children."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

if TYPE_CHECKING:  # what is kept here belongs to those above
    from sonde.capture.backend import Session
    from sonde.store.writing.writer import Writer
    from sonde.tracing.wiring import Trace
    from sonde.watching import Watch

OPEN: Final[set[Watch]] = set()


class WatchParts(NamedTuple):
    """What a trace shares with the watch of its model."""

    session: Session | None
    writer: Writer | None


PARTS: Final[WeakKeyDictionary[Watch, WatchParts]] = WeakKeyDictionary()
"""The parts of each open watch."""

UNRECORDED: Final[list[ref[object]]] = []
"""Models whose watch records nothing, because another process writes their rank."""

TRACES: Final[WeakKeyDictionary[Watch, WeakSet[Trace]]] = WeakKeyDictionary()
"""Traces that write into the run of a watch, by watch."""


def settle_traces(watch: Watch, timeout_s: float) -> bool:
    """Wait until values of steps that ended are with the writer; False if that took too long."""
    return all(trace.settle(timeout_s) for trace in list(TRACES.get(watch, ())))


def _forget_all() -> None:
    """In a forked child nothing is watched: the threads did not come along."""
    for each in list(OPEN):
        each.forked()
    OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
