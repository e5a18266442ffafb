"""Which phase a pass belongs to, whether it is recorded, and under which step.

A pass in training mode with gradients belongs to `train`, or to a branch of it: `train/fake`. It is
recorded when its step is due. All other passes lie outside training: `eval`, `no_grad` and
phases that the user names. A phase with a schedule of its own is recorded under the last step that
ended, if that is due. One without goes with training: it is recorded under the step that ended if
that was recorded, else under the next step if that is due.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sonde.capture.plan import Schedule
from sonde.capture.steps import StepEvent, StepMachine

TRAIN: Final = "train"
NOT_DUE: Final = (
    "it came at a step that is not recorded. Give the phase a schedule of its own to record all "
    "of it: phases={'train': 10, 'eval': 1}"
)
SECOND: Final = "the step has a record of this phase already, from before its update"


def is_training(phase: str) -> bool:
    """Whether the phase is training or a branch of it."""
    return phase == TRAIN or phase.startswith(f"{TRAIN}/")


class Phases:
    """Where a training stands: its step, and what is recorded there.

    `ended` is the last step that ended, if one did. `machine` says whether a step is under way, and
    whether it is due. `skip` is called with a phase and a reason, `failed` with the error of a
    schedule.
    """

    def __init__(
        self,
        schedules: Mapping[str, Schedule | None],
        step: int,
        skip: Callable[[str, str], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self.step = step
        self.machine = StepMachine(records_training=TRAIN in schedules)
        self.forced: str | None = None
        self.branch: str | None = None
        self._forced_step: int | None = None
        self._schedules = dict(schedules)
        self._skip = skip
        self._failed = failed
        self.ended: int | None = None
        self._was_due = False
        self._steps: dict[str, int | None] = {}
        self._last: dict[str, tuple[int, int]] = {}

    @property
    def label(self) -> int:
        """The step that something outside a training pass belongs to: the last one that ended,
        until the next begins."""
        if self._forced_step is not None:
            return self._forced_step
        return self.ended if self.machine.is_between and self.ended is not None else self.step

    @property
    def is_between(self) -> bool:
        """Whether no step is under way."""
        return self.machine.is_between

    @property
    def records_training(self) -> bool:
        """Whether the step under way, or the next one, is recorded."""
        return self.machine.is_recorded

    def name(self, *, trains: bool, has_gradients: bool) -> str:
        """The phase of a pass that begins now."""
        if self.forced is not None:
            return self.forced
        if not trains:
            return "eval"
        if not has_gradients:
            return "no_grad"
        return TRAIN if self.branch is None else f"{TRAIN}/{self.branch}"

    def wants(self, phase: str) -> bool:
        """Whether passes of that phase are recorded now."""
        if is_training(phase):
            return self.machine.is_recorded or phase == self.forced
        return self._step_outside(phase) is not None

    def step_of(self, phase: str) -> int:
        """The step that passes of that phase belong to."""
        found = None if is_training(phase) else self._steps.get(phase, self.label)
        return self.step if found is None else found

    def decide(self, is_due: bool) -> None:
        """Whether the next step is due, as its schedule says."""
        self.machine.on(StepEvent.DUE if is_due else StepEvent.NOT_DUE)

    def begin_step(self) -> None:
        """The first pass of a step begins."""
        self.machine.on(StepEvent.BEGIN)
        self._steps.clear()

    def end_step(self) -> None:
        """The step is over; whether the next one is due is still to be said."""
        self._was_due = self.machine.is_due
        self.machine.on(StepEvent.END)
        self.ended = self.step
        self.step += 1
        self._steps.clear()

    def renumber(self, step: int) -> None:
        """Give the next step this number; whether it is due is still to be said."""
        self.step = step
        self._steps.clear()

    def place(self, phase: str, step: int) -> None:
        """Passes of a phase outside training belong to this step, until the next one begins."""
        self._steps[phase] = step

    def go_to(self, step: int) -> None:
        """The next step is this one, as if none had ended before."""
        self.machine.on(StepEvent.END)
        self.step = step
        self.ended = None
        self._was_due = False
        self._steps.clear()
        self._last.clear()

    @property
    def forced_to(self) -> tuple[str | None, int | None]:
        """What `force` was last called with."""
        return self.forced, self._forced_step

    def force(self, phase: str | None, step: int | None) -> tuple[str | None, int | None]:
        """Take all passes for this phase, of that step if one is given. Returns what was before."""
        before = self.forced_to
        self.forced, self._forced_step = phase, step
        self.machine.is_named = phase is not None
        self._steps.clear()
        return before

    def _step_outside(self, phase: str) -> int | None:
        """The step of a pass outside training, None if it is not recorded. Decided once between
        two steps."""
        if phase not in self._steps:
            step = self._steps[phase] = self._decide(phase)
            if step is not None:
                self._last[phase] = (step, self.step)
        return self._steps[phase]

    def _decide(self, phase: str) -> int | None:
        schedule = self._schedules.get(phase)
        if schedule is not None:
            try:
                step = self.label if schedule(self.label) else None
            except Exception as error:
                self._failed("phases", error)
                return None
        elif phase == self.forced:
            return self.label
        elif phase not in self._schedules:
            return None
        else:
            step = self._step_with_training()
            if step is None:
                self._skip(phase, NOT_DUE)
        last, position = self._last.get(phase, (None, 0))
        if step is not None and step == last and position != self.step:
            self._skip(phase, SECOND)
            return None
        return step

    def _step_with_training(self) -> int | None:
        if self.machine.is_between and self.ended is not None and self._was_due:
            return self.ended
        return self.step if self.machine.is_due else None
