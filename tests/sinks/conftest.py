"""A training of 100 steps and more than 50 sites with values that are not finite, or huge."""

import math

import pytest
import torch
from torch import nn

import sonde
from sonde.metrics import names
from sonde.record import Site

STEPS = 100
STATS = ("rms", "max_abs", "min", "nonfinite")


class Odd(nn.Module):
    """Replaces one value of its input in some steps."""

    step = 0

    def forward(self, x):
        odd = {3: math.nan, 5: math.inf, 7: -math.inf, 9: 3e38, 11: -3e38}.get(self.step)
        if odd is not None:
            x = x.clone()
            x[0, 0] = odd
        return x


class Deep(nn.Module):
    """18 Linears: 19 outputs, 36 parameters and as many gradients. Only one branch turns odd."""

    def __init__(self):
        super().__init__()
        self.odd = Odd()
        self.aside = nn.Linear(4, 4)
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(17)))

    def forward(self, x):
        self.aside(self.odd(x)).detach()
        return self.layers(x)


class Told:
    """What a run has, by key and step, as a sink names it."""

    def __init__(self, run, key=None):
        key = key or names.of_statistic
        self.run = run
        self.numbers = {}
        kinds = ["output", "param", "param_grad"]
        for row in run.stats("*", kind=kinds, stat=list(STATS)).to_dict("records"):
            site = Site(row["module"], row["kind"], row["call"], row["slot"])
            for stat in STATS:
                if row["phase"] == "train":
                    self.numbers.setdefault(key(site, stat), {})[row["step"]] = row[stat]
        self.scalars = {}
        for row in run.scalars("*").to_dict("records"):
            self.scalars.setdefault(row["name"], {})[row["step"]] = row["value"]


@pytest.fixture
def trained(tmp_path):
    """Trains `Deep` for 100 steps with sinks; the run, opened."""

    def train(
        sinks, *, steps=STEPS, after=None, close_timeout_s=None, dir=tmp_path / "runs", **more
    ):
        torch.manual_seed(0)
        model = Deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator().manual_seed(1)
        options = {"every": 1, "dir": dir, "sinks": sinks} | more
        with sonde.watch(model, optimizer, **options) as watch:
            for step in range(steps):
                model.odd.step = step
                loss = model(torch.randn(8, 4, generator=generator)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                watch.log(loss=loss)
                if after is not None:
                    after(watch, step)
            if close_timeout_s is not None:
                watch.close(timeout_s=close_timeout_s)
        return sonde.open(watch.path)

    return train


@pytest.fixture
def told():
    return Told


@pytest.fixture
def asked():
    """Options that select all there is, and some histograms."""
    return {
        "stats": STATS,
        "max_series": 1000,
        "histograms": ["aside*", "layers.0*"],
        "batch_s": 0.05,
    }
