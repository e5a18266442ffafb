"""The tracker for Accelerate."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from training_task import Net, adam, loader, training_rows

import sonde
from sonde.integrations.accelerate import SondeTracker

RANK = """
import sys
from accelerate import Accelerator
from training_task import Net, adam, loader, training_rows
from sonde.integrations.accelerate import SondeTracker

tracker = SondeTracker(every=1)
accelerator = Accelerator(cpu=True, log_with=tracker)
accelerator.init_trackers("project")
model = Net()
model, optimizer, batches = accelerator.prepare(model, adam(model), loader(training_rows()))
assert type(model).__name__ == "DistributedDataParallel"
watch = tracker.watch(model, optimizer)
for _, batch in zip(range(3), batches):
    accelerator.backward(model(**batch)["loss"])
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
"""


@pytest.fixture(autouse=True)
def fresh():
    """No state of an accelerator of another test."""
    AcceleratorState._reset_state(reset_partial_state=True)


def prepared(tracker):
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project", config={"width": 8})
    model = Net()
    return accelerator, *accelerator.prepare(model, adam(model), loader(training_rows()))


def train(accelerator, model, optimizer, batches, steps):
    for _, batch in zip(range(steps), batches, strict=False):
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": loss, "note": "not a number"})


def test_what_is_logged_and_configured_is_in_the_run(tmp_path):
    tracker = SondeTracker(every=1, dir=tmp_path, name="logged")
    accelerator, model, optimizer, batches = prepared(tracker)
    tracker.watch(model, optimizer)
    train(accelerator, model, optimizer, batches, 3)
    accelerator.end_training()
    with sonde.open(tmp_path / "logged") as run:
        assert run.status == "finished"
        assert run.scalars("*")["name"].tolist().count("loss") == 3
        assert run.info["config"]["user"] == {"width": 8}
        assert run.steps == [0, 1, 2]


def test_a_state_that_is_loaded_later_continues_its_run(tmp_path):
    """`load_state` after `watch` is the wrong order, and works."""
    tracker = SondeTracker(every=1, dir=tmp_path, name=None)
    accelerator, model, optimizer, batches = prepared(tracker)
    accelerator.register_for_checkpointing(tracker)
    first = tracker.watch(model, optimizer).path
    train(accelerator, model, optimizer, batches, 3)
    accelerator.save_state(tmp_path / "saved")
    train(accelerator, model, optimizer, batches, 2)
    accelerator.load_state(tmp_path / "saved")  # back to the third step
    train(accelerator, model, optimizer, batches, 1)
    accelerator.end_training()
    with sonde.open(first) as run:
        assert run.steps == [0, 1, 2, 3]
    tracker.watch(model, optimizer)
    accelerator.load_state(tmp_path / "saved")  # of the first run
    assert tracker.tracker.path == first
    assert tracker.tracker.current_step == 3
    tracker.finish()


def test_a_checkpoint_whose_run_is_gone_begins_a_new_run(tmp_path):
    tracker = SondeTracker(dir=tmp_path)
    tracker.load_state_dict({"run": "moved", "step": 7})
    model = Net()
    with pytest.warns(sonde.SondeWarning, match=r"belongs to the run 'moved', which is not in"):
        watch = tracker.watch(model, adam(model))
    assert watch.current_step == 7
    tracker.finish()


@pytest.mark.slow
def test_several_processes_record_one_run(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", RANK],
            cwd=tmp_path,
            env={**os.environ, **shared, "PYTHONPATH": path, "RANK": str(r), "LOCAL_RANK": str(r)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    (path,) = (p for p in (tmp_path / "runs").iterdir() if not p.is_symlink())
    with sonde.open(path) as run:
        for rank in range(2):
            assert run.stats("first", kind="output", rank=rank)["step"].tolist() == [0, 1, 2]
