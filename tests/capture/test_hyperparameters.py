"""What an optimizer works with is recorded as scalars: learning rate and the like, norms of
gradients, the scale of a gradient scaler."""

import math

import pytest
import torch
from torch import nn

import sonde

PLAIN = {"lr", "momentum", "weight_decay", "grad_norm"}
ADAM = {"lr", "betas.0", "betas.1", "eps", "weight_decay", "grad_norm"}


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def backward(model, scale=10.0):
    (scale * model(torch.ones(5, 4))).square().sum().backward()


def train(model, optimizer, steps, after=lambda: None, clip=None):
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        after()


def scalars(watch):
    with sonde.open(watch.path, frame="arrow") as run:
        rows = run.scalars().to_pylist()
    found = {}
    for row in rows:
        assert row["phase"] == "train"
        found.setdefault(row["name"], {})[row["step"]] = row["value"]
    return found


def test_the_learning_rate_of_each_recorded_step_is_the_one_that_was_used(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with sonde.watch(model, optimizer, every=2, dir=tmp_path) as watch:
        train(model, optimizer, 5, schedule.step)
    found = scalars(watch)
    assert set(found) == PLAIN
    assert found["lr"] == {0: 0.5, 2: 0.125, 4: 0.03125}
    assert found["momentum"] == dict.fromkeys((0, 2, 4), 0.9)
    assert found["weight_decay"] == dict.fromkeys((0, 2, 4), 0.01)


def test_groups_and_optimizers_are_told_apart(tmp_path):
    model = small()
    first = torch.optim.AdamW(
        [{"params": model[0].weight, "lr": 1e-3}, {"params": model[0].bias, "weight_decay": 0.0}],
        lr=1e-4,
        betas=(0.8, 0.95),
    )
    second = torch.optim.SGD(
        [{"params": model[2].weight, "name": "head"}, {"params": model[2].bias, "name": "bias"}],
        lr=0.1,
    )
    with sonde.watch(model, [first, second], every=1, dir=tmp_path) as watch:
        backward(model)
        first.step()
        second.step()
    found = {name: values[0] for name, values in scalars(watch).items()}
    assert {name: v for name, v in found.items() if name.startswith("lr")} == {
        "lr": 1e-3,
        "lr/group1": 1e-4,
        "lr/optimizer1/head": 0.1,
        "lr/optimizer1/bias": 0.1,
    }
    assert found["betas.0"] == found["betas.0/group1"] == 0.8
    assert found["betas.1"] == 0.95
    assert (found["weight_decay"], found["weight_decay/group1"]) == (0.01, 0.0)
    assert found["eps"] == 1e-8
    assert found["momentum/optimizer1/head"] == 0


def test_a_learning_rate_that_is_a_tensor_is_recorded(tmp_path):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25), foreach=False)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        train(model, optimizer, 3, lambda: optimizer.param_groups[0]["lr"].mul_(0.5))
    assert scalars(watch)["lr"] == {0: 0.25, 1: 0.125, 2: 0.0625}


def test_norms_before_and_after_clipping(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    norms = []
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        for _ in range(3):
            optimizer.zero_grad()
            backward(model)
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
            optimizer.step()
        train(model, optimizer, 1)
        last = math.hypot(*(float(p.grad.norm()) for p in model.parameters()))
    found = scalars(watch)
    assert list(found["grad_norm/before_clip"]) == [0, 1, 2]
    assert list(found["grad_norm/before_clip"].values()) == pytest.approx(norms, rel=1e-4)
    expected = {0: 1.0, 1: 1.0, 2: 1.0, 3: last}
    assert found["grad_norm"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("bad", "norm"), [(math.nan, math.nan), (math.inf, math.inf)])
def test_a_gradient_that_is_not_finite_has_no_finite_norm(tmp_path, bad, norm):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        backward(model)
        model[0].weight.grad[0, 0] = bad
        optimizer.step()
    assert str(scalars(watch)["grad_norm"][0]) == str(norm)


def test_the_norm_is_of_gradients_as_the_optimizer_got_them_from_micro_batches(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        for _ in range(4):
            backward(model)
        total = math.hypot(*(float(p.grad.norm()) for p in model.parameters()))
        optimizer.step()
    assert scalars(watch)["grad_norm"] == {0: pytest.approx(total, rel=1e-5)}


def test_the_scale_of_a_gradient_scaler_is_that_of_the_step(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        for at in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(5, 4)).square().sum()).backward()
            if at == 1:
                model[0].weight.grad[0, 0] = math.inf
            scaler.step(optimizer)
            scaler.update()
    found = scalars(watch)
    assert found["loss_scale"] == {0: 64.0, 1: 128.0, 2: 64.0}
    assert found["lr"] == dict.fromkeys(range(3), 1e-3)


def test_nothing_of_it_is_recorded_when_switched_off(tmp_path):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, hyperparameters=False) as watch:
        train(model, optimizer, 2, clip=1.0)
        watch.log(loss=1.0)
    assert set(scalars(watch)) == {"loss"}
    assert not optimizer._optimizer_step_pre_hooks


