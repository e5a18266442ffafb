"""While nothing is recorded, the hooks are off the model; when something is, they are there."""

import pytest
import torch
from torch import nn

from sonde._torch_internals.frames import TRACES_HOOKS


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.b(self.a(x))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def step(model, optimizer, x=None):
    model(torch.ones(3, 4) if x is None else x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def hooked(model):
    """Names of the modules that have a hook of any kind."""
    return {n for n, m in model.named_modules() if m._forward_hooks or m._forward_pre_hooks}


ALL = {"", "a", "b", "b.0", "b.1"}


def test_hooks_are_there_in_the_steps_that_are_recorded(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=3)
    seen = []
    for _ in range(8):
        seen.append(hooked(model))
        step(model, optimizer)
    # They stay for two passes, in which a compiler would have shown itself.
    assert seen == [ALL, ALL, {""}, ALL, {""}, {""}, ALL, {""}]
    watch.close()
    for at in (0, 3, 6):
        assert memory.at(at)["b.1/output/0"].count == 6
        assert memory.at(at)["a/output_grad/0"].count == 12


def test_a_schedule_that_never_fires_leaves_the_model_alone(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=lambda step: False)
    for _ in range(4):
        step(model, optimizer)
    assert hooked(model) == {""}
    watch.close()
    assert hooked(model) == set()
    assert not memory.batches


def test_a_named_phase_is_recorded_in_between(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=100)
    for _ in range(4):
        step(model, optimizer)
    assert hooked(model) == {""}
    with watch.phase("probe"):
        assert hooked(model) == ALL
        model(torch.ones(5, 4))
    watch.close()
    assert memory.at(3, "probe")["a/output/0"].count == 20


def test_a_model_whose_parts_are_called_by_themselves_keeps_its_hooks(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=4)
    for i in range(6):
        model.b(model.a(torch.ones(3, 4))).sum().backward()
        watch.log(loss=float(i))
        optimizer.step()
        assert hooked(model) == ALL
    watch.close()
    assert [at for at, _ in memory.scalars] == list(range(6))
    assert memory.at(4)["b.1/output/0"].count == 6


def test_a_user_hook_and_a_new_module_meanwhile(watching, model, optimizer):
    watch, memory = watching(model, optimizer, every=4)
    for _ in range(3):
        step(model, optimizer)
    model.b.append(nn.Linear(2, 7))
    handle = model.a.register_forward_hook(lambda m, args, out: out * 0)
    step(model, optimizer)
    step(model, optimizer)
    handle.remove()
    assert hooked(model) == {""}
    watch.close()
    assert memory.at(4)["b.2/output/0"].count == 21


@pytest.mark.parametrize("kinds", ["param", "update", "param_grad", "optim"])
def test_without_a_kind_of_modules_only_the_root_has_a_hook(watching, model, optimizer, kinds):
    watching(model, optimizer, log=kinds)
    assert hooked(model) == {""}


@pytest.mark.parametrize("how", ["whole", "in place", "function"])
def test_what_is_compiled_while_hooks_rest_has_its_taps_when_they_wake(
    watching, model, optimizer, how
):
    torch._dynamo.reset()
    watch, memory = watching(model, optimizer, every=6)
    for _ in range(4):
        step(model, optimizer)
    assert hooked(model) == {""}
    called = model
    if how == "in place":
        model.compile(backend="aot_eager")
    elif how == "whole":
        called = torch.compile(model, backend="aot_eager")
    else:
        called = torch.compile(lambda x: model(x) + 1, backend="aot_eager")
    for _ in range(4, 14):
        step(called, optimizer)
    assert hooked(model) == ALL
    watch.close()
    for at in (6, 12):
        assert memory.at(at)["b.1/output/0"].count == 6
        if TRACES_HOOKS:  # the compiler of 2.11 does not
            assert memory.at(at)["a/output_grad/0"].count == 12
