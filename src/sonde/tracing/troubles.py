"""What went wrong or was left out of a trace: said once, counted, no reason to stop training."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

from sonde._errors import SondeWarning
from sonde._signals import pass_on
from sonde.record import Event


class TraceTroubles:
    """Counts by place and reason. Each is a warning the first time; `tell` puts it into a run."""

    def __init__(self, *, strict: bool) -> None:
        self.strict = strict
        self.tell: Callable[[Event], None] = lambda _event: None
        self.refused: dict[str, int] = {}
        """Values that were not kept, by name."""
        self.failures: dict[tuple[str, str], int] = {}
        self.background = -1
        """The thread whose warnings wait for another: Python shows them only where a user looks."""
        self._said: set[str] = set()
        self.waiting: list[str] = []
        """What is still to be said; see `catch_up`."""
        self._lock = threading.Lock()

    def refuse(self, name: str, reason: str, *, step: int) -> None:
        """A value is not kept."""
        with self._lock:
            self.refused[name] = self.refused.get(name, 0) + 1
            is_first = self.refused[name] == 1
        if is_first:
            text = f"A value of `{name}` is not kept: {reason}"
            self.tell(Event("trace_refused", text, where=name, step=step, level="warning"))
            self.warn(text)

    def failed(
        self, where: str, error: BaseException, *, step: int = -1, raises: bool = True
    ) -> None:
        """An error of ours, or of a user's function."""
        pass_on(error)
        if self.strict and raises:
            raise error
        key = (where, repr(error))
        with self._lock:
            self.failures[key] = self.failures.get(key, 0) + 1
            is_first = self.failures[key] == 1
        if is_first:
            text = f"Stopped tracing `{where}`: {error!r}. Training continues."
            self.tell(Event("trace_failed", text, where=where, step=step, level="error"))
            self.warn(text)

    def warn(self, text: str) -> None:
        """Say something, once. Never raises, even where warnings are errors; see `say`."""
        with self._lock:
            if text in self._said:
                return
            self._said.add(text)
            self.waiting.append(text)
        self.catch_up()

    def catch_up(self) -> None:
        """Say what has to be said, as far as that is possible here and now."""
        if not self.waiting or threading.get_ident() == self.background:
            return
        with self._lock:
            waiting, self.waiting = self.waiting, []
        for text in waiting:
            try:
                warnings.warn(text, SondeWarning, stacklevel=3)
            except SondeWarning:
                with self._lock:
                    self.waiting.append(text)

    def say(self) -> None:
        """Say what is left. Raises where warnings are errors: not to be called inside a hook."""
        with self._lock:
            waiting, self.waiting = self.waiting, []
        for text in waiting:
            warnings.warn(text, SondeWarning, stacklevel=3)
