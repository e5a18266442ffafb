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
from sonde.tracing.flow import first_line_start, quiet_lines
from sonde.tracing.mechanism import Locals, Probe

_monitoring: Final[Any] = getattr(sys, "monitoring", None)  # Any: not there on 3.11
_NAME: Final = "sonde"
_PREFERRED: Final = (4, 3, 5, 2, 1, 0)
"""Ids of tools; 0, 1 and 2 are meant for debuggers, coverage and profilers."""


class Monitor:
    """The one user of `sys.monitoring` in this process. Not thread-safe: the owner serialises."""

    def __init__(self) -> None:
        self._probes: dict[int, tuple[Probe, ...]] = {}
        self._codes: dict[int, CodeType] = {}
        self._firsts: dict[int, Locals] = {}
        self._quiet: dict[int, frozenset[int]] = {}
        """Lines on which nobody has anything to look at; Python tells of each once."""
        self._tool: int | None = None

    def add(self, code: CodeType, probe: Probe) -> None:
        """Tell the probe of this code from now on."""
        if self._tool is None:
            self._tool = self._claimed()
        events = _monitoring.events
        key = id(code)
        self._codes[key] = code
        self._firsts[key] = Locals(code, code.co_varnames[:1] if code.co_argcount else ())
        self._set_probes(key, (*self._probes.get(key, ()), probe))
        wanted = events.PY_START | events.LINE | events.PY_RETURN | events.PY_YIELD
        _monitoring.set_local_events(self._tool, code, wanted)

    def discard(self, code: CodeType, probe: Probe) -> None:
        """Tell the probe no more; with the last one gone, Python runs as if nobody had come."""
        key = id(code)
        rest = tuple(p for p in self._probes.get(key, ()) if p is not probe)
        if rest:
            self._set_probes(key, rest)
            return
        if self._probes.pop(key, None) is not None:
            del self._codes[key], self._firsts[key], self._quiet[key]
            _monitoring.set_local_events(self._tool, code, 0)
        if not self._probes and self._tool is not None:
            self._release(self._tool)
            self._tool = None

    def _set_probes(self, key: int, probes: tuple[Probe, ...]) -> None:
        code = self._codes[key]
        first = min(first_line_start(code, probe.names) for probe in probes)
        before, now = self._quiet.get(key), quiet_lines(code, first)
        self._probes[key], self._quiet[key] = probes, now
        if before and not before <= now:
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

    def _callbacks(self) -> dict[int, Any]:
        events = _monitoring.events
        return {
            events.PY_START: self._start,
            events.LINE: self._line,
            events.PY_RETURN: self._returned,
            events.PY_YIELD: self._yielded,
            events.PY_UNWIND: self._unwound,
        }

    def _start(self, code: CodeType, _offset: int) -> None:
        probes = self._probes.get(id(code))
        if probes is None:
            return
        frame = sys._getframe(1)
        found = self._firsts[id(code)].read(frame)
        first = found[0][1] if found else None
        for probe in probes:
            probe.start(frame, first)

    def _line(self, code: CodeType, line: int) -> object:
        if line in self._quiet.get(id(code), ()):
            return _monitoring.DISABLE
        for probe in self._probes.get(id(code), ()):
            if probe.open:
                probe.line(sys._getframe(1), line)
        return None

    def _returned(self, code: CodeType, _offset: int, value: object) -> None:
        for probe in self._probes.get(id(code), ()):
            if probe.open:
                probe.returned(sys._getframe(1), value)

    def _yielded(self, code: CodeType, _offset: int, value: object) -> None:
        for probe in self._probes.get(id(code), ()):
            if probe.open:
                probe.yielded(sys._getframe(1), value)

    def _unwound(self, code: CodeType, _offset: int, _error: BaseException) -> None:
        for probe in self._probes.get(id(code), ()):
            if probe.open:
                probe.unwound(sys._getframe(1))
