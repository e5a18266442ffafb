"""Lightning, the Trainer of transformers and Accelerate: a training that is killed and resumed has
the steps and phases of the trainer, and the records of a plain loop."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from training_task import ACCUMULATED, SAVED_AT, STEPS, VALIDATED_AT, Holder, Net, plain

import sonde

HERE = Path(__file__).parent
COLUMNS = "step, phase, module, kind, slot, call, stage"
NUMBERS = "count, zeros, nans, infs, min, max, sum, sum_abs, sum_sq"


def start(library, folder, *more):
    command = [sys.executable, "-W", "ignore", HERE / "train_with.py", library, folder, *more]
    return subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def killed_and_resumed(library, folder):
    """The run of a training that was killed in the middle."""
    first = start(library, folder)
    lines = iter(first.stdout.readline, "")
    assert "ready\n" in lines, first.communicate()[1]
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert first.returncode == -signal.SIGKILL
    second = start(library, folder, "resume")
    _, errors = second.communicate()
    assert second.returncode == 0, errors
    (path,) = (p for p in (folder / "runs").iterdir() if not p.is_symlink())
    return sonde.open(path)


def records(run):
    return run.sql(f"select {COLUMNS}, {NUMBERS} from stages order by {COLUMNS}")


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "lightning", "transformers"])
def test_a_training_that_was_killed_and_resumed_has_the_records_of_a_plain_loop(library, tmp_path):
    pytest.importorskip(library)
    model = Holder() if library == "lightning" else Net()
    expected = plain(model, getattr(model, "net", model), tmp_path / "plain")
    run = killed_and_resumed(library, tmp_path)
    assert run.status == "finished"
    assert sorted(run.steps) == list(range(STEPS))
    found = records(run)
    evaluated = found[found["phase"] == "eval"]
    assert set(evaluated["step"]) == {VALIDATED_AT - 1}
    assert set(found["stage"]) == {"final", "before_clip"}
    assert_frame_equal(found, records(expected), check_exact=True)
    for name in ("lr", "grad_norm", "grad_norm/before_clip"):
        assert_frame_equal(run.scalars(name), expected.scalars(name), check_exact=True)
    assert len(run.scalars("loss")) in {STEPS, STEPS // 5}
    assert ACCUMULATED * SAVED_AT < ACCUMULATED * STEPS
