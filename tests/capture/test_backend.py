"""Backends: which one watches a model, and a second framework recorded through the protocol."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy_backend import MLP, SGD, NumpyBackend
from torch import nn

import sonde
from sonde.capture import backend
from sonde.capture.torch.backend import BACKEND as TORCH

STEPS = 5


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(backend, "_REGISTERED", [])
    backend.register(NumpyBackend())


def batches():
    rng = np.random.default_rng(1)
    return [rng.standard_normal((16, 8)).astype(np.float32) for _ in range(STEPS)]


def train(model, optimizer, log=lambda **_: None):
    """Minimise the mean square of what the model returns."""
    losses = []
    for x in batches():
        y = model.forward(x)
        losses.append(float((y**2).mean()))
        model.backward(2 * y / y.size)
        optimizer.step()
        log(loss=losses[-1])
    return losses


def recorded(tmp_path, **options):
    model = MLP(8, 12, 3)
    optimizer = SGD(model, 0.1)
    options = {"every": 1, "dir": tmp_path, "name": "numpy"} | options
    with sonde.watch(model, optimizer, **options) as watch:
        train(model, optimizer, watch.log)
    return sonde.open(watch.path)


def same_in_torch():
    """The same model with the same weights."""
    ours = MLP(8, 12, 3)
    model = nn.Sequential()
    for name, layer in ours.layers.items():
        if name.startswith("relu"):
            model.add_module(name, nn.ReLU())
            continue
        linear = nn.Linear(layer.weight.shape[1], layer.weight.shape[0])
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(layer.weight))
            linear.bias.copy_(torch.from_numpy(layer.bias))
        model.add_module(name, linear)
    return model


def test_a_model_of_another_framework_is_recorded_as_the_same_model_in_torch(tmp_path):
    run = recorded(tmp_path)
    model = same_in_torch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, name="torch") as watch:
        for x in batches():
            loss = model(torch.from_numpy(x)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.log(loss=loss)
    stats = ["count", "mean", "rms", "min", "max", "p50", "zeros"]
    kinds = ["output", "output_grad", "param", "param_grad", "update"]
    columns = ["step", "phase", "name", *stats]
    ours = run.stats("*", kind=kinds, stat=stats)
    theirs = sonde.open(watch.path).stats("*", kind=kinds, stat=stats)
    ours = ours[ours["phase"] == "train"][columns].sort_values(["step", "name"])
    theirs = theirs[theirs["phase"] == "train"][columns].sort_values(["step", "name"])
    theirs = theirs[theirs["name"].str[0] != "."]  # torch has the model itself besides
    assert ours["name"].tolist() == theirs["name"].tolist()
    assert ours["step"].tolist() == theirs["step"].tolist()
    assert len(ours) == STEPS * (3 + 3 + 3 * 4)
    np.testing.assert_allclose(ours[stats], theirs[stats], rtol=1e-4, atol=1e-6)
    norms = [sonde.open(path).scalars("grad_norm")["value"] for path in (run.path, watch.path)]
    np.testing.assert_allclose(*norms, rtol=1e-5)


def test_numbers_and_the_flat_dict_work_as_for_any_model(tmp_path):
    model = MLP(8, 12, 3)
    optimizer = SGD(model, 0.1)
    with sonde.watch(model, optimizer, every=2, dir=tmp_path) as watch:
        losses = train(model, optimizer, watch.log)
        found = watch.metrics(stats="rms", kinds="output", include="dense1")
        assert watch.current_step == STEPS
    run = sonde.open(watch.path)
    assert run.scalars("loss")["value"].tolist() == losses
    rms = run.stats("dense1", kind="output", stat="rms")
    assert rms["step"].tolist() == [0, 2, 4]
    assert found["activation/dense1/rms"] == rms["rms"].tolist()[-1]
    assert found["loss"] == losses[-1]


def test_what_is_watched_computes_the_same_and_is_left_as_it_was():
    def weights(model):
        return [layer.weight for layer in model.layers.values() if hasattr(layer, "weight")]

    plain, watched = MLP(8, 12, 3), MLP(8, 12, 3)
    train(plain, SGD(plain, 0.1))
    optimizer = SGD(watched, 0.1)
    before = {path: set(vars(layer)) for path, layer in watched.layers.items()}
    watch = sonde.watch(watched, optimizer, every=1, dir="runs")
    train(watched, optimizer)
    sonde.unwatch(watched)
    assert all((a == b).all() for a, b in zip(weights(plain), weights(watched), strict=True))
    assert set(vars(optimizer)) == {"model", "lr"}
    for path, layer in watched.layers.items():
        assert set(vars(layer)) - {"_x", "_is_on"} == before[path]
    assert watch.state_dict()["step"] == STEPS


def test_selection_phases_and_pauses_hold_for_any_backend(tmp_path):
    model = MLP(8, 12, 3)
    optimizer = SGD(model, 0.1)
    options = {"log": ["output", "param"], "include": "dense*", "exclude": "dense1"}
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, **options) as watch:
        train(model, optimizer)
        with watch.phase("check"):
            model.forward(batches()[0])
        with watch.paused():
            model.forward(batches()[0])
    run = sonde.open(watch.path)
    found = run.stats("*", stat="count", phase=None)
    assert set(found["name"]) == {
        *("dense0/output/0", "dense0/param/weight", "dense0/param/bias"),
    }
    checked = found[found["phase"] == "check"]
    assert checked[["step", "name", "count"]].values.tolist() == [
        [STEPS - 1, "dense0/output/0", 16 * 12]
    ]


def test_an_array_without_numbers_is_reported_and_training_goes_on(tmp_path):
    model = MLP(8, 12, 3)
    optimizer = SGD(model, 0.1)
    watch = sonde.watch(model, optimizer, every=1, log="all", dir=tmp_path)

    def record_words():
        for _ in range(2):
            watch.record("words", np.array(["a", "b"]))
        assert watch.flush()

    with pytest.warns(sonde.SondeWarning, match="holds no numbers"):
        record_words()
    train(model, optimizer)
    watch.close()
    run = sonde.open(watch.path)
    assert "./attach/words" not in set(run.stats("*", stat="count")["name"])
    events = run.sql("select code, message, sum(count) from events group by all")
    ((code, message, count),) = events.values.tolist()
    assert (code, "holds no numbers" in message, count) == ("failed", True, 2)
    assert len(run.stats("*", kind="output")) == 3 * STEPS


def test_what_a_backend_cannot_do_is_an_error_that_says_so(tmp_path):
    model = MLP(8, 12, 3)
    with sonde.watch(model, SGD(model, 0.1), dir=tmp_path) as watch:
        with pytest.raises(sonde.SondeError, match="Metrics are not available for MLP"):
            watch.add_metric("size", lambda x: x.size)
        with pytest.raises(sonde.SondeError, match="References are not available for MLP"):
            watch.set_reference("init")


def test_the_backend_is_chosen_by_the_type_of_the_model():
    assert backend.backend_of(nn.Linear(1, 1)) is TORCH
    assert backend.backend_of(MLP(1, 1)).name == "numpy"
    with pytest.raises(sonde.SondeError, match=r"must be a torch.nn.Module.*, got int"):
        backend.backend_of(3)


def test_the_last_backend_of_a_name_counts():
    second = NumpyBackend()
    backend.register(second)
    assert backend.backend_of(MLP(1, 1)) is second


def test_watching_a_model_of_another_framework_loads_no_torch(tmp_path):
    code = """
