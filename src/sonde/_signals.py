"""Waiting and waking that a signal cannot break.

Ctrl-C raises `KeyboardInterrupt` between any two instructions of Python. `threading.Event`,
`Condition` and `queue.Queue` are written in Python: an interrupt just after they take their lock
leaves it taken, and the next call waits forever. So does `Thread.join`, and `is_alive` may take a
living thread for a dead one. What is here takes no lock in Python at all: it is
made of `SimpleQueue` and `deque`, whose operations are single instructions.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
from collections import deque
from queue import Empty, SimpleQueue
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Final


class Gate:
    """Opens once, and stays open. Any thread may open it or wait for it."""

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: deque[SimpleQueue[None]] = deque()

    def open(self) -> None:
        self.is_open = True
        for one in list(self._waiting):
            one.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is open; false if it is not after `timeout_s`."""
        mine: SimpleQueue[None] = SimpleQueue()
        self._waiting.append(mine)
        if not self.is_open and timeout_s > 0:
            with contextlib.suppress(Empty):
                mine.get(timeout=timeout_s)
        return self.is_open


class Bell:
    """Wakes the one thread that waits for it, or the next wait if none does."""

    __slots__ = ("_rung",)

    def __init__(self) -> None:
        self._rung: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Say that something has changed. Change it first."""
        if self._rung.empty():
            self._rung.put(None)

    def wait(self, timeout_s: float) -> None:
        """Wait until it rings, for at most `timeout_s`."""
        try:
            self._rung.get(timeout=max(timeout_s, 0.0))
            while True:
                self._rung.get_nowait()
        except Empty:
            return


def is_from_handler(error: BaseException) -> bool:
    """Whether a signal handler has raised the error: it then belongs to whoever set the handler,
    whatever code the signal has interrupted."""
    codes: set[CodeType | None] = set()
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        if callable(handler):
            is_function = isinstance(handler, FunctionType | MethodType)
            called = handler if is_function else handler.__call__
            codes.add(getattr(called, "__code__", None))
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes or _is_call_of_handler(at.tb_frame):
            return True
        at = at.tb_next
    return False


def _is_call_of_handler(frame: FrameType) -> bool:
    """Whether the last two arguments are a signal and the frame that it interrupted.

    This recognizes handlers that are wrapped, or that were replaced before they raised: many
    restore the default first.
    """
    code = frame.f_code
    n = code.co_argcount
    given = [frame.f_locals.get(name) for name in code.co_varnames[:n]]
    if code.co_flags & inspect.CO_VARARGS:
        starred = frame.f_locals.get(code.co_varnames[n + code.co_kwonlyargcount])
        given += starred if isinstance(starred, tuple) else ()
    return (
        len(given) > 1
        and frame.f_back is not None
        and given[-1] is frame.f_back
        and type(given[-2]) in (int, signal.Signals)
        and given[-2] in signal.valid_signals()
    )


class Ignoring:
    """`suppress(kind)` for code that a user's signal handler may interrupt: what it raises gets
    through. A handler that raises `TimeoutError` raises an `OSError`."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return isinstance(error, self._kind) and not is_from_handler(error)


IGNORING: Final = Ignoring(Exception)
"""Ends a block at any error, except what a signal handler raises."""

IGNORING_OS: Final = Ignoring(OSError)


def pass_on(error: BaseException) -> None:
    """Raise the error again if a signal handler has raised it: it is not ours to take."""
    if is_from_handler(error):
        raise error
