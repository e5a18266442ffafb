"""Numbers from inside a model: `sonde.log` and `sonde.is_watching`."""

import pytest
import torch
from torch import nn

import sonde


class Gated(nn.Module):
    """Logs without knowing who listens, or whether anybody does."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.asked = []

    def forward(self, x):
        gate = self.fc(x).sigmoid()
        sonde.log("open", gate)
        sonde.log("rows", len(x), reduce="sum")
        sonde.log("extremes", {"low": gate.min(), "high": gate.max()}, reduce="max")
        self.asked.append(sonde.is_watching())
        return x * gate


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Gated(), Gated()

    def forward(self, x):
        return self.b(self.a(self.a(x)))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_nothing_happens_when_nobody_watches():
    model = Model()
    model(torch.ones(2, 4))
    assert model.b.asked == [False]
    assert not sonde.is_watching()
    sonde.log("x", 1.0)
    sonde.attention(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize("log", ["all", "default", "parameters"])
def test_what_is_logged_belongs_to_the_module_that_is_called(watching, log):
    model = Model()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log=log)
    gates = []
    model.a.fc.register_forward_hook(lambda _m, _a, out: gates.append(out.detach().sigmoid()))
    for _ in range(2):
        gates.clear()
        for n in (1, 3):
            model(torch.full((n, 4), float(n))).sum().backward()
        optimizer.step()
    found = watch.metrics()
    assert {k.rsplit("/", 1)[0] for k in found} >= {"log/a", "log/b"}
    assert found["log/a/rows"] == 8  # two calls of 1 and of 3 rows
    assert found["log/b/rows"] == 4
    assert found["log/a/open"] == pytest.approx(torch.cat(gates).double().mean().item(), abs=1e-6)
    assert found["log/a/extremes/high"] == torch.cat(gates).max().item()
    watch.close()
    rows = sonde.open(watch.path).metrics("open", steps=1, frame="arrow")
    assert sorted(rows["module"].to_pylist()) == ["a", "b"]


def test_only_recorded_steps_are_watched(watching):
    model = Model()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, every=2)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    with watch.paused():
        model(torch.ones(2, 4))
    assert model.b.asked == [True, False, True, False]
    assert watch.metrics(1) == {}
    assert watch.metrics(2)["log/b/rows"] == 2


def test_passes_that_are_not_recorded_are_not_watched(watching):
    model = Model()
    watch, _ = watching(model, phases="train")
    model.eval()
    model(torch.ones(2, 4))
    assert model.b.asked == [False]
    with watch.phase("validation"):
        model(torch.ones(2, 4))
    assert model.b.asked == [False, True]


def test_a_recomputed_forward_counts_once(watching):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Model):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    model = Checkpointed()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    optimizer.step()
    assert watch.metrics()["log/b/rows"] == 2


def test_outside_of_a_module_it_is_a_scalar(watching):
    model = Model()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    sonde.log("batch/size", 2)
    optimizer.step()
    watch.close()
    assert watch.metrics()["batch/size"] == 2
    assert sonde.open(watch.path).scalars("batch/size", frame="arrow")["value"].to_pylist() == [2.0]


@pytest.mark.filterwarnings("ignore::sonde.SondeWarning")
def test_what_is_no_number_is_told_once(watching):
    class Wrong(nn.Linear):
        def forward(self, x):
            sonde.log("wrong", "text")
            return super().forward(x)

    model = Wrong(4, 2)
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    watch.close()
    told = [e for e in memory.events if e.code == "failed"]
    assert [(e.where, e.count) for e in told] == [
        ("metrics at log of wrong", 1),
        ("metrics at log of wrong", 2),
    ]


def test_a_logged_tensor_may_change_afterwards(watching):
    class Changing(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            kept = torch.ones(())
            sonde.log("kept", kept)
            kept.zero_()
            return y

    model = Changing(4, 2)
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert watch.metrics()["log/[root module]/kept"] == 1


def test_compiled_code_that_logs_compiles(watching):
    """Without a break, and once: it does nothing there."""

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            sonde.log("open", y)
            return y * 2 if sonde.is_watching() else y

    model = Plain()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, every=2)
    graphs = []
    compiled = torch.compile(
        model, backend=lambda graph, _inputs: graphs.append(graph) or graph, fullgraph=True
    )
    for _ in range(4):
        x = torch.ones(2, 4)
        y = compiled(x)
        assert torch.equal(y, model.fc(x))
        y.sum().backward()
        optimizer.step()
    watch.close()
    assert len(graphs) == 2  # with taps and without
