"""Watching single functions run: at their start, before each line, at their end.

    with observe(Model.forward, probe):
        ...

Only the functions asked for are observed; all others run at full speed, and with nothing observed
nothing is left behind. On Python 3.12 and later through `sys.monitoring`, on 3.11 through a copy of
the code object with calls in it. Neither uses `sys.settrace`: debuggers, coverage and profilers
keep working, and every thread is seen. Knows nothing of models and frameworks.
"""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Final, Protocol, Self, TypeVar

from sonde._python import frame_at

_IS_PATCHED: Final = sys.version_info < (3, 12)
_ARE_LOCALS_COPIED: Final = sys.version_info < (3, 13)
_ASKING_FOR_LOCALS: Final = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe"})

T = TypeVar("T")


class Probe(Protocol):
    """Callbacks of an observed function. An exception of a probe leaves into the function."""

    @property
    def open(self) -> Mapping[int, object]:
        """Calls that are followed. While there are none, only new calls are told of."""
        ...

    @property
    def names(self) -> Collection[str] | None:
        """Variables that are looked at: lines before any of them can have a value, and lines that
        only name or return variables, are not told of. None for all lines."""

    @property
    def strangers(self) -> frozenset[int]:
        """The `id` of first arguments that are known to be of no concern."""
        ...

    def start(self, frame: FrameType, first: object) -> None:
        """A call begins: its arguments are in place, the first of them being this, if it has one.
        More is told only of calls that are put into `open`."""

    def line(self, frame: FrameType, line: int) -> None:
        """A line is about to run, or to go on after an inner one."""

    def returned(self, frame: FrameType, value: object) -> None:
        """The call ends with a value."""

    def yielded(self, frame: FrameType, value: object) -> None:
        """The function is a generator and hands out a value."""

    def unwound(self, frame: FrameType) -> None:
        """The call ends with an exception."""


