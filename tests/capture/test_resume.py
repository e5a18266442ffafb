"""A training that goes on from a checkpoint: which step it is, and what of the run stays."""

import copy
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde
from sonde.cli import main


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, n=1):
    for _ in range(n):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def watch_in(tmp_path):
    """Watch in the run `one`, and close it in the end."""
    opened = []

    def start(model, optimizer, **options):
        options = {"every": 1, "log": "param", "dir": tmp_path, "name": "one", **options}
        opened.append(sonde.watch(model, optimizer, **options))
        return opened[-1]

    yield start
    for watch in opened:
        watch.close()


def steps_of(watch):
    with sonde.open(watch.path) as run:
        found = run.stats("0.weight", kind="param", stat="count")
        assert set(found["count"]) <= {16}, "two attempts count for one step"
        return found["step"].tolist()


def interrupted(model, optimizer, watch_in, n, **options):
    """A run that ends after n steps, recorded at every second one."""
    with watch_in(model, optimizer, every=2, **options) as watch:
        train(model, optimizer, n)
    return watch


def test_a_run_goes_on_by_what_the_optimizer_has_counted(model, watch_in):
    """Not after the last recorded step, which is 6: the checkpoint is of an earlier step."""
    optimizer = adam(model)
    interrupted(model, optimizer, watch_in, 4)
    checkpoint = copy.deepcopy(optimizer.state_dict())
    with watch_in(model, optimizer, every=2, resume=True) as watch:
        train(model, optimizer, 4)
    assert steps_of(watch) == [0, 2, 4, 6]

    again = adam(model)
    again.load_state_dict(checkpoint)
    with watch_in(model, again, resume=True) as watch:
        train(model, again, 2)
    assert steps_of(watch) == [0, 2, 4, 5]


def test_a_run_that_began_at_another_step_than_the_optimizer_goes_on_in_its_own_numbers(
    model, watch_in
):
    optimizer = adam(model)
    train(model, optimizer, 3)
    interrupted(model, optimizer, watch_in, 4, step=100)
    with watch_in(model, optimizer, resume=True) as watch:
        train(model, optimizer, 1)
    assert steps_of(watch) == [100, 102, 104]


def test_a_step_that_is_given_comes_before_what_the_optimizer_has_counted(model, watch_in):
    optimizer = adam(model)
    interrupted(model, optimizer, watch_in, 4)
    with watch_in(model, optimizer, resume=True, step=10) as watch:
        train(model, optimizer, 1)
    assert steps_of(watch) == [0, 2, 10]


def test_a_guess_is_a_warning_at_the_first_pass(model, watch_in, flushing):
    optimizer = sgd(model)
    interrupted(model, optimizer, watch_in, 4)
    watch = watch_in(model, optimizer, resume=True)
    with pytest.warns(sonde.SondeWarning, match="continues at step 4") as warned, flushing(watch):
        train(model, optimizer, 2)
    watch.close()
    assert [w.filename for w in warned] == [__file__]
    assert steps_of(watch) == [0, 2, 4, 5]
    with sonde.open(watch.path) as run:
        assert [w["code"] for w in run.info["warnings"]] == ["resumed_at_a_guess"]


@pytest.mark.parametrize("kept", [1, 4, 9], ids=["earlier", "as recorded", "later"])
def test_the_state_of_a_watch_travels_in_a_checkpoint(model, watch_in, tmp_path, kept):
    optimizer = sgd(model)
    with watch_in(model, optimizer, every=2) as watch:
        for i in range(6):
            if i == kept:
                torch.save({"watch": watch.state_dict()}, tmp_path / "checkpoint")
            train(model, optimizer)
    if kept == 9:  # of a process that trained on without recording
        torch.save({"watch": {"step": 9}}, tmp_path / "checkpoint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watch = watch_in(model, optimizer, resume=True)
        watch.load_state_dict(torch.load(tmp_path / "checkpoint")["watch"])
        assert watch.state_dict() == {"step": kept, "run": "one"}
        train(model, optimizer, 2)
        watch.close()
    before = [i for i in (0, 2, 4) if i < kept]
    assert steps_of(watch) == [*before, kept, kept + 1]


def test_a_checkpoint_can_be_loaded_while_a_run_is_recorded(model, watch_in, new_memory):
    """Back to an earlier step after a spike of the loss: what was recorded since is replaced."""
    optimizer, memory = sgd(model), new_memory()
    watch = watch_in(model, optimizer, sinks=[memory], log=["param", "output"])
    train(model, optimizer, 3)
    state = watch.state_dict()
    train(model, optimizer, 3)
    watch.log(loss=1.0)
    watch.load_state_dict(state)
    watch.log(loss=2.0)
    train(model, optimizer, 1)
    watch.close()
    assert steps_of(watch) == [0, 1, 2, 3]
    assert [i for i, phase in memory.steps if phase == "train"] == [0, 1, 2, 3, 4, 5]
    with sonde.open(watch.path) as run:
        assert run.scalars("loss")[["step", "value"]].values.tolist() == [[3, 2.0]]
        assert run.stats("0", kind="output")["step"].tolist() == [0, 1, 2, 3]
        assert run.status == "finished"


def test_a_new_run_can_begin_at_the_step_of_a_checkpoint(model, watch_in):
    watch = watch_in(model, sgd(model))
    watch.load_state_dict({"step": 500, "run": "another"})
    train(model, sgd(model), 0)
    assert watch.state_dict() == {"step": 500, "run": "one"}


@pytest.mark.parametrize("state", [{"step": -1}, {"step": "7"}, {"run": "x"}, {"step": True}])
def test_a_state_without_a_step_is_an_error(model, watch_in, state):
    watch = watch_in(model, sgd(model))
    with pytest.raises(sonde.SondeError, match="must hold a `step`"):
        watch.load_state_dict(state)


def test_a_watch_that_is_off_has_an_empty_state(model, watch_in, monkeypatch):
    monkeypatch.setenv("SONDE", "off")
    off = sonde.watch(model)
    assert off.state_dict() == {}
    off.load_state_dict({"step": 5})
    monkeypatch.delenv("SONDE")
    watch = watch_in(model, sgd(model))
    watch.load_state_dict(off.state_dict())
    assert watch.state_dict()["step"] == 0


CRASHING = """
import os, sys, torch, sonde
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = sonde.watch(model, optimizer, every=1, dir=sys.argv[1], name="crashed")
for _ in range(7):
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()
watch.log(loss=1.0)
assert watch.flush()
os._exit(9)
"""


def test_ls_counts_what_can_be_read_of_a_run_that_crashed(tmp_path, capsys):
    source = str(Path(sonde.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CRASHING, tmp_path], env=environment, check=False, timeout=120
    )
    assert done.returncode == 9
    main(["ls", str(tmp_path), "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    with sonde.open(tmp_path / "crashed") as run:
        expected = run.info["records"] + run.info["numbers"]
    assert (row["status"], row["step"], row["records"]) == ("crashed", 6, expected)
    assert expected > 7
