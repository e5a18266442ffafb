"""Scalars: numbers that a loop logs, and the flat dict that `watch.metrics` returns.

Knows no framework: a session passes the function that makes a number of what a user logs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, Protocol, TypeGuard

from sonde._errors import SondeError
from sonde.capture.drain import Drain, Numbers
from sonde.capture.numbers.latest import Latest, check_stats
from sonde.capture.numbers.recent import Recent
from sonde.capture.numbers.repeats import Repeats, Value, check_reduce
from sonde.capture.phases import Phases
from sonde.capture.plan import Selector, kinds_of, selector_of
from sonde.capture.troubles import Troubles
from sonde.record import Event, Site

NOTE: Final = "note"
"""The name under which a text marks a step: `watch.log(note="warmup ends")`."""
_MAX_NOTE: Final = 500
_WAIT_S: Final = 10.0


class Remembering(Protocol):
    """Keeps the numbers of the last few steps."""

    @property
    def last_step(self) -> int:
        """The latest step that has numbers, or 0."""
        ...

    def remember(self, step: int, name: str, value: Value) -> None:
        """Keep a number of a step."""

    def numbers_of(self, step: int, where: Selector | None = None) -> dict[str, float]:
        """The numbers of a step by flat key, of the modules that are meant. Waits for them."""
        ...


class RecentScalars:
    """Keeps the scalars of the last few steps, where no module has numbers."""

    def __init__(self, *, steps: int = 8) -> None:
        self._recent: Recent[str, Value] = Recent(steps=steps)

    @property
    def last_step(self) -> int:
        return self._recent.last_step

    def remember(self, step: int, name: str, value: Value) -> None:
        self._recent.put(step, name, value)

    def numbers_of(self, step: int, where: Selector | None = None) -> dict[str, float]:
        found = self._recent.of(step).items()
        return {name: value() if callable(value) else value for name, value in found}


class Scalars:
    """Takes what a loop logs. `number` makes a number, or a promise of one, of any value; it raises
    on what is none. `taken` are the names that were logged."""

    def __init__(
        self,
        drain: Drain,
        phases: Phases,
        troubles: Troubles,
        latest: Latest,
        *,
        memory: Remembering,
        number: Callable[[Any], Value] = float,
    ) -> None:
        self.taken: set[str] = set()
        self._drain = drain
        self._phases = phases
        self._troubles = troubles
        self._latest = latest
        self._memory = memory
        self._number = number
        self._repeats = Repeats()

    def keep_in(self, memory: Remembering) -> None:
        """Keep the numbers of the last few steps there, and look for them there."""
        self._memory = memory

    def log(
        self,
        values: Mapping[str, object],
        *,
        step: int | None,
        reduce: str,
        refuse: Callable[[str], None],
    ) -> None:
        """Record numbers of a step. What is no number is refused."""
        try:
            check_reduce(reduce)
        except SondeError as error:
            refuse(f"Numbers were not logged: {error}")
            return
        if step is not None and not is_step(step):
            kind = type(step).__name__
            refuse(f"Numbers were not logged: `step` must be an int of 0 or more, got {kind}.")
            return
        label = self._phases.label if step is None else int(step)
        if isinstance(note := values.get(NOTE), str):
            self._drain.put(Event(NOTE, note[:_MAX_NOTE], step=label))
            values = {name: value for name, value in values.items() if name != NOTE}
        numbers = self._checked(values, refuse)
        if numbers:
            self.taken.update(numbers)
            phase = self._phases.forced or "train"
            for name, number in numbers.items():
                when = (label, phase)
                numbers[name] = self._repeats.put(name, number, when=when, reduce=reduce)
                self._memory.remember(label, name, numbers[name])
            where: list[str | None] = [None] * len(numbers)
            self._drain.put(Numbers(label, phase, list(numbers), where, list(numbers.values())))

    def flat(
        self,
        step: int | None,
        *,
        stats: str | Sequence[str] | None,
        kinds: str | Iterable[str] | None,
        include: object,
        prefix: str,
    ) -> dict[str, float]:
        """Numbers of a step, and statistics of the last recorded one if asked for."""
        asked = check_stats(stats)
        wanted = None if kinds is None else kinds_of(kinds)
        chosen = selector_of(include, "include")
        if asked or self._drain.norms is not None:
            self._drain.wait(_WAIT_S)
        latest = self._latest
        if step is None and asked and latest.step is not None:
            step = latest.step
        at = self._memory.last_step if step is None else step
        found = self._memory.numbers_of(at, chosen)
        found |= {name: v for name, v in latest.norms(at).items() if name not in found}

        def is_meant(site: Site) -> bool:
            if wanted is not None and site.kind not in wanted:
                return False
            return chosen is None or chosen(site.module, None) or chosen(site.path, None)

        if asked and at == latest.step:
            found |= latest.statistics(asked, is_meant)
        return {f"{prefix}/{key}": v for key, v in found.items()} if prefix else found

    def _checked(
        self, values: Mapping[str, object], refuse: Callable[[str], None]
    ) -> dict[str, Value]:
        numbers: dict[str, Value] = {}
        for name, value in values.items():
            try:
                if not isinstance(name, str):
                    raise TypeError(f"a name must be a str, got {type(name).__name__}")
                numbers[name] = self._number(value)
            except Exception as error:
                self._troubles.pass_on(error)
                refuse(f"`{name}` was not logged: {error}")
        return numbers


def is_step(given: object) -> TypeGuard[int]:
    """Return whether it is the number of a step. (A tensor may have to come from a device.)"""
    is_whole = isinstance(given, Integral) and not isinstance(given, bool)
    return is_whole and 0 <= int(given) < 2**63  # type: ignore[call-overload]  # it is Integral


def renumber(phases: Phases, step: object, refuse: Callable[[str], None]) -> bool:
    """Give the next step this number, if it can have it. Whether it is due is still to be said."""
    least = 0 if phases.ended is None else phases.ended + 1
    if not is_step(step) or int(step) < least:
        refuse(
            f"`current_step` must be an int of {least} or more, got {step!r}. "
            f"The step is still {phases.step}."
        )
        return False
    if not phases.is_between:
        refuse(
            f"`current_step` can only be set between steps. Step {phases.step} has begun "
            "and keeps its number."
        )
        return False
    phases.renumber(int(step))
    return True
