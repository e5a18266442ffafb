"""Where a training stands between two updates: a small state machine that every backend shares.

Three things say what hooks do, each with its own states. All transitions are in the tables below;
an event that has no entry there is refused with an error, and changes nothing.

- The step (`StepState`): between steps or inside one, recorded or not. A schedule decides before a
  step begins; its first training pass begins it, the optimizer's update ends it.
- The block of user code that is running (`HookMode`): usual, in `watch.phase(...)`, in
  `watch.paused()`, or while a CUDA graph is captured. Blocks nest; the last in this list wins.
- The watch (`WatchState`): open, being closed, closed.

Together they say what hooks have to do now: `StepMachine.work`. Nothing here knows a framework, a
model or a number of a step. Not thread-safe: the owner serialises.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final


class StepState(Enum):
    """Where the step stands. Due ones are recorded, if training is recorded at all."""

    IDLE = "between steps, the next one is not due"
    READY = "between steps, the next one is due"
    SKIPPING = "in a step that is not due"
    RECORDING = "in a step that is due"


class StepEvent(Enum):
    """What moves a step on."""

    DUE = "the schedule fires for the next step"
    NOT_DUE = "the schedule does not fire for the next step"
    BEGIN = "the first training pass of the step begins"
    END = "the optimizer has made its update, or a checkpoint was loaded"


class WatchState(Enum):
    """Whether anything is recorded at all."""

    OPEN = "steps are recorded"
    CLOSING = "nothing is recorded any more, hooks are being taken off"
    CLOSED = "no hook is left"


class WatchEvent(Enum):
    """What ends a watch."""

    CLOSE = "the watch is closed, maybe again after an interrupt"
    BARE = "the last hook was taken off"
    FORK = "the process is a fork of the one that records"


class HookMode(Enum):
    """The block of user code that is running."""

    USUAL = "no block"
    NAMED = "all passes belong to a phase that the user names"
    PAUSED = "nothing is recorded"
    CAPTURING = "a CUDA graph is captured: what hooks launch is replayed later"


class HookWork(Enum):
    """What hooks have to do."""

    NOTHING = "return at once"
    NOTICE = "notice passes that begin: one may have to be recorded"
    RECORD = "record what they see"


_S, _E = StepState, StepEvent
_IDLE, _READY, _RECORDING = _S.IDLE, _S.READY, _S.RECORDING
TRANSITIONS: Final[Mapping[tuple[StepState, StepEvent], StepState]] = {
    (_S.IDLE, _E.DUE): _S.READY,
    (_S.IDLE, _E.NOT_DUE): _S.IDLE,
    (_S.READY, _E.DUE): _S.READY,
    (_S.READY, _E.NOT_DUE): _S.IDLE,
    (_S.IDLE, _E.BEGIN): _S.SKIPPING,
    (_S.READY, _E.BEGIN): _S.RECORDING,
    (_S.SKIPPING, _E.END): _S.IDLE,
    (_S.RECORDING, _E.END): _S.IDLE,
    # An update without a training pass that was seen: paused, or compiled before the watch began.
    (_S.IDLE, _E.END): _S.IDLE,
    (_S.READY, _E.END): _S.IDLE,
}

_W, _V = WatchState, WatchEvent
ENDINGS: Final[Mapping[tuple[WatchState, WatchEvent], WatchState]] = {
    (_W.OPEN, _V.CLOSE): _W.CLOSING,
    (_W.CLOSING, _V.CLOSE): _W.CLOSING,
    (_W.CLOSING, _V.BARE): _W.CLOSED,
    (_W.OPEN, _V.FORK): _W.CLOSED,
    (_W.CLOSING, _V.FORK): _W.CLOSED,
    (_W.CLOSED, _V.FORK): _W.CLOSED,
}

_NOTHING, _NOTICE, _RECORD = HookWork.NOTHING, HookWork.NOTICE, HookWork.RECORD
WORK: Final[Mapping[HookMode, Mapping[StepState, HookWork]]] = {
    HookMode.USUAL: {
        _S.IDLE: _NOTICE,
        _S.READY: _RECORD,
        _S.SKIPPING: _NOTHING,
        _S.RECORDING: _RECORD,
    },
    HookMode.NAMED: {
        _S.IDLE: _NOTICE,
        _S.READY: _RECORD,
        _S.SKIPPING: _NOTICE,
        _S.RECORDING: _RECORD,
    },
    HookMode.PAUSED: dict.fromkeys(StepState, _NOTHING),
    HookMode.CAPTURING: dict.fromkeys(StepState, _RECORD),
}
"""What hooks do while the watch is open."""


class StepMachine:
    """The state of a watch.

    `records_training` is false where only phases outside training are recorded: then no step is,
    though it may be due. A step moves on by one assignment, so that a signal handler that raises
    finds it before or after.
    """

    __slots__ = ("_pauses", "_records_training", "is_capturing", "is_named", "step", "watch")

    def __init__(self, *, records_training: bool = True) -> None:
        self.watch = WatchState.OPEN
        self.is_named = False
        self.is_capturing = False
        self._pauses: set[object] = set()
        self._records_training = records_training
        self.step = StepState.IDLE

    def on(self, event: StepEvent) -> None:
        """Move the step on.

        Raises:
            RuntimeError: if the event cannot come now: a bug in what drives the machine.
        """
        after = TRANSITIONS.get((self.step, event)) if self.watch is WatchState.OPEN else None
        if after is None:
            raise RuntimeError(f"{event} cannot follow {self.step} of a watch that is {self.watch}")
        self.step = after

    def end(self, event: WatchEvent) -> None:
        """Move the watch towards its end.

        Raises:
            RuntimeError: if the event cannot come now.
        """
        after = ENDINGS.get((self.watch, event))
        if after is None:
            raise RuntimeError(f"{event} cannot follow {self.watch}")
        self.watch = after

    def pause(self, block: object) -> None:
        """A block begins in which nothing is recorded."""
        self._pauses.add(block)

    def resume(self, block: object) -> None:
        """That block ends, by an exception or not. It may end twice, and before it has begun: a
        signal handler may raise in between."""
        self._pauses.discard(block)

    @property
    def is_between(self) -> bool:
        """Whether no step is under way."""
        step = self.step
        return step is _IDLE or step is _READY

    @property
    def is_due(self) -> bool:
        """Whether the step under way, or the next one, is due."""
        step = self.step
        return step is _RECORDING or step is _READY

    @property
    def is_recorded(self) -> bool:
        """Whether it is recorded, too."""
        return self.is_due and self._records_training

    @property
    def is_closed(self) -> bool:
        """Whether nothing is recorded any more, whatever still has to be cleaned up."""
        return self.watch is not WatchState.OPEN

    @property
    def is_silent(self) -> bool:
        """Whether nothing is recorded now, in whichever phase."""
        return bool(self._pauses) or self.watch is not WatchState.OPEN

    @property
    def mode(self) -> HookMode:
        """The innermost block that matters."""
        if self.is_capturing:
            return HookMode.CAPTURING
        if self._pauses:
            return HookMode.PAUSED
        return HookMode.NAMED if self.is_named else HookMode.USUAL

    @property
    def work(self) -> HookWork:
        """What hooks have to do until the next event."""
        if self.watch is not WatchState.OPEN:
            return HookWork.NOTHING
        return WORK[self.mode][self._effective]

    @property
    def _effective(self) -> StepState:
        """The state of the step; one that is due counts as not due if training is not recorded."""
        if self.is_due and not self._records_training:
            return StepState.IDLE if self.is_between else StepState.SKIPPING
        return self.step
