"""The code blocks of TorchWatcher's README, on the drop-in: same calls, checked results.

`from neptune_scale import Run` is left out: the service that it logs to has closed. Any object with
`log_metrics` and `log_histograms` is a run.
"""

import pytest
import torch
from torch import nn

from sonde.compat.torchwatcher import TENSOR_STATS, TorchWatcher


class YourModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.0)
        self.fc2 = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc2(self.drop(self.relu(self.fc1(x))))


class NeptuneRun:
    def __init__(self):
        self.logged = []

    def log_metrics(self, data, step):
        self.logged.append((step, data))

    def log_histograms(self, histograms, step):
        raise AssertionError("no histogram was asked for")

    @property
    def keys(self):
        return {key for _, data in self.logged for key in data}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return YourModel()


@pytest.fixture
def run():
    return NeptuneRun()


def trained(model):
    output = model(torch.randn(16, 4))
    output.retain_grad()
    output.square().mean().backward()
    return output


LAYERS = ["fc1", "relu", "drop", "fc2"]
PARAMETERS = ["fc1/weight", "fc1/bias", "fc2/weight", "fc2/bias"]


def keys(front, families, *stats):
    names = {"activations": LAYERS, "gradients": LAYERS, "parameters": PARAMETERS}
    return {f"{front}/{f}/{n}/{s}" for f in families for n in names[f] for s in stats}


def test_torchwatcher_basic_usage(model, run):
    watcher = TorchWatcher(
        model,
        run,
        track_layers=[nn.Linear, nn.ReLU],
        tensor_stats=["mean", "norm"],
        base_namespace="model_metrics",
    )
    for current_step in range(3):
        output = trained(model)
        watcher.watch(step=current_step)
    assert [step for step, _ in run.logged] == [0, 1, 2]
    _, metrics = run.logged[-1]
    families = ["activations", "gradients", "parameters"]
    every = keys("model_metrics", families, "mean", "norm")
    assert set(metrics) == {key for key in every if "/drop/" not in key}
    expected = {
        "model_metrics/activations/fc2/mean": output.mean().item(),
        "model_metrics/gradients/fc2/norm": output.grad.norm().item(),
        "model_metrics/parameters/fc1/weight/norm": model.fc1.weight.norm().item(),
    }
    assert {key: metrics[key] for key in expected} == pytest.approx(expected)


def test_torchwatcher_controlling_metric_logging(model, run):
    watcher = TorchWatcher(model, run)
    trained(model)
    watcher.watch(step=0)
    assert run.keys == keys("model_internals", ["activations", "gradients", "parameters"], "mean")
    run.logged.clear()
    trained(model)
    watcher.watch(step=1, track_activations=True, track_gradients=False, track_parameters=True)
    assert run.keys == keys("model_internals", ["activations", "parameters"], "mean")
    run.logged.clear()
    trained(model)
    watcher.watch(step=2, prefix="train")
    families = ["activations", "gradients", "parameters"]
    assert run.keys == keys("train/model_internals", families, "mean")


def test_torchwatcher_namespace_organization_base_namespace(model, run):
    watcher = TorchWatcher(model, run, base_namespace="model_internals")
    trained(model)
    watcher.watch(step=0)
    assert all(key.startswith("model_internals/") for key in run.keys)


def test_torchwatcher_namespace_organization_per_call_namespace(model, run):
    watcher = TorchWatcher(model, run, tensor_stats=["mean", "norm"])
    step = 0
    trained(model)
    watcher.watch(step=step, prefix="train")
    model.eval()
    with torch.no_grad():
        output = model(torch.ones(3, 4))
    watcher.watch(step=step, prefix="validation")
    (_, train), (_, validation) = run.logged
    assert "train/model_internals/activations/fc1/mean" in train
    assert "train/model_internals/parameters/fc1/weight/mean" in train
    assert "train/model_internals/gradients/fc2/norm" in train
    found = validation["validation/model_internals/activations/fc2/mean"]
    assert found == pytest.approx(output.mean().item())
    assert not [key for key in validation if "/gradients/" in key]


def test_torchwatcher_example_use_cases_training_with_full_tracking(model, run):
    watcher = TorchWatcher(model, run)
    trained(model)
    watcher.watch(step=0, namespace="train")
    families = ["activations", "gradients", "parameters"]
    assert run.keys == keys("train/model_internals", families, "mean")


def test_torchwatcher_example_use_cases_validation_with_limited_tracking(model, run):
    watcher = TorchWatcher(model, run)
    model(torch.ones(1, 4))
    watcher.watch(
        step=0,
        track_activations=True,
        track_gradients=False,
        track_parameters=False,
        prefix="validation",
    )
    assert run.keys == keys("validation/model_internals", ["activations"], "mean")


def test_torchwatcher_example_use_cases_efficient_training(model, run):
    watcher = TorchWatcher(model, run)
    trained(model)
    watcher.watch(
        step=0,
        track_activations=False,
        track_parameters=False,
        track_gradients=True,
        prefix="train",
    )
    assert run.keys == keys("train/model_internals", ["gradients"], "mean")


def test_torchwatcher_available_statistics(model, run):
    names = ["mean", "std", "norm", "min", "max", "var", "abs_mean"]
    assert set(names) <= set(TENSOR_STATS)
    watcher = TorchWatcher(model, run, tensor_stats=names)
    output = trained(model)
    watcher.watch(step=0)
    _, metrics = run.logged[0]
    for name in names:
        for key, x in (
            ("activations/fc2", output),
            ("gradients/fc2", output.grad),
            ("parameters/fc1/weight", model.fc1.weight),
        ):
            found = metrics[f"model_internals/{key}/{name}"]
            assert found == pytest.approx(TENSOR_STATS[name](x).item(), rel=1e-5), (key, name)
