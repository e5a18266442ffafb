"""Terms of the refined coordinate check against what one writes down by hand."""

import copy

import pytest
import torch
from torch import nn

from sonde.metrics.torch.rcc import Triple, terms


def pair(module, seed=1):
    """The module at its beginning, and the same after some training."""
    first = copy.deepcopy(module)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn(p.shape, generator=g) * 0.1)
    return module, first


def triple(module, first, x, first_x):
    with torch.no_grad():
        is_float = x.is_floating_point()
        return Triple(
            *(module, first, module(x), first(first_x), first(x)),
            *((x, first_x) if is_float else (None, None)),
        )


def means(t):
    return {k: v.double().mean().item() for k, v in terms(t).items()}


def norm(x, dim=-1):
    return x.double().pow(2).sum(dim).sqrt().mean().item()


def close(found, expected):
    assert set(found) == set(expected)
    for k, v in expected.items():
        assert found[k] == pytest.approx(v, abs=1e-5, rel=1e-5), k


def inputs(*shape):
    g = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=g), torch.randn(shape, generator=g)


@pytest.mark.parametrize("bias", [True, False])
def test_linear(bias):
    torch.manual_seed(0)
    m, f = pair(nn.Linear(6, 4, bias=bias))
    x, x0 = inputs(3, 5, 6)
    W, W0 = m.weight.detach(), f.weight.detach()
    b = m.bias.detach() if bias else torch.zeros(4)
    b0 = f.bias.detach() if bias else torch.zeros(4)
    expected = {
        "effective": norm(x @ (W - W0).T + b - b0),
        "propagating": norm((x - x0) @ W0.T),
        "input": norm(x),
        "input_drift": norm(x - x0),
        "weight/effective": norm(x @ (W - W0).T),
        "weight/propagating": norm((x - x0) @ W0.T),
        "weight/output": norm(x @ W.T),
        "weight/first_output": norm(x0 @ W0.T),
    }
    close(means(triple(m, f, x, x0)), expected)


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(bias):
    m, f = pair(nn.LayerNorm(6, bias=bias))
    x, x0 = inputs(3, 5, 6)

    def hat(y):
        return (y - y.mean(-1, keepdim=True)) / (
            y.var(-1, unbiased=False, keepdim=True) + 1e-5
        ).sqrt()

    w, w0 = m.weight.detach(), f.weight.detach()
    change = (m.bias - f.bias).detach() if bias else 0
    expected = {
        "effective": norm(hat(x) * (w - w0) + change),
        "propagating": norm((hat(x) - hat(x0)) * w0),
        "input": norm(x),
        "input_drift": norm(x - x0),
        "weight/effective": norm(hat(x) * (w - w0)),
        "weight/propagating": norm((hat(x) - hat(x0)) * w0),
        "weight/output": norm(hat(x) * w),
        "weight/first_output": norm(hat(x0) * w0),
        "weight/input": norm(hat(x)),
        "weight/input_drift": norm(hat(x) - hat(x0)),
    }
    close(means(triple(m, f, x, x0)), expected)


class LlamaRMSNorm(nn.Module):
    """As transformers write it."""

    def __init__(self, width, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, x):
        return (
            self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        )


@pytest.mark.parametrize("make", [lambda: nn.RMSNorm(6, eps=1e-6), lambda: LlamaRMSNorm(6, 1e-6)])
def test_rms_norm(make):
    m, f = pair(make())
    x, x0 = inputs(3, 5, 6)

    def hat(y):
        return y / (y.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()

    w, w0 = m.weight.detach(), f.weight.detach()
    expected = {
        "effective": norm(hat(x) * (w - w0)),
        "propagating": norm((hat(x) - hat(x0)) * w0),
        "input": norm(x),
        "input_drift": norm(x - x0),
        "weight/effective": norm(hat(x) * (w - w0)),
        "weight/propagating": norm((hat(x) - hat(x0)) * w0),
        "weight/output": norm(hat(x) * w),
        "weight/first_output": norm(hat(x0) * w0),
        "weight/input": norm(hat(x)),
        "weight/input_drift": norm(hat(x) - hat(x0)),
    }
    close(means(triple(m, f, x, x0)), expected)


def test_embedding():
    m, f = pair(nn.Embedding(10, 6))
    i = torch.tensor([[1, 2, 2], [9, 0, 1]])
    expected = {"effective": norm((m.weight - f.weight).detach()[i])}
    close(means(triple(m, f, i, i)), expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_convolution_has_its_norm_over_channels(bias, dims):
    torch.manual_seed(0)
    make = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
    m, f = pair(make(3, 4, 1, bias=bias))  # with a kernel of one, a matrix at every place
    x, x0 = inputs(2, 3, *[5] * dims)
    W, W0 = (p.weight.detach().flatten(1) for p in (m, f))
    change = (m.bias - f.bias).detach() if bias else torch.zeros(4)

    def at_every_place(matrix, y):
        return torch.einsum("oi,bi...->bo...", matrix, y)

    shaped = change.view(1, -1, *[1] * dims)
    expected = {
        "effective": norm(at_every_place(W - W0, x) + shaped, 1),
        "propagating": norm(at_every_place(W0, x - x0), 1),
        "input": norm(x, 1),
        "input_drift": norm(x - x0, 1),
        "weight/effective": norm(at_every_place(W - W0, x), 1),
        "weight/propagating": norm(at_every_place(W0, x - x0), 1),
        "weight/output": norm(at_every_place(W, x), 1),
        "weight/first_output": norm(at_every_place(W0, x0), 1),
    }
    close(means(triple(m, f, x, x0)), expected)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(6, 4), (3, 6)),
        (nn.LayerNorm(6), (3, 6)),
        (nn.RMSNorm(6), (3, 6)),
        (nn.Conv2d(3, 4, 3), (2, 3, 5, 5)),
        (nn.Sequential(nn.Linear(6, 6), nn.GELU()), (3, 6)),
    ],
)
def test_nothing_has_changed_at_the_beginning(module, shape):
    x, _ = inputs(*shape)
    found = terms(triple(module, copy.deepcopy(module), x, x))
    assert not found["effective"].any()
    assert not found["propagating"].any()


def test_the_change_is_the_sum_of_both():
    m, f = pair(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)))
    x, x0 = inputs(3, 6)
    t = triple(m, f, x, x0)
    torch.testing.assert_close((t.A - t.C) + (t.C - t.B), t.A - t.B)
    found = terms(t)
    torch.testing.assert_close(found["effective"], (t.A - t.C).norm(dim=-1))
    torch.testing.assert_close(found["propagating"], (t.C - t.B).norm(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 5), lambda: nn.LayerNorm(6), nn.Identity])
def test_activations_of_half_precision_are_compared_in_full(make, dtype):
    """Under autocast activations are half as wide as parameters; their differences must not be."""
    module, first = pair(make())
    wide = triple(module, first, *inputs(4, 6))
    half = [getattr(wide, k).to(dtype) for k in ("A", "B", "C", "x", "first_x")]
    expected = means(Triple(module, first, *(y.float() for y in half)))
    found = terms(Triple(module, first, *half))
    assert {v.dtype for k, v in found.items() if not k.startswith("weight/in")} == {torch.float32}
    rounding = 1e-2 if isinstance(module, nn.LayerNorm) else 0.0  # of the input it normalises
    for k, v in expected.items():
        is_rounded = k.startswith("weight/input")
        assert found[k].double().mean().item() == pytest.approx(
            v, rel=rounding if is_rounded else 1e-5, abs=rounding if is_rounded else 1e-6
        ), k
