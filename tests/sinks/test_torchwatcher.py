"""What the document of TorchWatcher describes, section by section, on Sonde's engine.

The names are those that `sonde.sinks.Neptune` uses. No client is needed here: tests/sinks/
test_neptune.py writes the same to files of the real one.
"""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.sinks.keys import torchwatcher_key
from sonde.sketch import STATISTICS as STATISTICS_OF_SONDE
from sonde.sketch import statistics

STATISTICS = {
    "mean": torch.mean,
    "std": torch.std,
    "norm": torch.norm,
    "min": torch.min,
    "max": torch.max,
    "var": torch.var,
    "abs_mean": lambda x: x.abs().mean(),
}
KINDS = ("output", "output_grad", "param")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Names(sonde.Sink):
    """Keeps what comes, by TorchWatcher's names and step."""

    def __init__(self, base_namespace="model_internals", **options):
        super().__init__(**({"stats": "mean", "kinds": KINDS, "max_series": 1000} | options))
        self.base = base_namespace
        self.numbers = {}
        self.histograms = {}

    def key(self, series):
        return torchwatcher_key(series, self.base)

    def write(self, readings):
        for reading in readings:
            for kept, found in (
                (self.numbers, reading.numbers),
                (self.histograms, reading.histograms),
            ):
                for key, value in found.items():
                    kept.setdefault(key, {})[reading.step] = value

    def groups(self):
        """The second part of every name of a tensor: activations, gradients or parameters."""
        return {key.partition(f"{self.base}/")[2].partition("/")[0] for key in self.numbers}


