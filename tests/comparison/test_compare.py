"""Two runs compared: twins are equal, and where others part is found with its cause."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import sonde
from sonde.cli import main
from sonde.comparison.distance import between
from sonde.kernels.reference import sketch

STEPS = 12


class Net(nn.Module):
    def __init__(self, middle="body"):
        super().__init__()
        self.first = nn.Linear(8, 32)
        setattr(self, middle, nn.Sequential(nn.ReLU(), nn.Linear(32, 32), nn.ReLU()))
        self.last = nn.Linear(32, 4)
        self.middle = middle

    def forward(self, x):
        return self.last(getattr(self, self.middle)(self.first(x)))


def train(folder, name, *, seed=0, data_seed=0, steps=STEPS, change=None, middle="body", every=1):
    """One short training; `change(step, model, optimizer, x)` may alter it as it goes."""
    torch.manual_seed(seed)
    model = Net(middle)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if change is not None:
        change(-1, model, optimizer, None)
    data = torch.Generator().manual_seed(data_seed)
    options = {"every": every, "log": "all", "flush_s": 60, "config": {"seed": seed}}
    with sonde.watch(model, optimizer, dir=folder, name=name, **options):
        for step in range(steps):
            x = torch.randn(64, 8, generator=data)
            if change is not None:
                x = change(step, model, optimizer, x)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return folder / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def plain(folder):
    return train(folder, "plain")


def test_twins_have_no_difference(folder, plain):
    found = sonde.compare(plain, train(folder, "twin"))
    assert found.verdict == "identical"
    assert found.first is None
    assert "no difference" in str(found)
    assert found.distances(frame="arrow")["w1"].to_numpy().max() == 0


def test_a_layer_with_other_weights_is_found(folder, plain):
    def other(step, model, optimizer, x):
        if step == -1:
            with torch.no_grad():
                model.body[1].weight.mul_(2)
        return x

    found = sonde.compare(plain, train(folder, "init", change=other))
    assert found.verdict == "different"
    assert (found.first.step, found.first.pair.a.path) == (0, "body.1.weight")
    assert "weights of `body.1.weight` differ at step 0" in found.first.cause
    worst = [row for row in found.farthest(50) if row["site"] == "body.1/param/weight"]
    assert worst[0]["shift"] == pytest.approx(1.0, abs=0.05)


def test_a_learning_rate_that_changes_is_named_at_its_step(folder):
    def other(step, model, optimizer, x):
        if step == 40:
            optimizer.param_groups[0]["lr"] = 4e-3
        return x

    long = train(folder, "long", steps=44)
    found = sonde.compare(long, train(folder, "lr", steps=44, change=other))
    assert found.first.step == 40
    assert found.first.pair.a.kind == "update"
    assert "`lr` is 0.001 and 0.004 there" in found.first.cause
    shifts = {
        row["site"]: row["shift"]
        for row in found.distances(frame="arrow").to_pylist()
        if row["step"] == 40 and row["kind"] == "update"
    }
    assert shifts["first/update/weight"] == pytest.approx(2.0, abs=0.1)


def test_other_data_is_told_from_other_weights(folder, plain):
    def other(step, model, optimizer, x):
        return x if step < 5 else x + 0.5

    found = sonde.compare(plain, train(folder, "data", change=other))
    assert found.first.step == 5
    assert (found.first.pair.a.module, found.first.pair.a.kind) == ("", "input")
    assert "with equal weights: other data" in found.first.cause


def test_a_renamed_layer_is_matched_by_type_shape_and_order(folder, plain):
    found = sonde.compare(plain, train(folder, "renamed", middle="trunk"))
    assert found.sites.renamed["body.1"] == "trunk.1"
    assert not found.sites.added
    assert not found.sites.removed
    assert found.verdict == "identical"


def test_a_map_of_the_user_comes_first(folder, plain):
    other = train(folder, "mapped", middle="trunk")
    found = sonde.compare(plain, other, names={"body": "trunk"})
    assert found.verdict == "identical"
    with pytest.raises(sonde.SondeError, match="no module `nowhere`"):
        sonde.compare(plain, other, names={"body": "nowhere"})


def test_other_seeds_never_part(folder):
    """Twenty pairs that differ by seed and data alone."""
    runs = [train(folder, f"seed{i}", seed=i, data_seed=i, steps=8, every=1) for i in range(21)]
    verdicts = [sonde.compare(a, b).verdict for a, b in pairwise(runs)]
    assert set(verdicts) <= {"alike", "no verdict"}
    with_twin = [
        sonde.compare(a, b, twin=c).verdict
        for a, b, c in zip(runs, runs[1:], runs[2:], strict=False)
    ]
    assert set(with_twin) == {"alike"}


def test_a_real_difference_is_seen_through_other_seeds(folder, plain):
    def broken(step, model, optimizer, x):
        if step >= 4:
            with torch.no_grad():
                model.last.weight.mul_(3)
        return x

    other = train(folder, "through", seed=5, data_seed=5, change=broken)
    found = sonde.compare(plain, other, twin=train(folder, "noise", seed=6, data_seed=6))
    assert found.verdict == "different"
    assert found.first.step >= 4


def test_distances_are_octaves_per_sign():
    rng = np.random.default_rng(0)
    x = rng.normal(size=4000)
    one = sketch(x).columns()
    assert between(one, sketch(4 * x).columns()).w1[0] == pytest.approx(2.0, abs=0.02)
    assert between(one, sketch(x / 2).columns()).shift[0] == pytest.approx(-1.0, abs=0.02)
    assert between(one, one).w1[0] == 0
    some = np.where(rng.random(4000) < 0.25, 0, x)
    assert between(one, sketch(some).columns()).zeros[0] == pytest.approx(np.mean(some == 0))
    bad = np.where(np.arange(4000) < 40, np.inf, x)
    assert between(one, sketch(bad).columns()).nonfinite[0] == pytest.approx(0.01)


def test_the_command_prints_the_cause_and_exits_by_it(folder, plain, capsys):
    twin, other = folder / "twin2", folder / "init2"
    train(folder, "twin2")
    train(folder, "init2", seed=3)
    assert main(["diff", str(plain), str(twin)]) == 0
    assert "no difference" in capsys.readouterr().out
    code = main(["diff", str(plain), str(other), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["verdict"] == "alike" else 1)
    assert found["settings"] == {"seed": ["0", "3"]}


def test_runs_without_a_common_phase_are_named(folder, plain):
    with pytest.raises(sonde.SondeError, match="no sketch in phase `eval`"):
        sonde.compare(plain, plain, phase="eval")
