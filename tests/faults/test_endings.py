"""The status of a run says how the training ended."""

import subprocess
import sys

import pytest

from sonde import _endings
from sonde.store import open_run

BEGIN = """
import sys, torch, sonde
model = torch.nn.Linear(2, 2)
watch = sonde.watch(model, dir=sys.argv[1], name="run")
def step():
    model(torch.ones(1, 2)).sum().backward()
    watch.step()
"""

# One more is one more line. Without `with`, Python does not keep what `sys.exit` was called with.
ENDINGS = {
    "a crash": ("step(); raise ValueError('boom')", "failed", "failed: ValueError: boom", 1),
    "a crash with a hook of the user's": (
        "sys.excepthook = lambda *_: print('mine'); step(); {}['missing']",
        "failed",
        "failed: KeyError: 'missing'",
        1,
    ),
    "an interrupt": ("step(); raise KeyboardInterrupt", "finished", "interrupted", None),
    "exit 3": ("step(); sys.exit(3)", "finished", "exited", 3),
    "with: exit 3": (
        "\nwith watch:\n    step(); sys.exit(3)",
        "failed",
        "failed: SystemExit: 3",
        3,
    ),
    "with: exit 0": ("\nwith watch:\n    step(); sys.exit(0)", "finished", "exited", 0),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_the_status_follows_what_happened(tmp_path, how):
    code, status, reason, returned = ENDINGS[how]
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code, tmp_path], capture_output=True, text=True, check=False
    )
    assert returned is None or done.returncode == returned, done.stderr
    with open_run(tmp_path / "run") as run:
        assert run.status == status
        assert run.info["reason"] == reason


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (None, "finished"),
        (GeneratorExit(), "finished"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(0), "exited"),
        (SystemExit("no data"), "failed: SystemExit: no data"),
        (RuntimeError(), "failed: RuntimeError"),
        (Unprintable(), "failed: Unprintable"),
    ],
)
def test_the_reason_for_an_error(error, reason):
    assert _endings.of_error(error) == reason
