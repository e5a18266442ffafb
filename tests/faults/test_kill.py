"""`kill -9` at any instant loses at most the last flush interval and makes no wrong number."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import made
import pytest

from sonde.store import open_run
from sonde.store.writing.compaction import compact

HERE = Path(__file__).parent
N_SITES = 8
FLUSH_S = 2.0


class Launcher:
    """Starts programs as forks of one process that has imported what they need."""

    def __init__(self):
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen([sys.executable, HERE / "launcher.py"], stdin=theirs)

    def start(self, program, *arguments):
        reading, writing = os.pipe()
        message = json.dumps([program, [str(a) for a in arguments]]).encode()
        with self._lock:
            socket.send_fds(self._asking, [message], [writing])
            os.close(writing)
            pid = int(self._asking.recv(64))
        return Program(pid, open(reading, "rb"))

    def close(self):
        self._asking.close()
        assert self._process.wait() == 0


class Program:
    """A process whose lines are kept, to be killed."""

    def __init__(self, pid, said):
        self.pid = pid
        self._said = said

    def wait_for_line(self):
        self.first = self._said.readline().decode()
        assert self.first, "the program ended by itself"

    def kill(self):
        """Kill it; returns when (monotonic ns) and all that it has said."""
        when = time.monotonic_ns()
        os.kill(self.pid, signal.SIGKILL)
        said = self.first + self._said.read().decode()
        self._said.close()
        while self.is_alive():
            time.sleep(0.001)
        return when, [line.split() for line in said.split("\n")[:-1]]

    def is_alive(self):
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


@pytest.fixture(scope="module")
def start():
    """To be called with the name of a program and its arguments: starts it."""
    launcher = Launcher()
    yield launcher.start
    launcher.close()


def promised(when, lines, flush_s):
    """Steps that must be read back: older than a flush interval, or acknowledged by a flush.

    A busy machine gets half an interval more.
    """
    old = [int(a[1]) for a in lines if a[0] == "h" and when - int(a[2]) > 1.5 * flush_s * 1e9]
    flushed = [int(a[1]) for a in lines if a[0] == "f"]
    return max([*old, *flushed], default=-1)


def handed(lines):
    return max((int(a[1]) for a in lines if a[0] == "h"), default=-1)


def assert_right(path, first, must, may):
    """Steps `first..n` are there, each once and right, with `must <= n <= may + 1`."""
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        assert run.status == "crashed"
        rows = run.stats(stat=["count", "sum", "max"], phase="train")
        steps = rows["step"].to_pylist()
        last = max(steps, default=-1)
        # A step may be on disk although its line was not written before the kill.
        assert must <= last <= may + 1
        assert steps == [s for s in range(last + 1) for _ in range(N_SITES)]
        counts = [1000 * s + 10 * i + 1 for s in range(last + 1) for i in range(N_SITES)]
        assert rows["count"].to_pylist() == counts
        assert rows["sum"].to_pylist() == [c * 0.5 for c in counts]
        assert rows["max"].to_pylist() == [
            1.0 + s + i for s in range(last + 1) for i in range(N_SITES)
        ]
        losses = run.scalars("loss")
        n = losses.num_rows
        assert must < n <= may + 2
        assert losses["step"].to_pylist() == list(range(n))
        assert losses["value"].to_pylist() == [1.0 / (s + 1) for s in range(n)]
        bins = run.sql("select sum(count)::bigint as n from bins")["n"][0].as_py() or 0
        assert bins == sum(counts)
    return min(last, n - 1)


def kill_one(start, path, seed):
    rng = random.Random(seed)
    writer = start("killed_writer", path, "new", FLUSH_S, "waiting")
    writer.wait_for_line()
    time.sleep(rng.uniform(0.0, 2 * FLUSH_S))
    when, lines = writer.kill()
    return assert_right(path, 0, promised(when, lines, FLUSH_S), handed(lines))


@pytest.mark.slow
def test_fifty_kills_of_a_writing_process_lose_at_most_one_flush_interval(start, tmp_path):
    with ThreadPoolExecutor(4) as pool:  # they mostly wait
        found = list(pool.map(lambda i: kill_one(start, str(tmp_path / f"run{i}"), i), range(50)))
    assert len(found) == 50
    assert max(found) > 50, "the kills came too early to mean anything"


@pytest.mark.slow
def test_twenty_kills_of_writer_and_compactor_lose_nothing_acknowledged(start, tmp_path):
    """One run, resumed twenty times: its attempts pile up and are compacted all the while."""
    path = str(tmp_path / "run")
    rng = random.Random(7)
    resume, compacted = "new", 0
    for _ in range(20):
        writer = start("killed_writer", path, resume, FLUSH_S, "flushing")
        compactor = start("looping_compactor", path)
        writer.wait_for_line()
        compactor.wait_for_line()
        if rng.random() < 0.5:
            time.sleep(rng.uniform(0, 0.3))
            compacted += len(compactor.kill()[1])
            compactor = start("looping_compactor", path)
            compactor.wait_for_line()
        time.sleep(rng.uniform(0, 0.6))
        compacted += len(compactor.kill()[1])
        when, lines = writer.kill()
        last = assert_right(path, 0, promised(when, lines, FLUSH_S), handed(lines))
        resume = str(rng.randint(max(last - 20, 0), last + 1))  # never beyond what is complete
    assert compacted > 20
    assert os.listdir(os.path.join(path, "stats", "r00000"))
    compact(path)
    assert assert_right(path, 0, last, handed(lines)) == last


def test_a_kill_of_one_rank_leaves_the_others_alone(start, tmp_path):
    from sonde.store import Writer

    path = tmp_path / "run"
    killed = start("killed_writer", path, "new", 0.2, "waiting")
    killed.wait_for_line()
    with Writer(path, rank=1, world_size=2) as writer:
        writer.sites(made.sites(2))
        writer.sketches(made.batch(0, 2, rank=1))
        killed.kill()
        with open_run(path, frame="arrow") as run:
            assert run.status == "live"
            assert {a["rank"]: a["status"] for a in run.info["attempts"]} == {
                0: "crashed",
                1: "live",
            }
            assert run.info["ranks"]["crashed"] == [0]
        writer.sketches(made.batch(1, 2, rank=1))
    with open_run(path, frame="arrow") as run:
        assert run.status == "crashed"
        assert run.stats(stat="count", rank=1).num_rows == 4


def test_a_stopped_process_is_live_and_goes_on(start, tmp_path):
    writer = start("killed_writer", tmp_path / "run", "new", 0.2, "waiting")
    writer.wait_for_line()
    os.kill(writer.pid, signal.SIGSTOP)
    time.sleep(1.5)
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.status == "live"
    os.kill(writer.pid, signal.SIGCONT)
    time.sleep(2.0)
    when, lines = writer.kill()
    # It could not flush while it was stopped; what was handed over since counts from then on.
    steps = [int(a[1]) for a in lines if a[0] == "h"]
    assert steps == list(range(len(steps)))
    assert_right(tmp_path / "run", 0, promised(when, lines, 1.8), handed(lines))
