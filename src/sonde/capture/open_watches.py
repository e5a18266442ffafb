"""Watches that are not closed: for `unwatch`, for traces, and for forked children."""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

OPEN: Final[set[Any]] = set()
"""`Any`: a `Watch`."""


class WatchParts(NamedTuple):
    """What a trace shares with the watch of its model. `Any`: what is given may be `None`."""

    session: Any
    writer: Any


PARTS: Final[WeakKeyDictionary[Any, WatchParts]] = WeakKeyDictionary()
"""The parts of each open watch."""

UNRECORDED: Final[list[ref[Any]]] = []
"""Models whose watch records nothing, because another process writes their rank."""

TRACES: Final[WeakKeyDictionary[Any, WeakSet[Any]]] = WeakKeyDictionary()
"""Traces that write into the run of a watch, by watch. `Any`: a `Watch`, a `Trace`."""


def settle_traces(watch: Any, timeout_s: float) -> bool:
    """Wait until values of steps that ended are with the writer; False if that took too long."""
    return all(trace.settle(timeout_s) for trace in list(TRACES.get(watch, ())))


def _forget_all() -> None:
    """In a forked child nothing is watched: the threads did not come along."""
    for each in list(OPEN):
        each.forked()
    OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
