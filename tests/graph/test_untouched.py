"""Taking the graph changes nothing, leaves nothing, and never gets in the way."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
from reading import calls, flow
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

import sonde
from sonde.graph.torch import taker as taker_module
from sonde.graph.torch.trace import PassTrace

X = torch.arange(12.0).reshape(3, 4) / 10


def model_with_everything() -> nn.Module:
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(16, 8)
            self.conv = nn.Conv1d(8, 8, 3, padding=1)
            self.norm = nn.BatchNorm1d(8)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.rnn = nn.LSTM(8, 8, batch_first=True)
            self.drop = nn.Dropout(0.3)
            self.head = nn.Linear(8, 16)

        def forward(self, tokens):
            x = self.embed(tokens)
            x = x + self.norm(self.conv(x.transpose(1, 2))).transpose(1, 2)
            x = self.encoder(x)
            y, _ = self.rnn(x)
            y = y * 1
            y += x
            y[:, 0] *= 0.5
            noise = torch.randn_like(y) * 0.01
            return self.head(self.drop(nn.functional.gelu(y) + noise))

    return Net()


def train(path=None, *, steps: int = 6) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    model = model_with_everything()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    watch = (
        sonde.watch(model, optimizer, every=1, dir=path, name="r", strict=True) if path else None
    )
    losses = []
    for step in range(steps):
        tokens = torch.randint(0, 16, (4, 6))
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step == 2:
            model.drop.p = 0.1
    if watch is not None:
        watch.close()
    return losses, model.state_dict()


def test_training_is_the_same_to_the_bit(tmp_path):
    plain = train()
    watched = train(tmp_path)
    assert plain[0] == watched[0]
    for name, value in plain[1].items():
        assert torch.equal(value, watched[1][name]), name
    with sonde.open(tmp_path / "r") as run:
        assert run.graph.has_flow
        assert run.graph.passes == 6


def test_outputs_and_random_numbers_are_the_same_for_many_operations():
    """What the traced pass computes, operation by operation, in comparison to one without it."""
    from sonde.graph.torch.trace import TraceMode

    def work() -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.randn(4, 6, 8, requires_grad=True)
        w = torch.randn(8, 8, requires_grad=True)
        f = nn.functional
        found = [
            f.linear(x, w, torch.randn(8)),
            torch.matmul(x, w),
            torch.einsum("bij,jk->bik", x, w),
            f.scaled_dot_product_attention(x, x, x, is_causal=True),
            f.layer_norm(x, (8,)),
            f.dropout(x, 0.5),
            f.cross_entropy(x.flatten(0, 1), torch.arange(24) % 8, label_smoothing=0.1),
            f.binary_cross_entropy_with_logits(x, torch.rand_like(x)),
            torch.nn.functional.conv1d(x, torch.randn(3, 6, 3)),
            torch.cumsum(x, 1).logsumexp(-1),
            torch.linalg.norm(x, dim=-1),
            x.index_select(1, torch.tensor([1, 2])).masked_fill(torch.rand(4, 2, 8) > 0.5, 0.0),
            torch.topk(x, 3).values,
            f.interpolate(x, scale_factor=2.0, mode="linear"),
            f.embedding(torch.arange(4), w).softmax(-1),
            torch.cdist(x, x),
            torch.bernoulli(torch.sigmoid(x)),
        ]
        gradients = torch.autograd.grad(sum(y.sum() for y in found), (x, w))
        return [*found, *gradients]

    before = work()
    mode = TraceMode(PassTrace([], max_calls=16), pytest.fail)
    mode.__enter__()
    traced = work()
    assert mode.stop()
    for a, b in zip(before, traced, strict=True):
        assert torch.equal(a, b)


def test_nothing_is_left_on_the_model(tmp_path):
    model = model_with_everything()
    before = {
        k: (len(m._forward_hooks), len(m._forward_pre_hooks)) for k, m in model.named_modules()
    }
    with sonde.watch(model, dir=tmp_path, every=1) as watch:
        model(torch.zeros(2, 3, dtype=torch.long))
        watch.step()
    after = {
        k: (len(m._forward_hooks), len(m._forward_pre_hooks)) for k, m in model.named_modules()
    }
    assert before == after
    assert not _get_current_dispatch_mode_stack()


def test_only_passes_that_must_be_traced_are(tmp_path, monkeypatch):
    traced = []
    real = taker_module.TracedPass.begin

    def begin(self, *args):
        traced.append(1)
        return real(self, *args)

    monkeypatch.setattr(taker_module.TracedPass, "begin", begin)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with sonde.watch(model, dir=tmp_path, every=2) as watch:
        for _ in range(20):
            model(X)
            watch.step()
    assert len(traced) == 1


def test_an_exception_in_the_model_reaches_the_user_and_nobody_else(graph_of):
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.fails = True

        def forward(self, x):
            x = self.a(x)
            if self.fails:
                raise ValueError("mine")
            return self.b(x)

    def call(m, step):
        if step == 0:
            with pytest.raises(ValueError, match="mine"):
                m(X)
            assert not _get_current_dispatch_mode_stack()
            m.fails = False
        m(X)

    graph = graph_of(Fails(), call=call, steps=2)
    assert flow(graph) == {"./input/0 -> a", "a -> b", "b -> ./output/0"}


def test_an_interrupt_leaves_a_mode_that_goes_away(graph_of):
    class Interrupted(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)
            self.is_first = True

        def forward(self, x):
            x = self.a(x)
            if self.is_first:
                self.is_first = False
                raise KeyboardInterrupt
            return x

    def call(m, step):
        if step == 0:
            with pytest.raises(KeyboardInterrupt):
                m(X)
        m(X)
        assert not _get_current_dispatch_mode_stack()

    assert flow(graph_of(Interrupted(), call=call, steps=2)) == {
        "./input/0 -> a",
        "a -> ./output/0",
    }


def test_a_mistake_of_ours_is_an_event_and_not_an_exception(tmp_path, monkeypatch, flushing):
    def fail(self, *args):
        raise RuntimeError("ours")

    monkeypatch.setattr(PassTrace, "operation", fail)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with sonde.watch(model, dir=tmp_path, name="r", every=1) as watch:
        with pytest.warns(sonde.SondeWarning, match="graph"), flushing(watch):
            model(X)
        for _ in range(3):
            model(X)
            watch.step()
    with sonde.open(tmp_path / "r") as run:
        assert not run.graph.nodes
        assert [w["place"] for w in run.info["warnings"]] == ["graph"]
        assert run.info["records"] > 0


def test_other_modes_of_the_user_go_on(graph_of):
    seen = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    def call(m, _step):
        with Counts():
            m(X)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    graph = graph_of(model, call=call)
    assert any("addmm" in name for name in seen)
    assert flow(graph) == {"./input/0 -> 0", "0 -> 1", "1 -> ./output/0"}


def test_a_model_that_runs_on_fake_tensors_is_left_alone(graph_of):
    from torch._subclasses.fake_tensor import FakeTensorMode

    def call(m, step):
        if step == 0:
            with FakeTensorMode(allow_non_fake_inputs=True):
                m(torch.empty(3, 4))
        m(X)

    graph = graph_of(nn.Sequential(nn.Linear(4, 4)), call=call, steps=2)
    assert flow(graph) == {"./input/0 -> 0", "0 -> ./output/0"}


def test_copies_and_saves_inside_of_the_pass_work(graph_of):
    class Copies(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            self.__dict__["copied"] = copy.deepcopy(self.a)
            torch.save(self.a.state_dict(), io.BytesIO())
            return self.copied(self.a(x))

    graph = graph_of(Copies(), X)
    assert calls(graph) == [".", "a"]


def test_calls_in_other_threads_do_not_disturb(graph_of):
    class Threads(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            other = threading.Thread(target=lambda: self.b(X))
            other.start()
            other.join()
            return self.a(x)

    assert flow(graph_of(Threads(), X)) == {"./input/0 -> a", "a -> ./output/0"}


def test_parts_that_are_called_by_themselves_are_levels_of_their_own(graph_of):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            self.decoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    graph = graph_of(Parts(), call=lambda m, _: m.decoder(m.encoder(X)))
    assert set(calls(graph)) == {
        "encoder",
        "encoder.0",
        "encoder.1",
        "decoder",
        "decoder.0",
        "decoder.1",
    }
    assert flow(graph, "encoder") == {
        "encoder/input/0 -> encoder.0",
        "encoder.0 -> encoder.1",
        "encoder.1 -> encoder/output/0",
    }


def test_what_is_not_selected_is_still_in_the_graph(graph_of):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    graph = graph_of(model, X, include="2")
    assert calls(graph) == [".", "0", "1", "2"]


def test_a_hook_of_the_user_that_changes_an_output_is_followed(graph_of):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def call(m, step):
        if step == 0:
            m[0].register_forward_hook(lambda _m, _a, out: out * 2)
        m(X)

    assert flow(graph_of(model, call=call)) == {"./input/0 -> 0", "0 -> 1", "1 -> ./output/0"}


def test_higher_order_operators_run(graph_of):
    class Conditional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            from torch.nn.attention.flex_attention import flex_attention

            y = self.a(x)[None, None]
            return flex_attention(y, y, y)[0, 0]

    with torch.no_grad():
        graph = graph_of(Conditional(), torch.randn(16, 4), phases=("train", "no_grad"))
    assert flow(graph) == {"./input/0 -> a", "a -> ./output/0"}


@pytest.mark.slow
def test_a_compiled_model_shows_its_modules_and_says_why(graph_of):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))
    compiled = torch.compile(model, backend="eager")
    graph = graph_of(compiled, X, steps=2)
    assert set(calls(graph)) == {".", "0", "1", "1.0", "1.1"}
    assert {n.id: n.parent for n in graph.nodes}["1.1"] == "1"
    assert not graph.has_flow
    assert "compiled" in graph.note


@pytest.mark.slow
def test_a_model_with_a_compiled_part_stays_compiled(tmp_path):
    def train_once(path):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        ran = []

        def backend(graph_module, _inputs):
            ran.append(1)
            return graph_module.forward

        model[2] = torch.compile(model[2], backend=backend)
        with sonde.watch(model, dir=path, name=f"r{len(ran)}", every=1) as watch:
            for _ in range(3):
                model(X)
                watch.step()
            where = watch.path
        return ran, sonde.open(where).graph

    ran, graph = train_once(tmp_path)
    assert len(ran) == 1
    assert "compiled" in graph.note
