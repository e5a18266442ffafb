"""The tracer: from calls of observed methods to captured values.

An *iteration* is one outermost call of the model (a pass), or a step of the watch that records the
model too. A method that is called between two passes belongs to the iteration of the first. All
values of an iteration go into a window; a full window is handed over.

No exception of ours leaves into the model: it is said once, counted, and that variable is switched
off (`strict` raises instead). Thread-safe: a lock is held while a value is compared and copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol
from weakref import ref

from sonde._signals import pass_on
from sonde.tracing.access import keys_of, look
from sonde.tracing.callbacks import BeforeSave
from sonde.tracing.paths import GRAD, RETURN, Path, quoted, suggestion, under
from sonde.tracing.resolving import ModelTree, TracedPlace
from sonde.tracing.results import Moment
from sonde.tracing.troubles import TraceTroubles
from sonde.tracing.values import (
    Flag,
    OutOfRoomError,
    RefusedError,
    TensorOps,
    ValueSnapshot,
    snapshot,
)
from sonde.tracing.windows import ByteBudget, CapturedValue, TracedVariable, TraceWindow

UNKNOWN_LINE: Final = -1

Remove = Callable[[], None]


class Framework(Protocol):
    """What the tracer asks of a deep-learning framework. `Any`: a module of it."""

    @property
    def nature(self) -> TensorOps: ...

    @property
    def tree(self) -> ModelTree: ...

    @property
    def known_keys(self) -> frozenset[int]:
        """The keys of all modules of the model."""
        ...

    def is_redone(self) -> bool:
        """Whether a part of the forward is being computed again, for a backward pass."""

    def receiver_key(self, receiver: object) -> int:
        """What a module is known by; the same for copies that stand in for it in threads."""

    def on_output(self, module: Any, tell: Callable[[object], None]) -> Remove: ...

    def around_passes(self, begin: Callable[[], None], end: Callable[[], None]) -> Remove: ...

    def on_gradients(self, value: object, tell: Callable[[str, object], None]) -> list[Remove]:
        """Tell of the gradient of each tensor in the value, by its path inside it."""


class Clock(Protocol):
    """Which iteration it is."""

    def now(self) -> tuple[int, str]:
        """The iteration and phase, before any pass."""

    def begin(self) -> tuple[int, str]:
        """The iteration and phase of a pass that begins."""

    def is_over(self, iteration: int) -> bool:
        """Whether nothing will belong to that iteration any more."""


class Channel:
    """A variable and the last value of it that was kept."""

    __slots__ = ("is_grad", "is_off", "snapshot", "variable")

    def __init__(self, variable: TracedVariable, *, is_grad: bool) -> None:
        self.variable = variable
        self.is_grad = is_grad
        self.is_off = False
        self.snapshot: ValueSnapshot | None = None


class MethodCall:
    """One call of a method: when, at which line it is, and what was looked at in it already."""

    __slots__ = (
        *("followed", "is_ending", "is_starting", "known", "lasting", "line", "met"),
        *("moment", "off"),
    )

    def __init__(self, moment: Moment, line: int) -> None:
        self.moment = moment
        self.line = line
        self.is_starting = True
        self.is_ending = False
        self.known: dict[str, tuple[object, int]] = {}
        """Variables and what they held at the last line, with a stamp: most lines change nothing.
        A value is held no longer than until the next line after it has gone."""
        self.met: dict[Channel, ValueSnapshot] = {}
        """What was last seen in this call; another call may have seen something else since."""
        self.lasting: set[Channel] = set()
        """Seen inside something when the call began, such as buffers of the module. Frameworks
        do not count all writes to those, so they are compared again when the call ends."""
        self.off: set[Channel] = set()
        """Refused in this call: not tried again at each line."""
        self.followed: dict[tuple[Channel, int], Callable[[], object]] = {}


class Tracer:
    """Captures values; hands windows of them to `hand_over`."""

    def __init__(
        self,
        places: Sequence[TracedPlace],
        framework: Framework,
        clock: Clock,
        *,
        schedule: Callable[[int], bool],
        phases: frozenset[str],
        gather_every: int,
        before_save: Sequence[BeforeSave],
        always: bool,
        budget: ByteBudget,
        troubles: TraceTroubles,
        hand_over: Callable[[TraceWindow], None],
        is_patient: bool = False,
    ) -> None:
        """`is_patient`: windows may be larger than asked for; see `release`."""
        self.framework = framework
        self._nature = framework.nature
        self.troubles = troubles
        self.is_on = False
        self.iteration = 0
        self._places = places
        self._clock = clock
        self._schedule = schedule
        self._phases = phases
        self._gather_every = gather_every
        self._before_save = before_save
        self._always = always
        self._budget = budget
        self._hand_over = hand_over
        self._is_patient = is_patient
        self._lock = threading.RLock()
        self._is_closed = False
        self._was_on = False
        self._now: tuple[int, str] | None = None
        self._ticks = 0
        self._passes = 0
        self._open_passes = 0
        self._calls: dict[int, int] = {}
        self._window = TraceWindow(0)
        self._channels: dict[str, Channel] = {}
        self._by_way: dict[tuple[int, tuple[str, ...]], Channel] = {}
        self._handles: list[Remove] = []
        self._matched: set[str] = set()
        self._missed: dict[str, tuple[str, list[str]]] = {}
        self._turn(*clock.now())

    # -- iterations ----------------------------------------------------------------------------

    def begin_pass(self) -> None:
        """The model is called."""
        with self._lock:
            self._open_passes += 1
            if self._open_passes == 1 and not self._is_closed and not self.framework.is_redone():
                self._passes += 1
                self._turn(*self._clock.begin())

    def end_pass(self) -> None:
        with self._lock:
            self._open_passes = max(0, self._open_passes - 1)

    def step(self) -> None:
        """End the iteration by hand."""
        with self._lock:
            if not self._is_closed:
                if not self._passes:
                    self._passes = 1
                    self._clock.begin()  # of the iteration that ends
                self._turn(*self._clock.begin())

    def call_of(self, place_key: int, line: int) -> MethodCall:
        """A call that begins now."""
        with self._lock:
            number = self._calls.get(place_key, 0)
            self._calls[place_key] = number + 1
            assert self._now is not None
            return MethodCall(tuple.__new__(Moment, (*self._now, number)), line)

    def close(self) -> None:
        """Hand over what is left; capture nothing more."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.is_on = False
            self._remove_handles()
            self._hand_over(self._window)
            self._channels.clear()
            self._by_way.clear()

    def release(self) -> None:
        """Hand over what there is, if windows may end anywhere or one ends here."""
        with self._lock:
            if self._is_closed or not self._window.entries or self._now is None:
                return
            number = self._window.number
            if not self._is_patient and self._clock.is_over(self._now[0]):
                number = self._ticks // self._gather_every
            if self._is_patient or number != self._window.number:
                full, self._window = self._window, TraceWindow(number)
                self._hand_over(full)

    def forget(self) -> None:
        """Be silent for ever: the process is a fork of the one that traces."""
        self._is_closed = True
        self.is_on = False

    def _turn(self, iteration: int, phase: str) -> None:
        if (iteration, phase) == self._now:
            return
        self._now = (iteration, phase)
        self.iteration = iteration
        self._calls.clear()
        if self._handles:
            self._remove_handles()
        if self.troubles.waiting:
            self.troubles.catch_up()
        is_wanted = phase in self._phases
        if is_wanted:
            number = self._ticks // self._gather_every
            self._ticks += 1
            if number != self._window.number and not (self._is_patient and self._window.is_small):
                full, self._window = self._window, TraceWindow(number)
                self._hand_over(full)
        try:
            self.is_on = is_wanted and bool(self._schedule(iteration))
            self._was_on = self._was_on or self.is_on
        except Exception as error:
            pass_on(error)
            self.is_on = False
            self.troubles.failed("every", error)

    def _remove_handles(self) -> None:
        handles, self._handles = self._handles, []
        for remove in handles:
            remove()

    # -- values --------------------------------------------------------------------------------

    def look(
        self, place: TracedPlace, name: str, value: object, rest: Sequence[str], call: MethodCall
    ) -> None:
        """See what is inside a variable, along the rest of the path."""
        if not rest:
            if not (place.path.is_any and self.framework.nature.is_module(value)):
                self.see(place, (name,) if name else (), value, call)
            return
        is_found = False
        for way, inner in look(value, rest, self.framework.nature):
            is_found = True
            self.see(place, (name, *way), inner, call)
        if not is_found and place.path.text not in self._missed:
            where = under(place.module_path, place.method.name if place.method else "", name)
            self._missed[place.path.text] = (where, keys_of(value, self.framework.nature))

    def see(
        self, place: TracedPlace, way: tuple[str, ...], value: object, call: MethodCall
    ) -> None:
        """A variable has a value: keep it if that is another one than before."""
        channel = self._by_way.get((id(place), way))
        if channel is None:
            channel = self._channel(place, way)
        if channel.is_off or channel in call.off:
            return
        if channel.is_grad:
            self._follow(channel, place.path, value, call)
            return
        self._matched.add(place.path.text)
        kept = call.met.get(channel)
        quick = kept is not None and not (call.is_ending and channel in call.lasting)
        if kept is None:
            kept = None if self._always else channel.snapshot
            if call.is_starting and len(way) > 1:
                call.lasting.add(channel)
        now = self._compare(channel, value, call.moment, call.line, kept, quick)
        if now is not None:
            call.met[channel] = now
        else:
            call.off.add(channel)

    def fail(self, place: str, error: Exception) -> None:
        """Something of ours went wrong there."""
        self.troubles.failed(place, error, step=self.iteration)

    def _compare(
        self,
        channel: Channel,
        value: object,
        moment: Moment,
        line: int,
        kept: ValueSnapshot | None,
        quick: bool = False,
    ) -> ValueSnapshot | None:
        """Keep the value if it differs from what was kept; what it equals now."""
        with self._lock:
            if self._is_closed:
                return None
            flags: list[Flag] = []
            if kept is not None:
                if kept.differs(value, self._nature, flags, quick):
                    flags = []
                elif not flags:
                    return kept
            return self._keep(channel, value, moment, line, flags)

    def _keep(
        self, channel: Channel, value: object, moment: Moment, line: int, flags: list[Flag]
    ) -> ValueSnapshot | None:
        name, budget = channel.variable.name, self._budget
        before = channel.snapshot.size_bytes if channel.snapshot else 0
        try:
            # Twice: what is handed on, and what the next value is compared with.
            room = budget.limit_bytes - budget.held_bytes + before
            taken = snapshot(value, self._nature, room // 2)
        except OutOfRoomError as error:
            self.troubles.refuse(name, self._no_room(error.size_bytes), step=moment.iteration)
            return None
        except RefusedError as error:
            self.troubles.refuse(name, str(error), step=moment.iteration)
            return None
        size = taken.size_bytes
        budget.take(2 * size - before)
        channel.snapshot = taken
        handed = taken.value
        try:
            for callback in self._before_save:
                handed = callback(name, handed, moment.iteration)
        except Exception as error:
            pass_on(error)
            channel.is_off = True
            budget.give_back(size)
            self.fail(f"{name}` in `before_save", error)
            return None
        window = self._window
        window.entries.append(CapturedValue(channel.variable, handed, moment, line, flags))
        window.size_bytes += size
        return taken

    def _no_room(self, size_bytes: int) -> str:
        held, limit = _size(self._budget.held_bytes), _size(self._budget.limit_bytes)
        return (
            f"it has {_size(size_bytes)}, and the trace already holds {held} of the {limit} that "
            "`budget_bytes` allows. Trace less often (`every=`), make values smaller "
            "(`before_save=`), write them to a file (`into='values.h5'`) or to the run of a watch, "
            "or raise `budget_bytes`."
        )

    def _channel(self, place: TracedPlace, way: tuple[str, ...]) -> Channel:
        with self._lock:
            method = place.method.name if place.method else None
            inside = under("", *([method] if method else []), *way)
            grad = GRAD if place.path.is_grad else ""
            name = under(place.module_path, *([method] if method else []), *way) + grad
            channel = self._channels.get(name)
            if channel is None:
                slot = (inside or "forward") + grad
                kind = type(place.module).__name__
                variable = TracedVariable(name, place.module_path, slot, kind)
                channel = self._channels[name] = Channel(variable, is_grad=place.path.is_grad)
            self._by_way[id(place), way] = channel
            return channel

    # -- gradients -----------------------------------------------------------------------------

    def _follow(self, channel: Channel, path: Path, value: object, call: MethodCall) -> None:
        """Record the gradient of this very tensor, once per call of the method."""
        key = (channel, id(value))
        known = call.followed.get(key)
        if known is not None and known() is value:
            return
        try:
            call.followed[key] = ref(value)
        except TypeError:
            call.followed[key] = lambda: value  # a list or a dict, for as long as the call lasts
        moment, line = call.moment, call.line

        def tell(inner: str, grad: object) -> None:
            self._gradient(channel, path, inner, grad, moment, line)

        with self._lock:
            self._handles += self.framework.on_gradients(value, tell)

    def _gradient(
        self, channel: Channel, path: Path, inner: str, grad: object, moment: Moment, line: int
    ) -> None:
        try:
            if self._is_closed:
                return
            self._matched.add(path.text)
            if inner:
                channel = self._inner_channel(channel, inner)
            if not channel.is_off:
                kept = None if self._always else channel.snapshot
                self._compare(channel, grad, moment, line, kept)
        except Exception as error:
            self.fail(channel.variable.name, error)

    def _inner_channel(self, outer: Channel, inner: str) -> Channel:
        """The gradient of one of several tensors in a value."""
        name = f"{outer.variable.name.removesuffix(GRAD)}.{inner}{GRAD}"
        with self._lock:
            channel = self._channels.get(name)
            if channel is None:
                v = outer.variable
                slot = f"{v.slot.removesuffix(GRAD)}.{inner}{GRAD}"
                variable = TracedVariable(name, v.module, slot, v.module_type)
                channel = self._channels[name] = Channel(variable, is_grad=True)
            return channel

    # -- the end -------------------------------------------------------------------------------

    def never_seen(self) -> list[str]:
        """A sentence for each path that never had a value. To be asked before closing."""
        found = []
        known = list(self._channels)
        for path in dict.fromkeys(place.path for place in self._places):
            if path.text in self._matched:
                continue
            text = f"`{path.text}` was never seen in {self._passes} calls of the model."
            if not self._was_on:
                text += " None of them was one that `every` and `phase` ask for."
                found.append(text)
                continue
            missed = self._missed.get(path.text)
            if missed is not None:
                where, keys = missed
                has = f"had {quoted(keys[:10])}" if keys else "had nothing inside"
                text += f" `{where}` {has}."
                text += suggestion(path.text, [under(where, key) for key in keys])
            else:
                text += _why(path, self._places) + suggestion(path.text, known)
            found.append(text)
        return found


def _why(path: Path, places: Sequence[TracedPlace]) -> str:
    place = next(p for p in places if p.path is path or p.path == path)
    if path.is_grad:
        return " A gradient is known when `backward` reaches the variable, if it needs one."
    if place.method is None:
        return f" The module `{place.module_path}` was not called."
    where = under(place.module_path, place.method.name)
    if not place.inner or place.inner[0] == RETURN:
        return f" `{where}` was not called, or did not return."
    return f" `{where}` was not called, or its variable was never assigned."


def _size(n: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"