@pytest.fixture
def train(tmp_path):
    """Trains three steps and validates once; returns the tensors that were there, by name."""

    def train(sink, *, device="cpu", **options):
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("no GPU here")
        torch.manual_seed(0)
        layers = {"fc1": nn.Linear(6, 8), "act": nn.ReLU(), "fc2": nn.Linear(8, 2)}
        model = nn.Sequential(OrderedDict(layers)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        there = {}
        given = {"every": 1, "log": KINDS, "dir": tmp_path, "sinks": [sink]} | options
        with sonde.watch(model, optimizer, **given) as watch:
            for step in range(3):
                x = torch.randn(16, 6, device=device)
                outputs = {}
                for name, layer in layers.items():
                    outputs[name] = x = layer(x)
                    x.retain_grad()
                x.square().mean().backward()
                for name, layer in layers.items():
                    there[f"activations/{name}", step] = outputs[name].detach().clone()
                    there[f"gradients/{name}", step] = outputs[name].grad.clone()
                    for parameter, value in layer.named_parameters():
                        there[f"parameters/{name}/{parameter}", step] = value.detach().clone()
                optimizer.step()
                optimizer.zero_grad()
            model.eval()
            with torch.no_grad(), watch.phase("validation"):
                model(torch.randn(16, 6, device=device))
        return there

    return train


def test_basic_usage_tracks_chosen_layers_under_a_base_namespace(train):
    sink = Names("model_metrics", stats=["mean", "norm"], scalars=())
    train(sink, include=[nn.Linear, nn.ReLU])
    layers = {key.split("/")[2] for key in sink.numbers if key.startswith("model_metrics/")}
    assert layers == {"fc1", "act", "fc2"}
    assert {key.rpartition("/")[2] for key in sink.numbers} == {"mean", "norm"}


def test_layers_are_chosen_by_type(train):
    sink = Names(scalars=())
    train(sink, include=nn.Linear)
    assert sink.numbers
    assert not [key for key in sink.numbers if "/act/" in key]


def test_by_default_all_layers_are_tracked_with_their_mean(train):
    sink = Names(scalars=())
    train(sink)
    train_keys = {key for key in sink.numbers if key.startswith("model_internals/")}
    per_layer = {f"model_internals/{g}/{n}/mean" for g in ("activations", "gradients") for n in L}
    per_parameter = {f"model_internals/parameters/{n}/mean" for n in PARAMETERS}
    root = {f"model_internals/{g}/[root module]/mean" for g in ("activations", "gradients")}
    assert train_keys - root == per_layer | per_parameter


L = ("fc1", "act", "fc2")
PARAMETERS = [f"{n}/{p}" for n in ("fc1", "fc2") for p in ("weight", "bias")]


@pytest.mark.parametrize("device", DEVICES)
def test_all_statistics_of_the_three_kinds_are_those_of_torch(train, device):
    """The eighth is the histogram."""
    sink = Names(stats=list(STATISTICS), histograms="*", bins=50)
    there = train(sink, device=device)
    assert len(there) == 3 * 10
    for (name, step), tensor in there.items():
        x = tensor.double()
        for stat, of in STATISTICS.items():
            found = sink.numbers[f"model_internals/{name}/{stat}"][step]
            np.testing.assert_allclose(found, float(of(x)), rtol=1e-5, atol=1e-9)
        histogram = sink.histograms[f"model_internals/{name}/hist"][step]
        assert len(histogram.counts) == 50
        assert histogram.counts.sum() == pytest.approx(tensor.numel())
        np.testing.assert_allclose(histogram.edges[[0, -1]], [x.min().cpu(), x.max().cpu()])


@pytest.mark.parametrize(
    ("kinds", "groups"),
    [
        (("output", "param"), {"activations", "parameters"}),
        (("output",), {"activations"}),
        (("output_grad",), {"gradients"}),
        (("param",), {"parameters"}),
    ],
)
def test_what_is_logged_is_controlled_by_kind(train, kinds, groups):
    sink = Names(kinds=kinds, scalars=())
    train(sink)
    assert sink.groups() == groups


def test_a_prefix_stands_before_the_base_namespace(train):
    sink = Names(prefix="train", phases="train", scalars=())
    train(sink)
    assert "train/model_internals/activations/fc1/mean" in sink.numbers
    assert "train/model_internals/parameters/fc1/weight/mean" in sink.numbers
    assert all(key.startswith("train/model_internals/") for key in sink.numbers)


def test_validation_has_a_namespace_of_its_own_with_activations_alone(train):
    sink = Names(scalars=())
    train(sink)
    found = [key for key in sink.numbers if key.startswith("validation/")]
    assert "validation/model_internals/activations/fc1/mean" in found
    assert {key.split("/")[2] for key in found} == {"activations"}
    assert sink.numbers["validation/model_internals/activations/fc1/mean"].keys() == {2}


def test_training_can_go_on_with_gradients_alone(train):
    """As in `track_activations=False, track_parameters=False`: nothing else is even recorded."""
    sink = Names(phases="train", scalars=())
    train(sink, log=["output_grad"])
    assert sink.groups() == {"gradients"}


@pytest.fixture
def width():
    """A statistic of our own, gone after the test."""
    before = dict(STATISTICS_OF_SONDE)

    @sonde.statistic(sql="max - min")
    def width(sketches):
        return sketches.extrema[:, 1] - sketches.extrema[:, 0]

    yield "width"
    statistics._STATISTICS.clear()
    statistics._STATISTICS.update(before)


def test_statistics_are_added(train, width):
    sink = Names(stats=[width])
    there = train(sink)
    x = there["activations/fc1", 0]
    found = sink.numbers["model_internals/activations/fc1/width"][0]
    assert found == pytest.approx(float(x.max() - x.min()))


def test_an_error_of_the_tracker_is_a_warning_and_training_goes_on(train, tmp_path):
    class Closed(Names):
        def write(self, readings):
            raise RuntimeError("the run is closed")

    with pytest.warns(sonde.SondeWarning, match="the run is closed"):
        train(Closed(), name="kept")
    with sonde.open(tmp_path / "kept") as run:
        assert run.stats("fc1", kind="output", phase="train")["step"].tolist() == [0, 1, 2]