import sys
import sonde
from numpy_backend import MLP, SGD, NumpyBackend
from sonde.capture.backend import register
register(NumpyBackend())
model = MLP(2, 2)
optimizer = SGD(model, 0.1)
with sonde.watch(model, optimizer, every=1) as watch:
    model.backward(model.forward(model.layers["dense0"].weight))
    optimizer.step()
assert len(sonde.open(watch.path).stats("*")) == 8
assert "torch" not in sys.modules
"""
    paths = [*sys.path, str(__file__).rpartition("/")[0]]
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": ":".join(p for p in paths if p)},
    )


TORCH_BESIDE_JAX = """
import sys
import torch
import sonde

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return sonde.attach(self.layer(x), "logits")

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with sonde.watch(model, optimizer, every=1, log="all") as watch:
    watch.add_metric("norm", lambda x: x.norm())
    for _ in range(2):
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        watch.log(loss=torch.tensor(1.0))
assert len(sonde.open(watch.path).stats("layer", kind="output")) == 2
"""


def test_watching_a_torch_model_loads_no_jax(tmp_path):
    code = f"""
{TORCH_BESIDE_JAX}
assert not {{"jax", "jaxlib", "flax", "optax"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_watching_a_torch_model_starts_no_device_of_jax(tmp_path):
    """On a GPU, JAX takes most of the memory once it starts: a torch model may need it."""
    code = f"""
import flax.nnx
from jax._src.xla_bridge import backends_are_initialized
{TORCH_BESIDE_JAX}
assert not [name for name in sys.modules if name.startswith("sonde.capture.jax")]
assert not backends_are_initialized()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
