"""The state machine of steps: its tables are all there is, and a real training follows them."""

from contextlib import ExitStack
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sonde.capture.drain import Drain
from sonde.capture.plan import Plan, kinds_of, schedule_of
from sonde.capture.steps import (
    ENDINGS,
    TRANSITIONS,
    WORK,
    HookMode,
    HookWork,
    StepEvent,
    StepMachine,
    StepState,
    WatchEvent,
    WatchState,
)
from sonde.capture.torch.session import TorchSession

WAYS = {
    StepState.IDLE: [],
    StepState.READY: [StepEvent.DUE],
    StepState.SKIPPING: [StepEvent.BEGIN],
    StepState.RECORDING: [StepEvent.DUE, StepEvent.BEGIN],
}
"""How each state of a step is reached from the start."""

ENDS = {
    WatchState.OPEN: [],
    WatchState.CLOSING: [WatchEvent.CLOSE],
    WatchState.CLOSED: [WatchEvent.CLOSE, WatchEvent.BARE],
}


def machine_in(state, watch=WatchState.OPEN, **how):
    machine = StepMachine(**how)
    for event in WAYS[state]:
        machine.on(event)
    for event in ENDS[watch]:
        machine.end(event)
    assert (machine.step, machine.watch) == (state, watch)
    return machine


@pytest.mark.parametrize(("state", "event"), list(product(StepState, StepEvent)))
def test_a_step_moves_as_the_table_says_and_refuses_the_rest(state, event):
    machine = machine_in(state)
    if (state, event) in TRANSITIONS:
        machine.on(event)
        assert machine.step is TRANSITIONS[state, event]
    else:
        with pytest.raises(RuntimeError, match="cannot follow"):
            machine.on(event)
        assert machine.step is state


@pytest.mark.parametrize(("watch", "event"), list(product(WatchState, WatchEvent)))
def test_a_watch_ends_as_the_table_says_and_refuses_the_rest(watch, event):
    machine = machine_in(StepState.READY, watch)
    if (watch, event) in ENDINGS:
        machine.end(event)
        assert machine.watch is ENDINGS[watch, event]
    else:
        with pytest.raises(RuntimeError, match="cannot follow"):
            machine.end(event)
        assert machine.watch is watch


@pytest.mark.parametrize("state", StepState)
@pytest.mark.parametrize("watch", [WatchState.CLOSING, WatchState.CLOSED])
def test_no_step_moves_once_the_watch_is_closed(state, watch):
    machine = machine_in(state, watch)
    for event in StepEvent:
        with pytest.raises(RuntimeError, match="cannot follow"):
            machine.on(event)
    assert machine.work is HookWork.NOTHING


def test_every_state_is_reached_and_left():
    assert {after for _, after in TRANSITIONS.items()} == set(StepState)
    assert {before for before, _ in TRANSITIONS} == set(StepState)
    assert {after for _, after in ENDINGS.items()} | {WatchState.OPEN} == set(WatchState)
    assert {(m, s) for m in WORK for s in WORK[m]} == set(product(HookMode, StepState))


@pytest.mark.parametrize("state", StepState)
def test_of_nested_blocks_the_strongest_says_what_hooks_do(state):
    machine = machine_in(state)
    assert machine.work is WORK[HookMode.USUAL][state]
    machine.is_named = True
    assert machine.work is WORK[HookMode.NAMED][state]
    machine.pause("outer")
    machine.pause("inner")
    machine.resume("inner")
    assert machine.work is WORK[HookMode.PAUSED][state]
    machine.is_capturing = True
    assert machine.work is WORK[HookMode.CAPTURING][state]
    machine.resume("outer")
    assert machine.work is WORK[HookMode.CAPTURING][state]
    machine.is_named = machine.is_capturing = False
    assert machine.work is WORK[HookMode.USUAL][state]


def test_a_pause_that_ends_twice_leaves_the_others_alone():
    machine = StepMachine()
    machine.pause("outer")
    machine.pause("inner")
    machine.resume("inner")
    machine.resume("inner")
    assert machine.is_silent
    machine.resume("outer")
    assert not machine.is_silent


def test_a_due_step_counts_as_any_other_where_training_is_not_recorded():
    ready = machine_in(StepState.READY, records_training=False)
    assert ready.is_due
    assert not ready.is_recorded
    assert ready.work is HookWork.NOTICE
    begun = machine_in(StepState.RECORDING, records_training=False)
    assert begun.work is HookWork.NOTHING


