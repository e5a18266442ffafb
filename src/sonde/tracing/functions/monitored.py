"""Events of single code objects through `sys.monitoring`: how a function is observed on 3.12+.

Only the code objects asked for carry events. The one exception is an exception that leaves a
function, which Python cannot tell for a single code object: while something is observed, each frame
that an exception leaves costs a look into a dict.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any, Final

from sonde._errors import SondeError
from sonde._python import frame_at
from sonde.tracing.functions.flow import quiet_lines
from sonde.tracing.functions.mechanism import Locals, Probe

_monitoring: Final[Any] = getattr(sys, "monitoring", None)  # not there on 3.11
_NAME: Final = "sonde"
_PREFERRED: Final = (4, 3, 5, 2, 1, 0)
"""Ids of tools; 0, 1 and 2 are meant for debuggers, coverage and profilers."""


class _Watched:
    """A code object that is observed, and by whom."""

    __slots__ = ("clears", "code", "first", "probes", "quiet", "strangers")

    def __init__(self, code: CodeType) -> None:
        self.code = code
        self.probes: tuple[Probe, ...] = ()
        self.quiet: frozenset[int] = frozenset()
        """Lines without anything to observe; Python reports each once."""
        self.first = code.co_varnames[0] if code.co_argcount else None
        self.clears = not Locals(code, ()).keeps
        self.strangers: frozenset[int] = frozenset()
        """The `id` of first arguments that are of no concern to the only probe."""


class Monitor:
    """The one user of `sys.monitoring` in this process. Not thread-safe: the owner serialises."""

    def __init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._tool: int | None = None

    def add(self, code: CodeType, probe: Probe) -> None:
        """Tell the probe of this code from now on."""
        if self._tool is None:
            self._tool = self._claimed()
        events = _monitoring.events
        watched = self._watched.setdefault(id(code), _Watched(code))
        self._set_probes(watched, (*watched.probes, probe))
        wanted = events.PY_START | events.LINE | events.PY_RETURN | events.PY_YIELD
        _monitoring.set_local_events(self._tool, code, wanted)

    def discard(self, code: CodeType, probe: Probe) -> None:
        """Tell the probe no more; with the last one gone, Python runs at full speed."""
        watched = self._watched.get(id(code))
        rest = tuple(p for p in watched.probes if p is not probe) if watched else ()
        if watched is not None and rest:
            self._set_probes(watched, rest)
            return
        if self._watched.pop(id(code), None) is not None:
            _monitoring.set_local_events(self._tool, code, 0)
        if not self._watched and self._tool is not None:
            self._release(self._tool)
            self._tool = None

    def _set_probes(self, watched: _Watched, probes: tuple[Probe, ...]) -> None:
        quiet = frozenset.intersection(*(quiet_lines(watched.code, p.names) for p in probes))
        before, watched.quiet = watched.quiet, quiet
        watched.probes = probes
        watched.strangers = probes[0].strangers if len(probes) == 1 else frozenset()
        if before and not before <= watched.quiet:
            _monitoring.restart_events()

    def _claimed(self) -> int:
        free = [i for i in _PREFERRED if _monitoring.get_tool(i) is None]
        if not free:
            raise SondeError(
                "All tools of `sys.monitoring` are in use, so nothing can be traced. "
                "Switch off a debugger, coverage or profiler that does not need to run."
            )
        tool = free[0]
        _monitoring.use_tool_id(tool, _NAME)
        for event, callback in self._callbacks().items():
            _monitoring.register_callback(tool, event, callback)
        _monitoring.set_events(tool, _monitoring.events.PY_UNWIND)
        return tool

    def _release(self, tool: int) -> None:
        _monitoring.set_events(tool, 0)
        for event in self._callbacks():
            _monitoring.register_callback(tool, event, None)
        _monitoring.free_tool_id(tool)

    def _callbacks(self) -> dict[int, object]:
        events = _monitoring.events
        return {
            events.PY_START: self._start,
            events.LINE: self._line,
            events.PY_RETURN: self._returned,
            events.PY_YIELD: self._yielded,
            events.PY_UNWIND: self._unwound,
        }

    def _start(self, code: CodeType, _offset: int) -> None:
        watched = self._watched.get(id(code))
        if watched is None:
            return
        frame = frame_at(1)
        first = None
        if watched.first is not None:
            values = frame.f_locals
            first = values.get(watched.first)
            if watched.clears:
                values.clear()
            if id(first) in watched.strangers:
                return
        for probe in watched.probes:
            probe.start(frame, first)

    def _line(self, code: CodeType, line: int) -> object:
        watched = self._watched.get(id(code))
        if watched is None:
            return None
        if line in watched.quiet:
            return _monitoring.DISABLE
        for probe in watched.probes:
            if probe.open:
                probe.line(frame_at(1), line)
        return None

    def _returned(self, code: CodeType, _offset: int, value: object) -> None:
        watched = self._watched.get(id(code))
        for probe in watched.probes if watched else ():
            if probe.open:
                probe.returned(frame_at(1), value)

    def _yielded(self, code: CodeType, _offset: int, value: object) -> None:
        watched = self._watched.get(id(code))
        for probe in watched.probes if watched else ():
            if probe.open:
                probe.yielded(frame_at(1), value)

    def _unwound(self, code: CodeType, _offset: int, _error: BaseException) -> None:
        watched = self._watched.get(id(code))
        for probe in watched.probes if watched else ():
            if probe.open:
                probe.unwound(frame_at(1))
