"""Probes: what hangs on methods and modules while they are traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Final

from sonde.tracing.functions.flow import first_line_start
from sonde.tracing.functions.mechanism import Calls, Locals, names_in, observe
from sonde.tracing.functions.methods import Receives, receiver_in
from sonde.tracing.paths import ANY_DEPTH, RETURN, is_wild, matches, under
from sonde.tracing.resolving import TracedPlace
from sonde.tracing.tracer import UNKNOWN_LINE, Framework, MethodCall, Remove, Tracer
from sonde.tracing.values import stamp

_MAX_OPEN: Final = 10_000
"""Calls that are followed at a time; generators that were left half-way are forgotten beyond."""

_MAX_FRAMES: Final = 64
"""How far up the stack the module is looked for on whose behalf a static method runs."""

_MAX_SOURCE: Final = 100_000

KeepWhole = Callable[[FunctionType], Remove]


@dataclass(slots=True, eq=False)
class _Spot:
    """One method of one module: which of its variables are wanted."""

    name: str
    variables: dict[str, list[tuple[TracedPlace, tuple[str, ...]]]] = field(default_factory=dict)
    """The places of each, with the way from there into its value."""
    returns: list[TracedPlace] = field(default_factory=list)
    is_bound: bool = False
    """Whether a variable may have a value from the start."""
    whole: frozenset[str] = frozenset()
    """Variables of which nothing inside is wanted: they change when they are another object, or
    when that object has changed."""
    locals: Locals | None = None


class MethodProbe:
    """Sees one function run, for all the modules whose method it is."""

    def __init__(self, tracer: Tracer, function: FunctionType, receives: Receives) -> None:
        self.function = function
        self._tracer = tracer
        self._receives = receives
        self._code = function.__code__
        self._receiver, self._is_starred = receiver_in(self._code)
        self._first = Locals(self._code, [self._receiver] if self._receiver else [])
        self._is_told_apart = receives == "instance" and not self._is_starred
        self._is_generator = bool(self._code.co_flags & inspect.CO_GENERATOR)
        self._known = tracer.framework.known_keys
        self._nature = tracer.framework.nature
        self._spots: dict[int, _Spot] = {}
        self.names: set[str] = set()
        self.open: Calls[tuple[_Spot, MethodCall]] = Calls()

    def want(self, place: TracedPlace) -> None:
        """Look for one more thing."""
        assert place.method is not None
        key = self._tracer.framework.receiver_key(place.module)
        spot = self._spots.get(key)
        if spot is None:
            spot = self._spots[key] = _Spot(under(place.module_path, place.method.name))
        if not place.inner or place.inner[0] == RETURN:
            spot.returns.append(place)
        else:
            wanted = place.inner[0]
            # A wildcard means the variables of a method, not the module that it belongs to.
            skipped = self._receiver if is_wild(wanted) and len(place.inner) == 1 else None
            for name in names_in(self._code):
                if name != skipped and (wanted == ANY_DEPTH or matches(wanted, name)):
                    rest = place.inner if wanted == ANY_DEPTH else place.inner[1:]
                    spot.variables.setdefault(name, []).append((place, rest))
        spot.whole = frozenset(
            name for name, places in spot.variables.items() if not any(rest for _, rest in places)
        )
        spot.locals = Locals(self._code, spot.variables) if spot.variables else None
        self.names.update(spot.variables)
        spot.is_bound = first_line_start(self._code, spot.variables) == 0

    @property
    def strangers(self) -> frozenset[int]:
        """Modules of the model whose method it is as well, and of which nothing is wanted."""
        return self._known.difference(self._spots) if self._is_told_apart else frozenset()

    # -- what the mechanism tells --------------------------------------------------------------

    def start(self, frame: FrameType, first: object) -> None:
        tracer = self._tracer
        if not tracer.is_on:
            return
        try:
            spot = self._spots.get(id(first)) if self._is_told_apart else None
            if spot is None:
                # The other modules of the class come by here, and should not pay for it.
                if self._is_told_apart and id(first) in self._known:
                    return
                spot = self._spot_of(frame, first)
            self.open.pop(id(frame), None)
            if spot is None or tracer.framework.is_redone():
                return
            if len(self.open) >= _MAX_OPEN:
                del self.open[next(iter(self.open))]
            call = tracer.call_of(id(spot), self._code.co_firstlineno)
            self.open[id(frame)] = (spot, call)
            if spot.is_bound:
                self._look(frame, spot, call)
        except Exception as error:
            tracer.fail(self.function.__qualname__, error)

    def line(self, frame: FrameType, line: int) -> None:
        found = self.open.get(id(frame))
        if found is None:
            return
        spot, call = found
        try:
            if call.is_starting:
                call.is_starting = False  # nothing that matters has run since it was looked at
            else:
                self._look(frame, spot, call)
            call.line = line
        except Exception as error:
            self._failed(frame, spot, error)

    def returned(self, frame: FrameType, value: object) -> None:
        found = self.open.pop(id(frame), None)
        if found is None:
            return
        spot, call = found
        try:
            call.is_ending = True
            if call.is_starting:  # no line was told of
                call.line = frame.f_lineno
            self._look(frame, spot, call, is_last=True)
            if spot.returns and (value is not None or not self._is_generator):
                self._result(spot, call, value)
        except Exception as error:
            self._failed(frame, spot, error)

    def yielded(self, frame: FrameType, value: object) -> None:
        found = self.open.get(id(frame))
        if found is None:
            return
        spot, call = found
        try:
            if call.is_starting:
                call.line = frame.f_lineno
            self._look(frame, spot, call)
            self._result(spot, call, value)
        except Exception as error:
            self._failed(frame, spot, error)

    def unwound(self, frame: FrameType) -> None:
        found = self.open.pop(id(frame), None)
        if found is None:
            return
        spot, call = found
        try:
            call.is_ending = True
            self._look(frame, spot, call)
        except Exception as error:  # the user's own exception is on its way: nothing replaces it
            self._tracer.troubles.failed(spot.name, error, raises=False)

    # -- inside --------------------------------------------------------------------------------

    def _look(
        self, frame: FrameType, spot: _Spot, call: MethodCall, *, is_last: bool = False
    ) -> None:
        if spot.locals is None:
            return
        found, known = spot.locals.read(frame), call.known
        if len(known) > len(found):  # some were deleted
            call.known = known = {n: known[n] for n, _ in found if n in known}
        for name, value in found:
            before = known.get(name)
            if before is not None:
                if before[0] is value and before[1] == stamp(value, self._nature):
                    continue
                del known[name]
            for place, rest in spot.variables[name]:
                if rest or place.path.is_any:
                    self._tracer.look(place, name, value, rest, call)
                else:
                    self._tracer.see(place, (name,), value, call)
            if not is_last and name in spot.whole:
                now = stamp(value, self._nature)
                if now is not None:
                    known[name] = (value, now)

    def _result(self, spot: _Spot, call: MethodCall, value: object) -> None:
        for place in spot.returns:
            self._tracer.look(place, RETURN if place.inner else "", value, place.inner[1:], call)

    def _spot_of(self, frame: FrameType, first: object) -> _Spot | None:
        spots = self._spots
        if self._receives == "instance":
            if self._is_starred:
                found = self._first.read(frame)
                rest = found[0][1] if found else None
                first = rest[0] if isinstance(rest, tuple) and rest else None
            return spots.get(self._tracer.framework.receiver_key(first))
        if len(spots) == 1:
            return next(iter(spots.values()))
        return self._on_behalf_of(frame)

    def _on_behalf_of(self, frame: FrameType) -> _Spot | None:
        """A static or class method of several modules: the one whose method has called it."""
        above = frame.f_back
        for _ in range(_MAX_FRAMES):
            if above is None:
                break
            name, is_starred = receiver_in(above.f_code)
            if name is not None and not is_starred:
                caller = Locals(above.f_code, [name]).read(above)
                key = self._tracer.framework.receiver_key(caller[0][1]) if caller else 0
                if key in self._spots:
                    return self._spots[key]
            above = above.f_back
        return next(iter(self._spots.values()))

    def _failed(self, frame: FrameType, spot: _Spot, error: Exception) -> None:
        self.open.pop(id(frame), None)
        self._tracer.fail(spot.name, error)


class Probes:
    """All that hangs on a model for one tracer. `close` leaves nothing."""

    def __init__(
        self,
        tracer: Tracer,
        places: Sequence[TracedPlace],
        keep_whole: KeepWhole,
        at_end: Sequence[Remove] = (),
    ) -> None:
        self._tracer = tracer
        self._removes: list[Remove] = []
        self._at_end = list(at_end)
        self._methods: dict[int, MethodProbe] = {}
        self._sources: dict[str, FunctionType] = {}
        framework: Framework = tracer.framework
        try:
            for place in places:
                if place.method is None:
                    self._removes.append(framework.on_output(place.module, self._output(place)))
                else:
                    self._want(place)
            for probe in self._methods.values():
                observation = observe(probe.function, probe)
                self._removes += [observation.close, keep_whole(probe.function)]
            self._removes.append(framework.around_passes(tracer.begin_pass, tracer.end_pass))
        except BaseException:
            self.close()
            raise

    def sources(self) -> list[tuple[str, int, str]]:
        """Name, first line and text of each method that is traced, as far as there is a text."""
        found = []
        for name, function in self._sources.items():
            try:
                lines, first = inspect.getsourcelines(function)
            except (OSError, TypeError, IndexError, SyntaxError):
                continue
            found.append((name, first, "".join(lines)[:_MAX_SOURCE]))
        return found

    def close(self) -> None:
        removes, self._removes = [*self._removes, *self._at_end], []
        self._at_end = []
        for remove in removes:
            remove()

    def _want(self, place: TracedPlace) -> None:
        assert place.method is not None
        function = place.method.function
        probe = self._methods.get(id(function))
        if probe is None:
            probe = MethodProbe(self._tracer, function, place.method.receives)
            self._methods[id(function)] = probe
        probe.want(place)
        self._sources[under(place.module_path, place.method.name)] = function

    def _output(self, place: TracedPlace) -> Callable[[object], None]:
        tracer = self._tracer

        def tell(output: object) -> None:
            if not tracer.is_on or tracer.framework.is_redone():
                return
            try:
                call = tracer.call_of(id(place), UNKNOWN_LINE)
                tracer.see(place, (), output, call)
            except Exception as error:
                tracer.fail(place.module_path, error)

        return tell