@given(st.lists(st.sampled_from([*StepEvent, *WatchEvent])))
def test_no_sequence_of_events_leaves_the_tables(events):
    machine = StepMachine()
    for event in events:
        step, watch = machine.step, machine.watch
        if isinstance(event, WatchEvent):
            table, key, act = ENDINGS, (watch, event), machine.end
        else:
            table, key, act = TRANSITIONS, (step, event), machine.on
        is_allowed = key in table and (key[1] in WatchEvent or watch is WatchState.OPEN)
        if is_allowed:
            act(event)
            assert table[key] in {machine.step, machine.watch}
        else:
            with pytest.raises(RuntimeError, match="cannot follow"):
                act(event)
            assert (machine.step, machine.watch) == (step, watch)
        between = {StepState.IDLE, StepState.READY}
        assert machine.is_between is (machine.step in between)
        assert machine.is_due is (machine.step in {StepState.READY, StepState.RECORDING})


# -- a real training ---------------------------------------------------------------------------


class Failing(nn.Module):
    """Raises in the middle of its forward when told to."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 1)
        self.fails = False

    def forward(self, x):
        x = self.first(x)
        if self.fails:
            raise ZeroDivisionError
        return self.second(x)


class Training:
    """A watched training, and a plain account of where it stands."""

    def __init__(self, every, memory):
        self.model = Failing()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.drain = Drain([memory])
        plan = Plan(kinds_of(["output", "output_grad", "param"]), strict=True)
        self.every = every
        self.session = TorchSession(
            self.model, [self.optimizer], plan, schedule_of(every), self.drain, step=0
        )
        self.blocks = []
        self.outputs = []
        self.step = 0
        self.is_between = True
        self.is_open = True
        self.seen = {}

    def forward(self):
        self._pass()
        self.outputs.append(self.model(torch.ones(3, 2)).sum())

    def fail(self):
        self._pass()
        self.model.fails = True
        with pytest.raises(ZeroDivisionError):
            self.model(torch.ones(3, 2))
        self.model.fails = False

    def evaluate(self):
        self._pass(trains=False)
        self.model.eval()
        with torch.no_grad():
            self.model(torch.ones(3, 2))
        self.model.train()

    def _pass(self, *, trains=True):
        """A call of the model: its first layer returns, whatever comes then."""
        if not self.is_open or "pause" in self.kinds:
            return
        if "phase" in self.kinds:
            self._see("probe")
        elif trains:
            self.is_between = False
            if self.step % self.every == 0:
                self._see("train")

    def _see(self, phase):
        self.seen[phase] = self.seen.get(phase, 0) + 6

    def backward(self):
        if self.outputs:
            self.outputs.pop().backward()

    def update(self):
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.outputs.clear()  # their graphs hold the weights as they were
        if self.is_open:
            self.step += 1
            self.is_between = True

    @property
    def kinds(self):
        return [kind for kind, _ in self.blocks]

    def enter(self, kind):
        block = ExitStack()
        how = self.session.paused() if kind == "pause" else self.session.phase("probe", None)
        block.enter_context(how)
        self.blocks.append((kind, block))

    def leave(self):
        if self.blocks:
            self.blocks.pop()[1].close()

    def interrupt(self):
        """An exception leaves all blocks."""
        stack = ExitStack()
        for _, block in self.blocks:
            stack.enter_context(block)
        error = KeyboardInterrupt()
        assert not stack.__exit__(KeyboardInterrupt, error, None)
        self.blocks.clear()

    def close(self):
        self.session.close()
        self.is_open = False

    def check(self):
        """The hooks do what the plain account says."""
        machine, capture = self.session.capture.steps.machine, self.session.capture
        assert machine.is_closed is not self.is_open
        assert capture.step == self.step
        if not self.is_open:
            assert capture.asleep
            return
        is_due = self.step % self.every == 0
        assert (machine.is_between, machine.is_due) == (self.is_between, is_due)
        is_paused, is_named = "pause" in self.kinds, "phase" in self.kinds
        is_idle = not is_due and not self.is_between and not is_named
        assert capture.asleep is (is_paused or is_idle)
        assert self.session.is_recording is (is_due and not is_paused)


EVENTS = {
    "forward": Training.forward,
    "backward": Training.backward,
    "update": Training.update,
    "fail": Training.fail,
    "evaluate": Training.evaluate,
    "pause": lambda training: training.enter("pause"),
    "phase": lambda training: training.enter("phase"),
    "leave": Training.leave,
    "interrupt": Training.interrupt,
    "close": Training.close,
}


@settings(max_examples=60)
@given(st.integers(1, 3), st.lists(st.sampled_from([*EVENTS, "forward", "update"]), max_size=25))
def test_a_training_moves_through_the_states_whatever_comes(new_memory, every, events):
    """Strict: an event that the machine refuses would raise here."""
    memory = new_memory()
    training = Training(every, memory)
    training.check()
    for event in events:
        EVENTS[event](training)
        training.check()
    training.interrupt()
    training.close()
    training.check()
    training.drain.close("finished", 30.0)
    counts = {}
    for step, phase in memory.steps:
        found = memory.at(step, phase)
        if "first/output/0" in found:
            counts[phase] = counts.get(phase, 0) + found["first/output/0"].count
    assert counts == training.seen
    assert not training.model.first._forward_hooks
    assert not training.model._forward_pre_hooks
