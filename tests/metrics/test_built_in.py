"""Metrics that come with Sonde, against what one would write without caring for speed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sonde._errors import SondeError
from sonde.metrics import model
from sonde.metrics.torch import functions as f


@given(rows=st.integers(1, 12), columns=st.integers(1, 12), seed=st.integers(0, 20))
def test_ranks_equal_those_of_a_decomposition(rows, columns, seed):
    w = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    s = torch.linalg.svdvals(w.double())
    assert f.stable_rank(w).item() == pytest.approx((s.square().sum() / s[0] ** 2).item(), rel=0.01)
    p = (s / s.sum()).numpy()
    later = f.effective_rank(w)
    assert later.finish(later.tensor.numpy()) == pytest.approx(
        np.exp(-(p * np.log(p)).sum()), rel=1e-3
    )


def test_ranks_of_special_matrices():
    assert f.stable_rank(torch.eye(7)).item() == pytest.approx(7)
    later = f.effective_rank(torch.eye(7))
    assert later.finish(later.tensor.numpy()) == pytest.approx(7)
    one = torch.outer(torch.arange(1.0, 5), torch.arange(1.0, 4))
    assert f.stable_rank(one).item() == pytest.approx(1)
    assert f.stable_rank(torch.ones(3)) is None
    assert np.isnan(f._entropy_rank(np.zeros((2, 2))))
    assert f.stable_rank(torch.ones(3, 2, 2, 2)).item() == pytest.approx(
        1
    )  # convolutions are flattened


def test_update_ratio_and_cosine():
    u, p = torch.tensor([3.0, 4.0]), torch.tensor([[6.0, 8.0]])
    assert f.update_ratio(u, p).item() == pytest.approx(0.5)
    assert f.update_grad_cosine(-2 * u, u).item() == pytest.approx(-1)
    assert f.update_grad_cosine(u.bfloat16(), p.bfloat16()).item() == pytest.approx(1)
    assert f.update_grad_cosine(torch.zeros(2), u).isnan()


def finished(fn, *parts, module=None):
    declared, _ = model.declared(fn)
    states = [fn(x, module=module) for x in parts]
    state = states[0]
    for more in states[1:]:
        state = declared.reduce.merge(state, more)
    return declared.reduce.finish(state)


def test_a_unit_is_dead_if_it_was_zero_for_all_samples_of_all_parts():
    x = torch.tensor([[1.0, 0, 0, 0], [0, 0, -2, 0]])
    assert finished(f.dead_fraction, x).item() == 0.5
    assert finished(f.dead_fraction, x[:1], x[1:]).item() == 0.5


def test_units_of_convolutions_are_channels():
    x = torch.zeros(2, 3, 4, 4)
    x[1, 2, 3, 3] = 5
    assert finished(f.dead_fraction, x).item() == pytest.approx(2 / 3)
    found = finished(f.channel_max, x[:, :, 0], x[:, :, 3], module=nn.Conv1d(1, 3, 1))
    assert found["max"].item() == 5
    assert found["channel"].item() == 2
    assert [found[str(i)].item() for i in range(3)] == [0, 0, 5]


def test_many_channels_are_summarised():
    x = torch.arange(100.0).repeat(3, 1)
    found = finished(f.channel_max, x)
    assert set(found) == {"max", "channel", "median", "mean", "ratio"}
    assert found["ratio"].item() == pytest.approx(99 / 49)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 40), (5, 2, 3)])
def test_per_sample_gradient_norms_equal_those_of_single_samples(shape):
    torch.manual_seed(0)
    layer = nn.Linear(6, 4)
    x = torch.randn(*shape, 6)
    y = layer(x)
    weights = torch.randn_like(y)
    y.retain_grad()
    (y * weights).tanh().sum().backward()
    expected = []
    for i in range(5):
        layer.zero_grad()
        (layer(x[i : i + 1]) * weights[i : i + 1]).tanh().sum().backward()
        expected.append(layer.weight.grad.norm())
    torch.testing.assert_close(f.per_sample_grad_norm(x, y.grad), torch.stack(expected))


def test_per_sample_gradient_norms_in_pieces(monkeypatch):
    x, g = torch.randn(7, 3, 6), torch.randn(7, 3, 4)
    whole = f.per_sample_grad_norm(x, g)
    monkeypatch.setattr(f, "_MAX_ELEMENTS", 40)
    torch.testing.assert_close(f.per_sample_grad_norm(x, g), whole)


# -- declaring ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"name": ""}, "needs a name"),
        ({"fn": 3}, "needs a function"),
        ({"reduce": "median"}, "must be one of mean, sum, min, max"),
        ({"reduce": 3}, "cannot be 3"),
        ({"kind": "outputs"}, "has no kind 'outputs'. Kinds are: input, output"),
        ({"kind": ()}, "has no kind"),
        ({"kind": ("output", "param")}, "cannot have output, param at once"),
        ({"against": "init"}, "must be None or 'reference'"),
        ({"kind": "update", "against": "reference"}, "cannot compare update"),
    ],
)
def test_mistakes_are_told_at_once(wrong, says):
    with pytest.raises(SondeError, match=says):
        model.checked(**{"name": "x", "fn": torch.mean, **wrong})


def test_a_declared_function_stays_a_function():
    @model.metric(kind="input", reduce="max")
    def largest(x):
        return x.max()

    assert largest(torch.tensor([1, 3])).item() == 3
    declared, where = model.declared(largest)
    assert (declared.name, declared.kinds, declared.reduce) == ("largest", ("input",), "max")
    assert where == ".*"
    assert model.declared(torch.mean) is None
