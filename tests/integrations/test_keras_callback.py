"""The callback for Keras with its torch backend, in processes of their own: Keras chooses its
backend when it is imported."""

import importlib.util
import os
import subprocess
import sys

import pytest

import sonde

pytestmark = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="no keras here")

FIT = """
import keras
import numpy as np
from sonde.integrations.keras import SondeCallback

keras.utils.set_random_seed(0)
dense = keras.layers.Dense
model = keras.Sequential([keras.Input((6,)), dense(8, "relu", name="first"), dense(1, name="last")])
optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps={accumulated})
model.compile(optimizer, "mse", jit_compile=False)
x = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
callback = SondeCallback(every=1, name="run")
options = {{"batch_size": 4, "epochs": 2, "validation_split": 1 / 3, "verbose": 0}}
model.fit(x, x[:, :1], callbacks=[callback], **options)
assert callback.watch is None
"""


def run_python(code, folder, backend):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("accumulated", "steps"), [(None, 8), (2, 4)])
def test_layers_parameters_and_validations_are_recorded(tmp_path, accumulated, steps):
    done = run_python(FIT.format(accumulated=accumulated), tmp_path, "torch")
    assert done.returncode == 0, done.stderr
    with sonde.open(tmp_path / "runs" / "run") as run:
        assert run.steps == list(range(steps))
        found = run.stats("first", kind="output")
        assert found["step"].tolist() == list(range(steps))
        evaluated = run.stats("first", kind="output", phase="eval")
        assert evaluated["step"].tolist() == [steps // 2 - 1, steps - 1]
        updated = run.stats("*", kind="update", stat="norm", steps=steps - 1)
        assert len(updated) == 4
        assert (updated["norm"] > 0).all()
        assert len(run.scalars("loss")) == steps


def test_another_backend_is_refused_before_training(tmp_path):
    done = run_python(FIT.format(accumulated=None), tmp_path, "jax")
    assert "this is 'jax'. Set KERAS_BACKEND=torch before Keras is imported." in done.stderr
    assert not (tmp_path / "runs").exists()
