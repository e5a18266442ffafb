"""Numbers that come faster than they can be kept are bounded, and what is lost is counted."""

import subprocess
import sys
import threading

import pytest

from sonde.capture.drain import Drain, Numbers
from sonde.store import open_run


class Held:
    """A sink that takes nothing until it is let go, and counts numbers and losses."""

    name = "held"

    def __init__(self, *, held=True):
        self.let_go = threading.Event()
        self.numbers_kept = self.numbers_lost = 0
        if not held:
            self.let_go.set()

    def numbers(self, batch):
        assert self.let_go.wait(60)
        self.numbers_kept += len(batch.names)

    def event(self, event):
        if event.code == "numbers_dropped":
            self.numbers_lost += event.count

    def close(self, reason):
        pass


def numbers(n=2):
    return Numbers(0, "train", [f"n{i}" for i in range(n)], [None] * n, [0.0] * n)


def test_numbers_that_wait_are_bounded_and_the_rest_is_counted():
    sink = Held()
    drain = Drain([sink], most_waiting=100)
    for _ in range(1000):
        drain.put(numbers())
        assert drain.waiting <= 101
    sink.let_go.set()
    drain.close("finished", 60)
    assert sink.numbers_kept + sink.numbers_lost == 2000
    assert sink.numbers_lost >= 1600


def test_numbers_that_come_while_the_drain_closes_are_counted():
    sink = Held(held=False)
    drain = Drain([sink])
    started, n_put = threading.Barrier(5), [0] * 4

    def flood(i):
        started.wait()
        for _ in range(5000):
            drain.put(numbers(1))
            n_put[i] += 1

    threads = [threading.Thread(target=flood, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    drain.close("finished", 60)
    known = sink.numbers_kept + sink.numbers_lost
    for thread in threads:
        thread.join()
    assert sum(n_put) == 20_000
    assert known + drain.lost_since_close == 20_000


def test_a_process_with_threads_that_log_for_ever_ends(tmp_path):
    script = """
import sys, threading, torch, sonde
model = torch.nn.Linear(2, 2)
watch = sonde.watch(model, dir=sys.argv[1], name="run")
def flood():
    while True:
        watch.log(a=1.0)
for _ in range(3):
    threading.Thread(target=flood, daemon=True).start()
for _ in range(20):
    model(torch.ones(1, 2)).sum().backward()
    watch.step()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], timeout=120, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with open_run(tmp_path / "run") as run:
        assert run.status == "finished"
        assert {0, 10} <= set(run.steps)


@pytest.mark.parametrize("n", [1, 300])
def test_numbers_left_when_the_drain_does_not_finish_in_time_are_counted(n, caplog):
    sink = Held()
    drain = Drain([sink])
    for _ in range(n):
        drain.put(numbers())
    drain.close("finished", 0.3)
    lost = sink.numbers_lost
    sink.let_go.set()
    assert drain._ended.wait(60)
    assert lost >= 2 * (n - 1)
    assert sink.numbers_kept + lost == 2 * n
    assert "did not finish" in caplog.text
