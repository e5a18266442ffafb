"""Whatever a metric does, training goes on, the run says so once, and the others are as ever."""

import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import sonde
from sonde.metrics.model import Merge


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, steps=3):
    for i in range(steps):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
        model(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def raising(_x):
    raise ValueError("no")


def slow(x):
    time.sleep(0.06)
    return x.mean()


BAD = {
    "raises": (raising, {"failed"}),
    "text": (lambda _x: "text", {"failed"}),
    "a list": (lambda x: [x], {"failed"}),
    "complex": (lambda x: x * 1j, {"failed"}),
    "a dict of texts": (lambda _x: {"a": "b"}, {"failed"}),
    "wrong shapes": (lambda x: x @ torch.ones(77, 1), {"failed"}),
    "exits": (lambda _x: sys.exit(3), {"failed"}),
    "nan": (lambda x: x.mean() * float("nan"), {"metric_nan"}),
    "slow": (slow, {"metric_slow"}),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore::sonde.SondeWarning")
def test_training_goes_on_and_the_run_says_so_once(watching, name):
    plain = mlp()
    train(plain, sgd(plain))
    fn, codes = BAD[name]
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("good", torch.mean)
    watch.add_metric("bad", fn)
    watch.add_metric("also_good", torch.std)
    train(model, optimizer)
    watch.close()
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
    told = [e for e in memory.events if e.code in ("failed", "metric_nan", "metric_slow")]
    assert {e.code for e in told} == codes
    assert len(told) == 1, told
    assert "bad" in told[0].where
    for step in range(3):
        numbers = watch.metrics(step)
        for path in ("[root module]", "0", "1", "2"):
            assert f"activation/{path}/good" in numbers
            assert f"activation/{path}/also_good" in numbers


@pytest.mark.parametrize("name", ["raises", "text", "wrong shapes"])
def test_strict_raises(watching, name):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, strict=True)
    watch.add_metric("bad", BAD[name][0])
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        train(model, optimizer, 1)


@pytest.mark.filterwarnings("ignore::sonde.SondeWarning")
def test_a_metric_that_fails_at_one_place_goes_on_at_the_others(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("first", lambda x: x[:, 7].mean())  # the last layer has two units
    train(model, optimizer, 2)
    watch.close()
    assert set(watch.metrics(1)) == {"activation/0/first", "activation/1/first"}
    assert len([e for e in memory.events if e.code == "failed"]) == 1


@pytest.mark.filterwarnings("ignore::sonde.SondeWarning")
def test_a_metric_that_writes_into_a_tensor_is_asked_no_more(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("writes", lambda g: g.mul_(1.0).mean(), kind="param_grad", where="0")
    train(model, optimizer, 2)
    watch.close()
    (told,) = [e for e in memory.events if e.code == "failed"]
    assert "it wrote into the tensor" in told.message
    assert watch.metrics(0) == watch.metrics(1) == {}


@pytest.mark.parametrize(
    "reduce",
    [lambda _x: 1 / 0, lambda _x: "text", Merge(torch.add, lambda _x: {}["a"])],
)
@pytest.mark.filterwarnings("ignore::sonde.SondeWarning")
def test_a_reduction_that_fails(watching, reduce):
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("bad", lambda x: x.mean(), reduce=reduce, where="0")
    watch.add_metric("good", torch.mean, where="0")
    train(model, optimizer, 3)
    watch.close()
    assert set(watch.metrics()) == {"activation/0/good"}
    assert len([e for e in memory.events if e.code == "failed"]) == 1


def test_random_numbers_gradients_and_autocast_are_as_they_were(watching):
    def noisy(x):
        assert not torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")
        torch.manual_seed(7)
        return (x.float() + torch.rand_like(x, dtype=torch.float32)).mean()

    def result(watched):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = sgd(model)
        if watched:
            watch, memory = watching(model, optimizer)
            for kind in ("output", "output_grad", "param", "param_grad", "update"):
                watch.add_metric("noisy", noisy, kind=kind)
        for i in range(3):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(i))
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if watched:
            watch.close()
            assert memory.counted("failed") == {}
            assert len(watch.metrics(2)) > 10
        return [p.detach() for p in model.parameters()], torch.get_rng_state()

    (plain, numbers), (watched, others) = result(False), result(True)
    assert torch.equal(numbers, others)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_nothing_is_kept_of_what_a_metric_was_given(watching):
    import gc
    import weakref

    held = []
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("view", lambda x: x[0, 0])
    watch.add_metric("whole", lambda x: x)
    model[0].register_forward_hook(lambda _m, _a, out: held.append(weakref.ref(out)))
    train(model, optimizer, 1)
    gc.collect()
    assert held[0]() is None


def test_a_metric_is_asked_from_any_thread(watching):
    model = mlp()
    watch, _ = watching(model)
    watch.add_metric("n", lambda x: float(len(x)), reduce="sum", where="0")
    threads = [
        threading.Thread(target=lambda: model(torch.ones(3, 4)).sum().backward()) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    watch.step()
    assert watch.metrics()["activation/0/n"] == 12


def test_no_metric_costs_one_test_of_an_attribute(watching):
    model = mlp()
    watch, _ = watching(model, sgd(model))
    capture = watch._session.capture
    assert capture.observer is None
    assert capture.collector.observer is None
    train(model, sgd(model), 1)


def test_closing_takes_everything_off(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, reference="init")
    watch.add_metric("per_sample_grad_norm")
    watch.add_metric("gradient_pipeline")
    watch.add_metric("attention")
    train(model, optimizer, 1)
    model(torch.ones(2, 4)).sum().backward()  # in the middle of a step
    watch.close()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert all(not p._backward_hooks for p in model.parameters())
    assert not sonde.is_watching()


def test_a_metric_that_fails_where_warnings_are_errors_stops_nothing(watching, unheard):
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("bad", raising)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, optimizer, 2)
        watch.close()
    assert len([e for e in memory.events if e.code == "failed"]) == 1
    assert "bad" in unheard.pop()


def test_a_warning_never_runs_code_of_the_users_inside_a_hook(watching, monkeypatch, unheard):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("bad", raising)
    shown = []

    def show(message, *_args, **_more):
        shown.append((threading.current_thread().name, str(message)))
        raise RuntimeError("a function of the user's that shows warnings fails")

    monkeypatch.setattr(warnings, "showwarning", show)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        train(model, optimizer, 2)
        watch.close()
    assert [thread for thread, _ in shown] == ["sonde-drain"]
    assert unheard.pop() == shown[0][1]


def test_an_interrupt_inside_a_metric_reaches_the_user(watching):
    def interrupted(_x):
        raise KeyboardInterrupt

    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("bad", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, 1)
