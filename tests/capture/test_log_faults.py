"""`watch.log` takes anything from any thread, and nothing leaves it."""

import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.capture.numbers.recent import Recent


@pytest.fixture
def model():
    return nn.Linear(4, 2)


def step(model, watch):
    model(torch.ones(3, 4)).sum().backward()
    watch.step()


class Hostile:
    def __float__(self):
        raise KeyError("no")

    def __repr__(self):
        raise RuntimeError("not even that")


HOSTILE = Hostile()

REFUSED = {
    "a step that is text": ({"a": 1}, {"step": "5"}),
    "a step that is a float": ({"a": 1}, {"step": 1.5}),
    "a step that is a bool": ({"a": 1}, {"step": True}),
    "a step below 0": ({"a": 1}, {"step": -1}),
    "a step beyond 64 bits": ({"a": 1}, {"step": 2**63}),
    "a step that is a tensor": ({"a": 1}, {"step": torch.tensor(5)}),
    "a step that is not a number": ({"a": 1}, {"step": HOSTILE}),
    "values that are a list": ([1, 2], {}),
    "values that are a number": (3, {}),
    "a name that is a number": ({5: 1}, {}),
    "a name that is nothing": ({None: 1}, {}),
    "a value that raises": ({"a": HOSTILE}, {}),
    "a value of many numbers": ({"a": torch.ones(2)}, {}),
    "a value that is a sparse tensor": ({"a": torch.ones(2).to_sparse()}, {}),
    "a value without data": ({"a": torch.ones((), device="meta")}, {}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_logged_is_refused_and_the_next_call_works(watching, model, what):
    watch, memory = watching(model)
    values, more = REFUSED[what]
    with pytest.warns(sonde.SondeWarning, match="not logged"):
        watch.log(values, **more)
    watch.log(after=1)
    step(model, watch)
    watch.log(last=2)
    watch.close()
    assert {name: v for found in memory.scalars.values() for name, v in found.items()} == {
        "after": 1,
        "last": 2,
    }


@pytest.mark.parametrize("what", REFUSED)
def test_a_strict_watch_raises_what_cannot_be_logged(watching, model, what):
    watch, _ = watching(model, strict=True)
    values, more = REFUSED[what]
    with pytest.raises(sonde.SondeError, match="not logged"):
        watch.log(values, **more)


@pytest.mark.parametrize("at", [np.int64(7), 2**63 - 1, 0])
def test_a_step_may_be_any_whole_number(watching, model, at):
    watch, memory = watching(model)
    watch.log(a=1, step=at)
    watch.close()
    assert memory.scalars == {(int(at), "train"): {"a": 1}}


@pytest.fixture
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_threads_that_log_while_others_read_raise_nothing_and_lose_nothing(watching, model):
    watch, memory = watching(model)
    n_threads, n_steps = 8, 400
    start = threading.Barrier(n_threads + 1)

    def log(thread):
        start.wait()
        for i in range(n_steps):
            watch.log({f"t{thread}": i}, step=i * n_threads + thread)

    def read():
        start.wait()
        for _ in range(n_steps):
            watch.metrics()

    threads = [threading.Thread(target=log, args=(t,)) for t in range(n_threads)]
    threads.append(threading.Thread(target=read))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.close()
    expected = {
        (i * n_threads + t, "train"): {f"t{t}": i} for i in range(n_steps) for t in range(n_threads)
    }
    assert memory.scalars == expected


def test_only_the_last_few_steps_and_names_stay_in_memory():
    recent = Recent(steps=3, names=4)
    for at in range(10):
        recent.put(at, "a", float(at))
    assert recent.last_step == 9
    assert [recent.of(at) for at in (6, 7, 9)] == [{}, {"a": 7.0}, {"a": 9.0}]
    for i in range(100):
        recent.put(9, f"n{i}", i)
    assert len(recent.of(9)) == 4
    recent.put(9, "a", 5.0)
    assert recent.of(9)["a"] == 5.0


def test_an_exception_in_a_thread_fails_the_test_that_started_it(tmp_path):
    (tmp_path / "test_thread.py").write_text(
        "import threading\n"
        "def test_thread():\n"
        "    thread = threading.Thread(target=lambda: {}['missing'])\n"
        "    thread.start()\n"
        "    thread.join()\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ini = ["-c", Path(__file__).parents[2] / "pyproject.toml", "--rootdir", tmp_path]
    done = subprocess.run([*command, *ini, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "KeyError: 'missing'" in done.stdout


def test_a_refusal_is_no_error_where_warnings_are(watching, model, unheard):
    watch, memory = watching(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch.log(bad="high", good=1)
    watch.close()
    assert memory.scalars == {(0, "train"): {"good": 1}}
    assert "`bad` was not logged" in unheard.pop()
