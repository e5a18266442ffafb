"""What went wrong or was left out: told once, counted, shown in the run. Training goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from sonde._signals import pass_on
from sonde.capture.drain import Drain
from sonde.record import Event, Level

_LOG: Final = logging.getLogger("sonde")
_SAID: Final[set[str]] = set()

TOO_MANY_CALLS: Final = (
    "more than {0} calls in a pass; the first {0} are kept. Raise `max_calls` to keep more"
)
"""Why a call was skipped; with the limit."""


class Troubles:
    """Counts by place and reason. The first of each is told at once, the others at the end."""

    def __init__(self, drain: Drain, *, strict: bool) -> None:
        self.step = 0
        self.warn: Callable[[str], None] = lambda _text: None
        self.skipped: dict[tuple[str, str], int] = {}
        self.failures: dict[tuple[str, str], int] = {}
        self.silent_steps = 0
        self._limits: set[str] = set()
        self._absent: set[str] = set()
        self._drain = drain
        self._strict = strict

    def skip(self, where: str, reason: str) -> None:
        """Something cannot be recorded, for a reason that is no error."""
        key = (where, reason)
        if key not in self.skipped:
            self.tell("skipped", reason, where=where)
        self.skipped[key] = self.skipped.get(key, 0) + 1

    def pass_on(self, error: BaseException) -> None:
        """Raise the error again if a signal handler has raised it: it is not ours to take."""
        pass_on(error)

    def failed(self, where: str, error: BaseException) -> None:
        """An error of ours (or of a user's function): raised if strict, else a warning, once."""
        self.pass_on(error)
        if self._strict:
            raise error
        key = (where, repr(error))
        if key not in self.failures:
            self.tell("failed", repr(error), where=where, level="error")
            self.failures[key] = 0
            self.warn(f"Stopped recording `{where}`: {error!r}. Training continues.")
        self.failures[key] += 1

    def concern(self, code: str, text: str, where: str = "") -> None:
        """Something that the user should know: a warning, and an event in the run."""
        self.tell(code, text, where=where, level="warning")
        self.warn(text)

    def slower(self, device: str, reason: str) -> None:
        """Tensors there are read by plain operations of torch: right, and slower."""
        text = f"tensors on {device} are sketched by plain torch operations: {reason}"
        self.tell("kernel", text)
        _say(text)

    def unseen(self) -> None:
        """The optimizer stepped, and the model was not called as far as we could see."""
        text = (
            "no call of the model was seen in a recorded step. If a function around it was "
            "compiled with torch.compile before the watch began, call torch._dynamo.reset() once"
        )
        if not self.silent_steps:
            self.warn(f"{text}.")
        self.silent_steps += 1
        self.tell("unseen", text, level="warning")

    def limited(self, text: str) -> None:
        """The compiler reached its limit on recompilations; `text` says for which function."""
        if text not in self._limits:
            self._limits.add(text)
            self.tell("recompile_limit", text, level="warning")
            self.warn(f"{text}.")

    def untraced(self, version: str) -> None:
        """A compiler took our taps and left out those on gradients."""
        text = (
            "gradients of what modules return are not recorded inside compiled code: the "
            f"compiler of torch {version} cannot trace hooks on all tensors. That of 2.13 can"
        )
        self.skip("compiled code", text)
        _say(text)

    def absent(self, texts: Iterable[str]) -> None:
        """Names that this version of the framework lacks, and what is left out without them."""
        for text in texts:
            if text not in self._absent:
                self._absent.add(text)
                self.tell("left_out", text, level="warning")
                _say(text)

    def tell(self, code: str, message: str, *, where: str = "", level: Level = "info") -> None:
        """Put an event about the recording into the run."""
        self._drain.put(Event(code, message, where=where, step=self.step, level=level))

    def tell_the_rest(self) -> None:
        """How often each was met after the first time."""
        self._rest("skipped", "info", self.skipped)
        self._rest("failed", "error", self.failures)

    def _rest(self, code: str, level: Level, counted: dict[tuple[str, str], int]) -> None:
        for (where, message), n in counted.items():
            if n > 1:
                self._drain.put(Event(code, message, where, self.step, level, n - 1))


def _say(text: str) -> None:
    """Once in a process, and where it cannot raise."""
    if text not in _SAID:
        _SAID.add(text)
        _LOG.warning("%s", text)
