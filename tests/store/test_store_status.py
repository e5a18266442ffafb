"""Whether a run is live, finished, failed or crashed: by its end, process or heartbeat."""

import os
import subprocess
import sys
import time

import pytest

from sonde.store import Writer, documents, open_run, provenance
from sonde.store.attempts import AttemptReader, AttemptRecord, run_status
from sonde.store.segments import Attempt

S = 10**9
HERE = {"process_space": provenance.process_space(), "pid": os.getpid()}
ALIVE = {**HERE, "process_start": provenance.process_start(os.getpid())}


def record(*, start=None, heartbeat=None, end=None, rank=0, number=0):
    return AttemptRecord(Attempt(rank, number, "abcd"), start or {}, heartbeat or {}, end or {})


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"start": ALIVE}, "live"),
        ({"start": ALIVE, "heartbeat": {"wall_ns": 0}}, "live"),
        ({"start": {**ALIVE, "process_start": "1"}}, "crashed"),
        ({"start": {**ALIVE, "pid": 2**22 + 5}}, "crashed"),
        ({"start": ALIVE, "end": {"reason": "finished"}}, "finished"),
        ({"start": ALIVE, "end": {"reason": "exited"}}, "finished"),
        ({"start": ALIVE, "end": {"reason": "failed: ValueError"}}, "failed"),
        ({"start": {"process_space": "elsewhere"}, "heartbeat": {"wall_ns": 995 * S}}, "live"),
        ({"start": {"process_space": "elsewhere"}, "heartbeat": {"wall_ns": 960 * S}}, "crashed"),
        ({"start": {"process_space": "elsewhere"}, "heartbeat": {"wall_ns": 5000 * S}}, "live"),
        ({"start": {"process_space": "elsewhere", "wall_ns": 990 * S}}, "live"),
        ({}, "crashed"),
        ({"start": {"pid": "x", "process_space": 7}, "heartbeat": {"wall_ns": "y"}}, "crashed"),
    ],
)
def test_the_status_of_an_attempt(parts, expected):
    assert record(**parts).status(now_ns=1000 * S) == expected


def test_a_silent_attempt_is_over_only_after_long(tmp_path):
    elsewhere = {"process_space": "elsewhere"}
    silent = record(start=elsewhere, heartbeat={"wall_ns": 0})
    assert silent.status(now_ns=100 * S) == "crashed"
    assert not silent.is_over(now_ns=100 * S)
    assert silent.is_over(now_ns=4000 * S)
    assert record(start=elsewhere, end={"reason": "x"}).is_over()
    assert not record(start=ALIVE).is_over()
    assert record(start={**ALIVE, "pid": 2**22 + 5}).is_over()


def test_the_status_of_a_run_is_that_of_the_last_attempts():
    old = record(number=0)
    live = record(start=ALIVE, number=1)
    done = record(end={"reason": "finished"}, rank=1)
    failed = record(end={"reason": "failed"}, rank=2)
    assert run_status({r.attempt: r for r in (old, live, done)}) == "live"
    assert run_status({r.attempt: r for r in (old, done)}) == "crashed"
    assert run_status({r.attempt: r for r in (done, failed)}) == "failed"
    assert run_status({r.attempt: r for r in (done,)}) == "finished"
    assert run_status({}) == "crashed"


def test_a_process_that_is_gone_is_noticed_at_once(tmp_path):
    script = f"""
import os
from sonde.store import Writer
writer = Writer({str(tmp_path / "run")!r})
writer.flush()
print(1, flush=True)
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    with open_run(tmp_path / "run") as run:
        assert run.status == "live"
        child.kill()
        deadline = time.monotonic() + 120
        while run.status == "live":  # not yet reaped: a zombie counts as gone
            assert time.monotonic() < deadline
        assert run.status == "crashed"
    child.communicate()


def test_a_restarted_run_is_live_again(tmp_path):
    first = Writer(tmp_path / "run")
    first.close("failed: OutOfMemoryError")
    with open_run(tmp_path / "run") as run:
        assert run.status == "failed"
        with Writer(tmp_path / "run", resume_from_step=0):
            assert run.status == "live"
        assert run.status == "finished"


def test_documents_are_read_again_only_when_they_change(tmp_path, monkeypatch):
    Writer(tmp_path / "run").close()
    reader = AttemptReader(str(tmp_path / "run"))
    assert len(reader.read()[0]) == 1
    monkeypatch.setattr(documents, "load", lambda path: pytest.fail("read again"))
    assert len(reader.read()[0]) == 1


@pytest.mark.parametrize("name", [b"train\xff\xfe", "训练".encode(), b"a) R 1 2 3 (b", b"\n\t"])
def test_the_name_of_a_process_may_be_any_bytes(tmp_path, name):
    script = f"""
import ctypes, os
from sonde.store import Writer, provenance
assert ctypes.CDLL(None).prctl(15, ctypes.c_char_p({name!r}), 0, 0, 0) == 0
assert open("/proc/self/comm", "rb").read().rstrip(b"\\n") == {name!r}[:15].rstrip(b"\\n")
writer = Writer({str(tmp_path / "run")!r})
print(provenance.process_start(os.getpid()), flush=True)
input()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    began = child.stdout.readline().decode().strip()
    assert began.isdigit()
    assert provenance.process_start(child.pid) == began
    with open_run(tmp_path / "run") as run:
        assert run.status == "live"
    child.kill()
    child.communicate()
