"""Parameters that nothing trains are read once, and again when they change."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import sonde


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(params=["frozen", "in no optimizer"])
def optimizer(request, model):
    """Trains the last layer: the first is frozen, or forgotten."""
    if request.param == "frozen":
        model[0].requires_grad_(requires_grad=False)
    return torch.optim.SGD(model[2].parameters(), lr=0.1)


def train(model, optimizer, n=1):
    for _ in range(n):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_of(memory, name):
    return [i for i, phase in memory.steps if phase == "train" and name in memory.at(i, phase)]


def test_frozen_parameters_are_read_a_few_times(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    train(model, optimizer, 100)
    watch.close()
    assert steps_of(memory, "0/param/weight") == [0, 1, 3, 7, 15, 31, 63]
    assert steps_of(memory, "2/param/weight") == list(range(100))
    assert memory.at(0)["0/param/weight"] == memory.at(63)["0/param/weight"]


def by_copy(layer):
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.mul_(2)


def by_loading(layer):
    layer.load_state_dict({k: 2 * v for k, v in layer.state_dict().items()})


def by_assigning(layer):
    layer.load_state_dict({k: 2 * v for k, v in layer.state_dict().items()}, assign=True)


def by_data(layer):
    layer.weight.data = 2 * layer.weight.data
    layer.bias.data = 2 * layer.bias.data


def by_replacing(layer):
    layer.weight = nn.Parameter(2 * layer.weight.detach(), layer.weight.requires_grad)
    layer.bias = nn.Parameter(2 * layer.bias.detach(), layer.bias.requires_grad)


@pytest.mark.parametrize("change", [by_copy, by_loading, by_assigning, by_data, by_replacing])
def test_a_frozen_parameter_that_changes_is_read_again(watching, model, optimizer, change):
    watch, memory = watching(model, optimizer)
    train(model, optimizer, 5)
    change(model[0])
    train(model, optimizer, 2)
    watch.close()
    for name in ("weight", "bias"):
        assert steps_of(memory, f"0/param/{name}") == [0, 1, 3, 5, 6]
        before, after = (memory.at(i)[f"0/param/{name}"] for i in (3, 5))
        assert after.max_abs == 2 * before.max_abs


def test_a_momentum_encoder_is_read_at_every_step(watching):
    """Its parameters are written through `.data`, of which torch counts nothing."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"student": nn.Linear(4, 4)})
    model["teacher"] = copy.deepcopy(model["student"]).requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model["student"].parameters(), lr=0.001)
    watch, memory = watching(model, optimizer)
    expected = []
    for i in range(30):
        expected.append(model["teacher"].weight.abs().max().item())
        x = torch.ones(3, 4) * (i + 1)
        (model["student"](x) - model["teacher"](x).detach() + 1).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for k, q in zip(model["teacher"].parameters(), model["student"].parameters(), strict=True):
            k.data.mul_(0.99).add_(0.01 * q.detach().data)
        watch.flush()  # what is found out here counts from the next step on
    watch.close()
    found = steps_of(memory, "teacher/param/weight")
    assert found == list(range(30))
    for i in found:
        assert memory.at(i)["teacher/param/weight"].max_abs == expected[i]


def test_a_parameter_that_is_unfrozen_is_read_at_every_step(watching, model):
    model[0].requires_grad_(requires_grad=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    train(model, optimizer, 5)
    model[0].requires_grad_()
    train(model, optimizer, 3)
    model[0].requires_grad_(requires_grad=False)
    train(model, optimizer, 3)
    watch.close()
    assert steps_of(memory, "0/param/weight") == [0, 1, 3, 5, 6, 7, 8, 9]
    assert steps_of(memory, "0/update/weight") == [5, 6, 7]


def test_frozen_parameters_of_a_step_that_was_dropped_are_read_again(model):
    from sonde.capture.torch.optim.frozen import FrozenParameters

    frozen = FrozenParameters()
    spots, tensors = [object()], [model[0].weight]
    assert frozen.to_read(spots, tensors, 0, lost=0) == tensors
    assert frozen.to_read(spots, tensors, 1, lost=1) == tensors
    assert frozen.to_read(spots, tensors, 2, lost=1) == tensors
    assert frozen.to_read(spots, tensors, 3, lost=1) == [None]


def test_a_frozen_parameter_is_found_in_the_run(watching, model, optimizer):
    watch, _ = watching(model, optimizer)
    train(model, optimizer, 10)
    watch.close()
    with sonde.open(watch.path) as run:
        found = run.stats("0.weight", kind="param", stat="rms")
        assert found["step"].tolist() == [0, 1, 3, 7]
        assert found["rms"].nunique() == 1
        assert run.merge(kind="param", steps=0).count == 30


def test_a_heatmap_leaves_unchanged_steps_of_a_frozen_parameter_blank(watching, model, optimizer):
    from sonde.store import open_run
    from sonde.views import specs
    from sonde.views.answers import ANSWERS
    from sonde.views.questions import parse
    from sonde.views.routes import ROUTES
    from sonde.views.runs.opened_run import OpenedRun

    watch, _ = watching(model, optimizer)
    train(model, optimizer, 10)
    watch.close()
    with open_run(watch.path, frame="arrow") as run:
        question = parse(ROUTES["heat"].question, [("run", "id"), ("kind", "param")])
        heat = ANSWERS["heat"](OpenedRun(run, "id"), question)
    rows = {f"{row.module}.{row.slot}": i for i, row in enumerate(heat.rows)}
    flags = np.array(heat.flags).reshape(len(heat.rows), -1)
    assert np.flatnonzero(flags[rows["0.weight"]] != specs.EMPTY).tolist() == [0, 1, 3, 7]
    assert (flags[rows["2.weight"]] != specs.EMPTY).all()
    assert "blank = unchanged: frozen parameters are recorded when they change" in heat.notes