def test_a_name_that_the_user_logs_is_the_users(tmp_path):
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        for at in range(3):
            optimizer.zero_grad()
            backward(model)
            watch.log(grad_norm=-1.0)
            optimizer.step()
            watch.log(lr=100.0 + at)
    found = scalars(watch)
    assert found["lr"] == {0: 100.0, 1: 101.0, 2: 102.0}
    assert found["grad_norm"] == dict.fromkeys(range(3), -1.0)


def test_norms_need_no_optimizer(tmp_path):
    model = small()
    with sonde.watch(model, every=1, dir=tmp_path) as watch:
        backward(model)
        total = math.hypot(*(float(p.grad.norm()) for p in model.parameters()))
        watch.step()
    assert scalars(watch) == {"grad_norm": {0: pytest.approx(total, rel=1e-5)}}


def test_hyperparameters_that_are_no_numbers_are_left_out(tmp_path):
    class Strange(torch.optim.SGD):
        pass

    model = small()
    optimizer = Strange(model.parameters(), lr=0.1)
    optimizer.param_groups[0].update(eps="small", betas=(0.9, None), weight_decay=None)
    optimizer.param_groups[0]["momentum"] = True
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, strict=True) as watch:
        backward(model)
        optimizer.param_groups[0]["weight_decay"] = 0
        optimizer.step()
    assert set(scalars(watch)) == {"lr", "betas.0", "weight_decay", "grad_norm"}


def test_the_last_numbers_are_in_the_metrics_of_a_step(tmp_path):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        train(model, optimizer, 2)
        found = watch.metrics()
    assert set(found) >= ADAM
    assert found["lr"] == 1e-3


def test_closing_leaves_no_hook_on_the_optimizer(tmp_path):
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path):
        train(model, optimizer, 1)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


# -- the table of sites ------------------------------------------------------------------------


def test_sites_say_which_parameters_train_and_what_dropouts_drop(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.25), nn.Linear(8, 8), nn.AlphaDropout(0.5))
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        train(model, optimizer, 1)
    with sonde.open(watch.path, frame="arrow") as run:
        rows = run.sites.to_pylist()
    trains = {r["name"]: r["requires_grad"] for r in rows}
    assert trains["0/param/weight"] is False
    assert trains["0/param/bias"] is trains["0/param_grad/bias"] is True
    assert trains["0/output/0"] is None
    drops = {r["name"]: r["dropout_p"] for r in rows if r["kind"] == "output"}
    assert drops == {
        "0/output/0": None,
        "1/output/0": 0.25,
        "2/output/0": None,
        "3/output/0": 0.5,
        "./output/0": None,
    }


def test_a_parameter_that_is_thawed_says_so(tmp_path):
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path) as watch:
        train(model, optimizer, 2)
        model[0].requires_grad_(True)
        model[2].requires_grad_(False)
        train(model, optimizer, 2)
    with sonde.open(watch.path, frame="arrow") as run:
        trains = {r["name"]: r["requires_grad"] for r in run.sites.to_pylist()}
        assert run.damaged == []
    assert trains["0/param/weight"] is True
    assert trains["2/param/weight"] is False
