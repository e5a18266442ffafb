"""Compiled code looks at the hooks of one module only, and still notices all that matters."""

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from sonde._torch_internals import tracing
from sonde._torch_internals.tracing import drop_hook_guards, hooked

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.rest = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.rest(self.first(x)))


def called(model):
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def run(call, watch=None):
    call(torch.randn(3, 4)).square().mean().backward()
    if watch is not None:
        watch.step()


def n_graphs():
    return counters["stats"]["unique_graphs"]


@pytest.fixture
def counted(monkeypatch):
    """Through the hooks of which modules guards lead, before and after."""
    found = []

    def look(guards, scope):
        sources = map(hooked, (g.originating_source for g in guards.inner))
        return [s.get_value(scope, {}, {}) for s in sources if s is not None]

    def dropped(guards, scope, is_fixed):
        before = look(guards, scope)
        drop_hook_guards(guards, scope, is_fixed)
        found.append((before, look(guards, scope)))

    monkeypatch.setattr(tracing, "drop_hook_guards", dropped)
    return found


def test_the_hooks_of_one_module_are_looked_at(watching, counted):
    model = Net()
    watch, _ = watching(model, every=1)
    run(called(model), watch)
    ((before, after),) = counted
    assert {id(m) for m in before} >= {id(m) for m in model.modules() if m is not model}
    assert {id(m) for m in after} == {id(model.first)}


def test_hooks_of_others_are_looked_at(watching, counted):
    model = Net()
    model.rest[1].register_forward_hook(lambda _m, _a, out: out * 2)
    watch, _ = watching(model, every=1)
    run(called(model), watch)
    ((_, after),) = counted
    assert {id(m) for m in after} == {id(model.first), id(model.rest[1])}


def test_parts_that_are_compiled_by_themselves_are_told_apart(watching, counted):
    model = nn.Sequential(Net(), nn.Linear(2, 4), Net())
    watch, memory = watching(model, every=1)
    for part in (model[0], model[2]):
        part.compile(backend="aot_eager")
    run(model, watch)
    run(model, watch)
    watch.close()
    assert counted
    assert all(len(before) == len(after) for before, after in counted)
    assert {"0.head/output/0", "2.head/output/0"} <= set(memory.at(1))


def test_a_function_around_the_model_looks_at_the_model(watching, counted):
    model = Net()
    watch, memory = watching(model, every=1)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def loss(x):
        return model(x).square().mean()

    for _ in range(2):
        loss(torch.randn(3, 4)).backward()
        watch.step()
    watch.close()
    ((before, after),) = counted
    assert len(after) < len(before)
    assert {id(m) for m in after} == {id(model)}
    assert "rest.1/output/0" in memory.at(1)


def test_code_is_made_again_when_the_watch_is_gone(watching):
    model = Net()
    call = called(model)
    watch, memory = watching(model, every=1)
    run(call, watch)
    run(call, watch)
    assert n_graphs() == 1
    watch.close()
    assert "rest.1/output/0" in memory.at(1)
    run(call)
    assert n_graphs() == 2


def test_models_of_one_class_are_told_apart(watching):
    one, two, unwatched = Net(), Net(), Net()
    calls = [called(m) for m in (one, two, unwatched)]
    first, found = watching(one, every=1)
    second, other = watching(two, every=1)
    with torch.no_grad():
        for p in two.parameters():
            p.mul_(100)
    for _ in range(3):
        for call in calls:
            run(call)
        first.step()
        second.step()
    for watch in (first, second):
        watch.close()
    assert n_graphs() == 3
    for memory in (found, other):
        assert memory.at(2)["head/output/0"].count == 6
    assert other.at(2)["first/output/0"].rms > 10 * found.at(2)["first/output/0"].rms


def test_a_module_that_takes_the_place_of_another_is_recorded(watching):
    model = Net()
    call = called(model)
    watch, memory = watching(model, every=1)
    run(call, watch)
    model.rest[1] = nn.Linear(4, 4)
    with torch.no_grad():
        model.rest[1].weight.mul_(1000)
    run(call, watch)
    run(call, watch)
    watch.close()
    assert memory.at(2)["rest.1/output/0"].rms > 50 * memory.at(0)["rest.1/output/0"].rms
