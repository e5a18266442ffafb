"""Which functions may be recorded once and replayed: those that cannot notice the difference."""

import functools
import math
import random
import time

import pytest
import torch
from torch import nn
from torch.nn import functional

from sonde.capture.torch.metrics.accumulate import reduced
from sonde.capture.torch.metrics.evaluate import _all_of
from sonde.capture.torch.metrics.replay import Replays
from sonde.metrics.model import Metric
from sonde.metrics.torch.fixed import ReplayProbe, fixed

POWER = 2
STATE = {"power": 2}
WEIGHT = torch.ones(3)


def helper(x, power=POWER):
    return x.abs().pow(power)


def with_helper(x):
    return helper(x).mean() / math.sqrt(x.numel())


def with_power(x):
    return x.abs().pow(POWER).mean()


def counting():
    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x.mean() * n

    return count


def scaled_by(factor):
    return lambda x: x.mean() * factor


def appending(x, seen=[]):  # noqa: B006  # that is the point
    seen.append(1)
    return x.mean() * len(seen)


def setting(x):
    global POWER
    POWER = 3
    return x.mean()


class Method:
    def __init__(self):
        self.n = 0

    def __call__(self, x):
        self.n += 1
        return x.mean() * self.n

    def method(self, x):
        return self(x)


@pytest.mark.parametrize(
    "fn",
    [
        torch.mean,
        torch.linalg.vector_norm,
        functional.gelu,
        lambda x: x.norm(dim=-1),
        lambda x: x[..., 0, :].mean() / len(x.shape),
        lambda x: torch.linalg.vector_norm(x.float(), torch.inf),
        lambda x: torch.stack([x[..., i].sum() for i in range(2)]),
        with_helper,
        with_power,
        scaled_by(2.0),
        scaled_by((1, "a", None)),
    ],
)
def test_a_function_of_its_arguments_is_fixed(fn):
    found = fixed(fn)
    assert found is not None
    assert found.holds()


@pytest.mark.parametrize(
    "fn",
    [
        counting(),
        appending,
        setting,
        Method(),
        Method().method,
        functools.partial(torch.mean),
        nn.Linear(2, 2),
        scaled_by([2.0]),
        scaled_by(torch.ones(1)),
        lambda x: x.mean() * STATE["power"],
        lambda x: (x * WEIGHT).mean(),
        lambda x: x.mean() * time.time(),
        lambda x: x.mean() * random.random(),
        lambda x: x.mean() * torch.initial_seed(),
        lambda x: x.mean() * torch.cuda.device_count(),
        lambda x: x.mean() * print("told"),
        lambda x: __import__("time").time() * x.mean(),
        len,
        "mean",
    ],
)
def test_what_may_depend_on_something_else_is_not(fn):
    assert fixed(fn) is None


def test_a_constant_that_is_changed_is_noticed(monkeypatch):
    found, other = fixed(with_power), fixed(with_helper)
    assert found.holds()
    monkeypatch.setitem(globals(), "POWER", 3)
    assert not found.holds()
    assert other.holds()  # its default was taken when it was defined
    monkeypatch.setitem(globals(), "helper", lambda x: x)
    assert not other.holds()


def test_a_variable_around_it_that_is_changed_is_noticed():
    factor = 1.0

    def scaled(x):
        return x.mean() * factor

    found = fixed(scaled)
    assert found.holds()
    factor = 2.0
    assert not found.holds()


def test_a_built_in_that_is_hidden_later_is_noticed(monkeypatch):
    found = fixed(lambda x: x.mean() / len(x.shape))
    assert found.holds()
    monkeypatch.setitem(globals(), "len", lambda x: 3)
    assert not found.holds()


@pytest.mark.parametrize(
    ("fn", "is_fit"),
    [
        (torch.linalg.vector_norm, True),
        (lambda x: x[..., 0, :].abs().amax(), True),
        (lambda x: functional.softmax(x, -1).max(dim=-1).values, True),
        (lambda x: x.sum().item(), False),
        (lambda x: x.mean() if x.sum() > 0 else x.sum(), False),
        (lambda x: x[x > 0].mean(), False),
        (lambda x: x.nonzero().sum(), False),
        (lambda x: functional.dropout(x).mean(), False),
        (lambda x: (x * torch.randn_like(x)).mean(), False),
        (lambda x: x.clone().mul_(2).mean(), False),
        (lambda x: torch.linalg.svdvals(x[0]).max(), False),
        (lambda x: x.to("meta").sum(), False),
        (lambda x: torch.equal(x, x), False),
    ],
)
def test_what_needs_the_host_or_leaves_something_behind_is_not_fit(fn, is_fit):
    x = torch.randn(2, 3, 4)
    with ReplayProbe(x.device) as probe:
        fn(x)
    assert probe.is_fit == is_fit


def test_metrics_that_are_asked_together_give_what_each_gives():
    metrics = [
        Metric("mean", torch.mean),
        Metric("rows", lambda x: x.norm(dim=-1)),
        Metric("largest", lambda x: x.abs(), reduce="max"),
        Metric("positive", lambda x: x > 0),
        Metric("first", lambda x: x.flatten()[:1]),
    ]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.randn(3, 4).to(dtype)
        for some in (metrics, metrics[:1], metrics[4:]):
            (said,), places = _all_of(some, x)
            assert said.dtype == torch.float64
            for metric, (at, n) in zip(some, places, strict=True):
                value = metric.fn(x)
                assert n == value.numel()
                alone = reduced(value, metric.reduce) if n > 1 else value
                assert said[at].item() == alone.double().item()


def test_of_a_tensor_that_two_modules_return_metrics_are_asked_once(watching):
    """There is no GPU here: what would be replayed is computed."""
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    watch, _ = watching(model, every=1)
    watch.add_metric("mean", torch.mean)
    watch.add_metric("largest", lambda x: x.amax())
    asker = watch._session.observer.asker
    asked = []

    def follow(name, compute, tensors, _is_fit):
        asked.append(name)
        return compute(*tensors)

    asker.recipes.follow = follow
    asker.see = lambda uses, x, when, _: asker._follow(uses, x, when, asker._said_of(x))
    y = model(torch.randn(3, 4))
    watch.step()
    found = watch.metrics()
    watch.close()
    assert len(asked) == 1
    for module in ("0.0", "0", "[root module]"):
        assert found[f"activation/{module}/mean"] == y.mean().item()
        assert found[f"activation/{module}/largest"] == y.max().item()


def test_what_fails_in_a_recipe_is_told_once_and_then_left():
    told = []
    recipes = Replays(told.append)
    for _ in range(3):
        assert recipes.follow("nothing", lambda: ([], None), ()) is None
    assert len(told) == 1