class Calls(dict[int, T]):
    """Calls by the id of their frame. May stand among the constants of a function's code, which
    have to be hashable; in a copy of the code there are none."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # by identity

    def __reduce__(self) -> tuple[object, ...]:
        return dict, ()


class Observation:
    """A function being observed, until it is closed."""

    def __init__(self, function: FunctionType, probe: Probe) -> None:
        self.function = function
        self._probe: Probe | None = probe
        with _LOCK:
            _REGISTRY.add(function, probe)

    @property
    def code(self) -> CodeType:
        """The code that runs now."""
        return self.function.__code__

    def close(self) -> None:
        """Observe no more. May be called again."""
        with _LOCK:
            probe, self._probe = self._probe, None
            if probe is not None:
                _REGISTRY.discard(self.function, probe)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


def observe(function: FunctionType, probe: Probe) -> Observation:
    """Tell the probe whenever the function runs, in whichever thread, until closed.

    Calls that are running already are not seen.
    """
    return Observation(function, probe)


def own_functions() -> list[FunctionType]:
    """Functions of ours that run inside observed ones: no part of what those do."""
    owner: type
    if _IS_PATCHED:
        owner = _Relay
    else:
        from sonde.tracing.functions.monitored import Monitor

        owner = Monitor
    names = ("_start", "_line", "_returned", "_yielded", "_unwound")
    return [vars(owner)[name] for name in names]


class Locals:
    """Reads variables of one function out of its frames.

    A name that stands for the variable of a comprehension at that moment has no value: it is
    another variable, even where Python keeps it in the same place.
    """

    def __init__(self, code: CodeType, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._hidden = {} if _IS_PATCHED else _hidden(code)
        # Up to 3.12 a frame keeps a dict with copies of its variables, and so tensors beyond their
        # life. It is emptied after reading, unless the function may have it in hand.
        self.keeps = (
            not _ARE_LOCALS_COPIED
            or not code.co_flags & inspect.CO_OPTIMIZED
            or not _ASKING_FOR_LOCALS.isdisjoint(code.co_names)
        )

    def read(self, frame: FrameType) -> list[tuple[str, object]]:
        """Those of the names that have a value now, with it."""
        names: Iterable[str] = self.names
        if self._hidden and (shadowed := self._hidden.get(frame.f_lasti)):
            # Not even looked at: 3.13.0 takes what is there for a cell, and crashes.
            names = [name for name in names if name not in shadowed]
        values = frame.f_locals
        found = []
        for name in names:
            if name in values:
                found.append((name, values[name]))  # noqa: PERF401  # faster for a few names
        if not self.keeps:
            values.clear()
        return found


def names_in(code: CodeType) -> tuple[str, ...]:
    """All names that can have a value in a call of this code, arguments first.

    From 3.12 on variables of comprehensions are among them; `Locals` never finds a value for those.
    """
    return tuple(dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)))


def _hidden(code: CodeType) -> dict[int, frozenset[str]]:
    """For each instruction inside an inlined comprehension, the names that mean others there.

    From 3.12 on a comprehension runs in the frame of its function. It puts away the variables that
    it uses the names of, and at its end puts them back; both are marked with the place of all of it
    in the source, while all that it does itself has a place inside that.
    """
    instructions = list(dis.get_instructions(code))
    found: dict[int, set[str]] = {}
    for n, begin in enumerate(instructions):
        if begin.opname != "LOAD_FAST_AND_CLEAR":
            continue
        for instruction in instructions[n:]:
            found.setdefault(instruction.offset, set()).add(str(begin.argval))
            if _stores(instruction, begin.argval) and not _is_within(instruction, begin):
                break
    return {offset: frozenset(names) for offset, names in found.items()}


def _stores(instruction: dis.Instruction, name: str) -> bool:
    stored = instruction.argval
    return instruction.opname.startswith("STORE_FAST") and (
        stored == name or (isinstance(stored, tuple) and name in stored)
    )


def _is_within(inner: dis.Instruction, outer: dis.Instruction) -> bool:
    """Whether the source of one is a part of the source of the other, and not all of it."""
    a, b = _span(inner), _span(outer)
    return a is not None and b is not None and a != b and b[0] <= a[0] and a[1] <= b[1]


def _span(instruction: dis.Instruction) -> tuple[tuple[int, int], tuple[int, int]] | None:
    at = instruction.positions
    if at is None or at.lineno is None or at.end_lineno is None:
        return None
    return (at.lineno, at.col_offset or 0), (at.end_lineno, at.end_col_offset or 0)


class _Registry(Protocol):
    """Who observes what, in this process."""

    def add(self, function: FunctionType, probe: Probe) -> None: ...

    def discard(self, function: FunctionType, probe: Probe) -> None: ...


class _Monitored:
    """The registry of 3.12 and later."""

    def __init__(self) -> None:
        from sonde.tracing.functions.monitored import Monitor

        self._monitor = Monitor()
        self._codes: dict[tuple[int, int], CodeType] = {}

    def add(self, function: FunctionType, probe: Probe) -> None:
        code = self._codes.setdefault((id(function), id(probe)), function.__code__)
        self._monitor.add(code, probe)

    def discard(self, function: FunctionType, probe: Probe) -> None:
        code = self._codes.pop((id(function), id(probe)), function.__code__)
        self._monitor.discard(code, probe)


class _Patched:
    """The registry of 3.11: functions that run a copy of their code."""

    def __init__(self) -> None:
        self._relays: dict[int, _Relay] = {}

    def add(self, function: FunctionType, probe: Probe) -> None:
        relay = self._relays.get(id(function))
        if relay is None or function.__code__ is not relay.instrumented:
            relay = self._relays[id(function)] = _Relay(function)
        relay.probes = (*relay.probes, probe)
        relay.install()

    def discard(self, function: FunctionType, probe: Probe) -> None:
        relay = self._relays.get(id(function))
        if relay is None:
            return
        relay.probes = tuple(p for p in relay.probes if p is not probe)
        if relay.probes:
            relay.install()
        else:
            del self._relays[id(function)]
            relay.restore()


class _Relay:
    """Passes on what the probes in one function's code tell.

    Copied or pickled with the code, it turns into nothing.
    """

    def __init__(self, function: FunctionType) -> None:
        self.probes: tuple[Probe, ...] = ()
        self._function = function
        self._original = self.instrumented = function.__code__

    def install(self) -> None:
        """Put in the calls that the probes need, and no others."""
        from sonde.tracing.functions.flow import quiet_lines
        from sonde.tracing.functions.instrumented import Callbacks, instrument

        if self._function.__code__ is not self.instrumented:
            return  # the function has other code now
        only = self.probes[0] if len(self.probes) == 1 else None
        self.instrumented = instrument(
            self._original,
            Callbacks(
                *(self._start, self._line, self._returned, self._yielded, self._unwound),
                strangers=frozenset(only.strangers if only else ()),
                gate=only.open if only and isinstance(only.open, Calls) else None,
                quiet=frozenset.intersection(
                    *(quiet_lines(self._original, p.names) for p in self.probes)
                ),
            ),
        )
        self._function.__code__ = self.instrumented

    def restore(self) -> None:
        if self._function.__code__ is self.instrumented:
            self._function.__code__ = self._original

    def __reduce__(self) -> tuple[object, ...]:
        return _Nothing, ()

    def _start(self, first: object) -> None:
        for probe in self.probes:
            probe.start(frame_at(1), first)

    def _line(self, line: int) -> None:
        for probe in self.probes:
            if probe.open:
                probe.line(frame_at(1), line)

    def _returned(self, value: object) -> None:
        for probe in self.probes:
            if probe.open:
                probe.returned(frame_at(1), value)

    def _yielded(self, value: object) -> None:
        for probe in self.probes:
            if probe.open:
                probe.yielded(frame_at(1), value)

    def _unwound(self) -> None:
        for probe in self.probes:
            if probe.open:
                probe.unwound(frame_at(1))


class _Nothing:
    """What is left of a relay in a copy: takes every call and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("_") or name.startswith("__"):
            raise AttributeError(name)
        return contextlib.nullcontext().__exit__


_LOCK = threading.RLock()
_REGISTRY: _Registry = _Patched() if _IS_PATCHED else _Monitored()
"""The code of a function belongs to the process, and so does what observes it."""
