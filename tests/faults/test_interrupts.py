"""Ctrl-C at any instant reaches the user, once, and leaves nothing that waits forever."""

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from sonde._signals import Bell, Gate, is_from_handler

SCRIPT = Path(__file__).parent / "interrupted.py"


@pytest.mark.parametrize(("what", "n"), [("handing_over", 2000), ("training", 300)])
def test_interrupts_at_random_instants_are_never_swallowed_and_never_a_deadlock(tmp_path, what, n):
    seed = str(time.time_ns() % 10**6)
    done = subprocess.run(
        [sys.executable, SCRIPT, what, tmp_path, str(n), seed],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["sent"] == found["caught"] >= n
    assert found["swallowed"] == []
    assert found["ok"], "what was interrupted works as before"
    assert found["settled"], "nothing is lost that was handed over"


class Preempted(Exception):
    """What a handler of the user's may raise."""


def test_what_a_handler_raises_inside_a_hook_reaches_the_user_and_nothing_is_switched_off(
    watching,
):
    def preempt(signum, frame):
        raise Preempted

    def metric(x):
        if is_armed.pop("now", False):
            signal.raise_signal(signal.SIGUSR1)
        return x.mean()

    is_armed = {}
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    watch.add_metric("m", metric)
    before = signal.signal(signal.SIGUSR1, preempt)
    try:
        for armed in (False, True, False):
            is_armed["now"] = armed
            with pytest.raises(Preempted) if armed else nullcontext():
                model(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    watch.close()
    assert memory.counted("failed") == {}
    assert [step for step, _ in memory.scalars] == [0, 2]


def test_a_gate_lets_all_through_and_stays_open():
    gate, through = Gate(), []
    assert not gate.wait(0)
    assert not gate.wait(0.01)
    threads = [threading.Thread(target=lambda: through.append(gate.wait(60))) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join()
    assert through == [True] * 4
    assert gate.wait(0)


def test_a_bell_that_rang_before_anyone_waited_is_not_lost_and_rings_once():
    bell = Bell()
    bell.ring()
    bell.ring()
    bell.wait(600)  # at once: else the test takes too long
    bell.wait(0.01)
    assert bell._rung.empty()


class Callable:
    def __call__(self, signum, frame):
        raise ValueError("called")

    def method(self, signum, frame):
        raise ValueError("method")


def function(signum, frame):
    raise ValueError("function")


@pytest.mark.parametrize("handler", [function, Callable(), Callable().method])
def test_an_error_of_a_handler_is_told_from_others(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(ValueError) as raised:
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(ValueError) as other:
            int("x")
        assert is_from_handler(raised.value)
        assert not is_from_handler(other.value)
    finally:
        signal.signal(signal.SIGUSR1, before)
