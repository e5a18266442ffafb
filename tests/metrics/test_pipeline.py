"""The way of a gradient: norms of its stages, and cosines between them."""

import math

import pytest
import torch
from torch import nn


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def data(seed):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))


def gradients(model, *parts):
    """The gradient of each part by itself."""
    found = []
    for x in parts:
        model.zero_grad()
        model(x).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters()])
    model.zero_grad()
    return found


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors]).double()


def cosine(a, b):
    return torch.dot(a, b).item() / (a.norm() * b.norm()).item()


@pytest.mark.parametrize("log", ["all", "activations"])
def test_stages_of_an_accumulated_and_clipped_gradient(watching, log):
    model = mlp()
    first, second = gradients(model, data(0), data(1))
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    watch, _ = watching(model, optimizer, log=log)
    watch.add_metric("gradient_pipeline")
    for seed in (0, 1):
        model(data(seed)).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    clipped = flat([p.grad for p in model.parameters()])
    optimizer.step()
    update = flat([p.detach() - b for p, b in zip(model.parameters(), before, strict=True)])
    found = watch.metrics()
    a, b = flat(first), flat(second)
    expected = {
        "raw_norm": math.sqrt((a.norm() ** 2 + b.norm() ** 2).item() / 2),
        "accumulated_norm": (a + b).norm().item(),
        "clipped_norm": 0.5,
        "update_norm": update.norm().item(),
        "accumulated_clipped_cosine": 1.0,
        "clipped_update_cosine": cosine(clipped, update),
    }
    for term, value in expected.items():
        assert found[f"gradient/{term}"] == pytest.approx(value, rel=1e-4), term
    own = found["gradient_accumulated_norm/0.weight"]
    assert own == pytest.approx((first[0] + second[0]).norm().item(), rel=1e-5)
    size = cosine(flat(first[:1]), flat(first[:1]))
    later = cosine(flat(second[:1]), flat([first[0] + second[0]]))
    mixed = found["gradient_raw_accumulated_cosine/0.weight"]
    assert min(size, later) - 0.1 <= mixed <= 1.0
    assert not any("unscaled" in key for key in found)


def test_micro_batches_that_contradict_each_other_show(watching):
    model = nn.Linear(4, 2, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, _ = watching(model, optimizer)
    watch.add_metric("gradient_pipeline")
    x = data(0)
    for sign in (1.0, -0.9):
        (model(x).sum() * sign).backward()
    optimizer.step()
    found = watch.metrics()
    assert found["gradient/accumulated_norm"] < 0.2 * found["gradient/raw_norm"]
    assert found["gradient/clipped_update_cosine"] == pytest.approx(-1, rel=1e-4)
    assert "gradient/clipped_norm" not in found  # nobody clipped


def test_a_scaler_is_divided_out(watching):
    model = mlp()
    (plain,) = gradients(model, data(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watch, _ = watching(model, optimizer)
    watch.add_metric("gradient_pipeline")
    scaler.scale(model(data(0)).square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    found = watch.metrics()
    size = flat(plain).norm().item()
    assert found["gradient/raw_norm"] == pytest.approx(1024 * size, rel=1e-4)
    assert found["gradient/unscaled_norm"] == pytest.approx(size, rel=1e-4)
    assert found["gradient/accumulated_norm"] == pytest.approx(size, rel=1e-4)
    assert found["gradient/update_norm"] == pytest.approx(0.1 * size, rel=1e-4)


def test_only_recorded_steps_have_hooks(watching):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, _ = watching(model, optimizer, every=2)
    watch.add_metric("gradient_pipeline", where="0")
    hooked = []
    for _ in range(3):
        loss = model(data(0)).square().sum()
        hooked.append([bool(p._backward_hooks) for p in model.parameters()])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert not any(p._backward_hooks for p in model.parameters())
    assert hooked[0] == hooked[2] == [True, True, False, False]
    assert hooked[1] == [False] * 4
    assert {k.split("/")[1] for k in watch.metrics(2) if k.startswith("gradient_")} == {
        "0.weight",
        "0.bias",
    }


def test_training_is_untouched(watching):
    def result(watched):
        model = mlp()
        optimizer = torch.optim.Adam(model.parameters())
        if watched:
            watch, _ = watching(model, optimizer)
            watch.add_metric("gradient_pipeline")
        for i in range(4):
            model(data(i)).square().sum().backward()
            if i % 2:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
        return [p.detach() for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(result(False), result(True), strict=True))
