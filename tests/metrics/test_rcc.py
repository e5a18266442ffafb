"""The refined coordinate check of a model in training: every module by its real call."""

import copy

import pytest
import torch
from torch import nn


class Net(nn.Module):
    """All layers that have terms of their own, dropout, keywords, a module called twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.norm = nn.LayerNorm(8)
        self.block = Block()
        self.rms = nn.RMSNorm(8)
        self.conv = nn.Conv1d(8, 4, 3, padding=1)
        self.bn = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        x = self.block(x=self.block(x=x, scale=0.5), scale=1.0)
        x = self.bn(self.conv(self.rms(x).mT)).mT
        return self.head(x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.2)
        self.gain = nn.Parameter(torch.ones(8))

    def forward(self, *, x, scale):
        return x + self.drop(self.fc(x)) * scale * self.gain


def tokens(seed=0):
    return torch.randint(0, 10, (4, 6), generator=torch.Generator().manual_seed(seed))


def net():
    torch.manual_seed(0)
    return Net()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05)


def train(model, optimizer, steps):
    for i in range(steps):
        model(tokens(i)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


class Witness:
    """What the check should find, from independent hooks, for modules whose calls are plain."""

    def __init__(self, model):
        self.inputs, self.outputs = {}, {}
        for name, m in model.named_modules():
            m.register_forward_hook(self._hook(name))

    def _hook(self, name):
        def hook(_module, args, output):
            if args:
                self.inputs.setdefault(name, []).append(args[0].detach().clone())
            self.outputs.setdefault(name, []).append(output.detach().clone())

        return hook


def norm(x, dim=-1):
    return x.norm(dim=dim).mean().item()


def test_terms_of_a_model_in_training(watching):
    model = net()
    optimizer = sgd(model)
    first = copy.deepcopy(model)
    watch, _ = watching(model, optimizer, reference=first)
    watch.add_metric("rcc")
    train(model, optimizer, 3)
    mine, its = copy.deepcopy(model), copy.deepcopy(first)
    a, b = Witness(mine), Witness(its)
    state = torch.get_rng_state()
    its(tokens(3))
    torch.set_rng_state(state)
    mine(tokens(3))
    torch.set_rng_state(state)
    model(tokens(3)).square().mean().backward()
    optimizer.step()
    found = watch.metrics(3)
    for name, dim in (("norm", -1), ("rms", -1), ("conv", 1), ("head", -1)):
        with torch.no_grad():
            c = first.get_submodule(name)(a.inputs[name][0])
        effective = norm(a.outputs[name][0] - c, dim)
        propagating = norm(c - b.outputs[name][0], dim)
        assert effective > 0
        assert found[f"RCC (W_t-W_0)x_t/{name}/l2norm"] == pytest.approx(effective, abs=1e-5), name
        assert found[f"RCC W_0(x_t-x_0)/{name}/l2norm"] == pytest.approx(propagating, abs=1e-5)
        assert found[f"RCC x_t/{name}/l2norm"] == pytest.approx(
            norm(a.inputs[name][0], dim), abs=1e-5
        )
        drift = norm(a.inputs[name][0] - b.inputs[name][0], dim)
        assert found[f"RCC (x_t-x_0)/{name}/l2norm"] == pytest.approx(drift, abs=1e-5)
    # Of a module that is called twice, both calls.
    with torch.no_grad():
        calls = [first.block.fc(x) for x in a.inputs["block.fc"]]
    effective = sum(norm(y - c) for y, c in zip(a.outputs["block.fc"], calls, strict=True)) / 2
    assert found["RCC (W_t-W_0)x_t/block.fc/l2norm"] == pytest.approx(effective, abs=1e-5)
    # Keyword arguments are replayed, dropout with the same numbers.
    assert found["RCC (W_t-W_0)x_t/block/l2norm"] > 0
    embedding = norm((mine.embed.weight - first.embed.weight)[tokens(3)])
    assert found["RCC (W_t-W_0)x_t/embed/l2norm"] == pytest.approx(embedding, abs=1e-5)
    assert not any("drop" in key or "[root" in key for key in found)


def test_nothing_has_changed_at_the_first_step(watching):
    model = net()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, reference="init")
    watch.add_metric("rcc")
    train(model, optimizer, 1)
    found = {k: v for k, v in watch.metrics(0).items() if "l2norm" in k}
    moved = [
        k
        for k, v in found.items()
        if v and ("W_0(x_t" in k or "(W_t-W_0)" in k) and k.count("/") == 2
    ]
    assert len(found) > 20
    assert moved == []


def test_a_check_changes_nothing(watching):
    """Weights, losses, BatchNorm's buffers and random numbers, to the bit."""

    def result(checked):
        model = net()
        optimizer = sgd(model)
        if checked:
            watch, _ = watching(model, optimizer, reference="init")
            watch.add_metric("rcc")
            watch.add_metric("dead_fraction")
        train(model, optimizer, 3)
        return model.state_dict(), torch.get_rng_state()

    (plain, numbers), (checked, others) = result(False), result(True)
    assert torch.equal(numbers, others)
    for name, value in plain.items():
        assert torch.equal(value, checked[name]), name


def test_each_module_is_replayed_once_per_call(watching):
    calls = {}

    class Counting(nn.Linear):
        def forward(self, x):
            calls[self] = calls.get(self, 0) + 1
            return super().forward(x)

    inner = nn.Sequential(Counting(4, 4), Counting(4, 4))
    model = nn.Sequential(nn.Sequential(nn.Sequential(inner)), Counting(4, 2))
    optimizer = sgd(model)
    first = copy.deepcopy(model)
    watch, _ = watching(model, optimizer, reference=first)
    watch.add_metric("rcc")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    its = [m for m in first.modules() if isinstance(m, Counting)]
    # Once in the reference's own forward, once again with the model's inputs; however deep.
    assert [calls[m] for m in its] == [2, 2, 2]
    assert len([k for k in watch.metrics() if "(W_t-W_0)x_t" in k and k.count("/") == 2]) == 6


def test_containers_are_checked_when_asked_for(watching):
    model = net()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, reference="init")
    watch.add_metric("rcc", where="block|head")
    train(model, optimizer, 2)
    modules = {
        k.split("/")[1].removesuffix(".weight") for k in watch.metrics() if k.startswith("RCC")
    }
    assert modules == {"block", "head"}


def test_every_says_when(watching):
    model = net()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, reference="init")
    watch.add_metric("rcc", every=2)
    train(model, optimizer, 3)
    watch.close()
    assert [
        s for (s, _), found in sorted(memory.scalars.items()) if any("rcc" in n for n in found)
    ] == [0, 2]


def test_tuples_integers_and_caches_are_no_trouble(watching):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4))

        def forward(self, x, flag, *, cache=None):
            return (x * self.w, x.argmax(-1)) if flag else (x, None)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.other = Odd(), Odd()

        def forward(self, x):
            y, _ = self.odd(x, True)
            return self.other(y, True, cache=Cache())[0]

    class Cache:
        pass

    model = Model()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, reference="init")
    watch.add_metric("rcc")
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    watch.close()
    assert watch.metrics()["RCC (W_t-W_0)x_t/odd/l2norm"] > 0
    assert ("other", "a call with a Cache cannot be made twice") in memory.counted("skipped")
