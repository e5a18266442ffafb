"""The steps of a watched model: when one begins and ends, and what that means for its hooks.

`TrainingSteps` drives the state machine of `sonde.capture.steps` for a capture. After each event
`settle` works out what hooks have to do: a hook reads `Capture.asleep` and nothing else while the
answer is nothing. Between due steps the hooks are taken off altogether, where that is safe.

    pass begins      Capture -> begin_pass
    update made      Optimizers -> end_step, which decides about the next step
    watch.phase      in_phase, with everything recorded outside training complete on either side
    watch.paused     paused
    close            Capture.close, in two stages: closing, then closed once no hook is left
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sonde.capture.phases import Phases, is_training
from sonde.capture.plan import Schedule, schedule_of
from sonde.capture.steps import HookMode, HookWork
from sonde.capture.torch.modules import MODULE_KINDS
from sonde.capture.torch.passes import settle
from sonde.capture.window import NATIVE_PHASE

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture
    from sonde.capture.torch.rows.cuda_graphs import CapturedCudaGraph


class TrainingSteps:
    """Where the training of a watched model stands.

    `phase` is that of the last pass, `passes` how many have begun, `recorded` and `dropped` how
    many steps were.
    """

    def __init__(self, capture: Capture, schedule: Schedule, step: int) -> None:
        troubles = capture.troubles
        self.phases = Phases(capture.plan.phases, step, troubles.skip, troubles.failed)
        self.machine = self.phases.machine
        self.phase = "train"
        self.passes = 0
        self.recorded = 0
        self.dropped = 0
        self._capture = capture
        self._first = step
        self._schedule = schedule
        capture.always = schedule == schedule_of(1)

    @property
    def number(self) -> int:
        """The step under way, or the next one."""
        return self.phases.step

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded, now."""
        return self.machine.work is HookWork.RECORD

    def wants(self, phase: str) -> bool:
        """Whether values of that phase are recorded now."""
        machine = self.machine
        if machine.is_capturing:
            return True
        return not machine.is_silent and self.phases.wants(phase)

    # -- what hooks do -------------------------------------------------------------------------

    def settle(self) -> None:
        """Tell hooks what they have to do until the next event."""
        capture, machine = self._capture, self.machine
        work = machine.work
        capture.asleep = work is HookWork.NOTHING
        is_usual = machine.mode is HookMode.USUAL or (
            machine.mode is HookMode.NAMED and self.phases.forced == NATIVE_PHASE
        )
        is_live = work is HookWork.RECORD and is_usual
        settle(capture.native, capture.observer, is_live, capture.plan.phases)

    def wake(self) -> None:
        """Put all hooks in place: what comes is to be recorded, or compiled."""
        if self._capture.taps.wake():
            self._capture.troubles.tell(
                "recompiled", "code compiled while nothing was recorded is compiled again"
            )

    # -- steps ---------------------------------------------------------------------------------

    def decide(self) -> None:
        """Ask the schedule about the next step."""
        capture = self._capture
        is_due = False
        try:
            is_due = bool(self._schedule(self.number))
        except Exception as error:
            capture.troubles.failed("every", error)
        finally:
            self.phases.decide(is_due)
        self.settle()
        if self.phases.records_training:
            self.wake()
        elif not self.machine.is_named and self.passes > 1:
            capture.taps.rest()

    def reschedule(self, schedule: Schedule) -> None:
        """Use another schedule: at once between steps, else from the next step on."""
        with self._capture.lock:
            self._schedule = schedule
            self._capture.always = schedule == schedule_of(1)
            if self.machine.is_between and not self.machine.is_closed:
                self.decide()

    def begin_pass(self, phase: str) -> bool:
        """A pass begins; whether it is the first of a training step, which begins with it."""
        recorder = self._capture.recorder
        if phase != self.phase and not (is_training(phase) and is_training(self.phase)):
            self.end_outside()
        elif recorder.has_shared:
            recorder.hand_over(self.phases.step_of)
        self.phase = phase
        self.passes += 1
        return is_training(phase) and self.machine.is_between

    def begin_step(self) -> bool:
        """The first training pass of a step begins; whether to look for new modules."""
        self.phases.begin_step()
        self.settle()
        return self.phases.records_training or self.number == self._first

    def end_step(self) -> None:
        """The step is over: hand its rows to the drain and decide about the next one."""
        capture, recorder = self._capture, self._capture.recorder
        with capture.lock:
            if self.machine.is_closed:
                return
            if recorder.capturing is not None:
                recorder.capturing.ends_step = True
                return
            if capture.observer is not None:
                capture.observer.end_step()
            recorder.hand_over(self.phases.step_of)
            if self.phases.records_training:
                self._end_recorded()
            recorder.end_phases()
            self.phases.end_step()
            capture.silence.stepped()
            capture.end_passes()
            self._go_on()

    def _end_recorded(self) -> None:
        capture = self._capture
        is_paused = self.machine.mode is HookMode.PAUSED
        if not self.passes and capture.plan.kinds & MODULE_KINDS and not is_paused:
            capture.troubles.unseen()  # what was compiled before we came calls no hooks
        self.recorded += 1
        capture.silence.end_step()
        if not capture.recorder.end("train", self.number):
            self.dropped += 1
            capture.troubles.tell(
                "dropped", "the background thread did not keep up", level="warning"
            )

    def go_to(self, step: int) -> None:
        """The next step is this one: a checkpoint was loaded."""
        capture = self._capture
        with capture.lock:
            if self.machine.is_closed:
                return
            capture.recorder.hand_over(self.phases.step_of)
            capture.recorder.end_phases()
            self.phases.go_to(step)
            capture.silence.guess = None
            capture.collector.clear()
            self._go_on()

    def renumbered(self) -> None:
        """The next step was given another number."""
        if not self.machine.is_closed:
            self._go_on()

    def _go_on(self) -> None:
        self._capture.troubles.step = self.number
        self.decide()

    def end_outside(self) -> None:
        """What was recorded outside training is complete."""
        self._capture.recorder.hand_over(self.phases.step_of)
        self._capture.recorder.end_phases(lambda phase: not is_training(phase))

    # -- blocks --------------------------------------------------------------------------------

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing inside."""
        block = object()
        try:
            self.machine.pause(block)
            self.settle()
            yield
        finally:  # twice: a signal handler may raise in the first
            try:
                self._resume(block)
            finally:
                self._resume(block)

    def _resume(self, block: object) -> None:
        self.machine.resume(block)
        self.settle()

    @contextmanager
    def in_phase(self, name: str, step: int | None = None) -> Iterator[None]:
        """Record the passes inside under this phase, and under this step if one is given."""
        before = self.phases.forced_to
        try:
            self._switch(name, step)
            yield
        finally:  # twice: a signal handler may raise in the first
            try:
                self._switch(*before)
            finally:
                self._switch(*before)

    @contextmanager
    def in_branch(self, name: str) -> Iterator[None]:
        """Record the training passes inside under this branch of training."""
        before, self.phases.branch = self.phases.branch, name
        try:
            yield
        finally:
            self.phases.branch = before

    def _switch(self, name: str | None, step: int | None) -> None:
        """Take all passes for this phase from now on."""
        with self._capture.lock:
            if name is not None:
                self.wake()
            self.end_outside()
            self.phases.force(name, step)
            self.settle()

    def capture_cuda_graph(self, captured: CapturedCudaGraph | None) -> None:
        """A CUDA graph is being captured, into these rows; None once that is over."""
        self._capture.recorder.capturing = captured
        self.machine.is_capturing = captured is not None
        self.settle()
