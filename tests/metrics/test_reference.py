"""The reference: run by its owner or by Sonde, compared call by call, freed, never mixed in."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import sonde


def mlp(inplace=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=inplace), nn.Linear(8, 2))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def data(n=8, seed=0):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def distance(a, b):
    return (a - b).norm(dim=-1)


def trained(model, optimizer, x):
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def expected_distances(model, reference, x):
    found = {}
    a = b = x
    with torch.no_grad():
        for i, (m, r) in enumerate(zip(model, reference, strict=True)):
            a, b = m(a), r(b)
            found[f"activation_difference/{i}/l2"] = distance(a, b).mean().item()
    found["activation_difference/[root module]/l2"] = found[f"activation_difference/{i}/l2"]
    return found


@pytest.mark.parametrize("form", ["paused", "no_grad", "sonde", "bare"])
@pytest.mark.parametrize("inplace", [False, True])
def test_differences_however_the_reference_is_run(watching, form, inplace):
    """`paused()` is the form of the README of torch-module-monitor, in which it fails there."""
    model = mlp(inplace)
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    reference = copy.deepcopy(model)  # after the watch began: a copy is not watched
    watch.set_reference(reference, run=form == "sonde")
    watch.add_metric("l2", distance, against="reference")
    watch.add_metric("l2", lambda p, q: (p - q).norm(), kind="param", against="reference")
    for i in range(3):
        x = data(seed=i)
        now = copy.deepcopy(model)
        if form == "paused":
            with watch.paused():
                reference(x)
        elif form == "no_grad":
            with torch.no_grad():
                reference(x)
        elif form == "bare":
            reference(x)
        trained(model, optimizer, x)
        found = watch.metrics()
        for key, value in expected_distances(now, reference, x).items():
            if not (inplace and "/0/" in key):  # what ReLU overwrote
                assert found[key] == pytest.approx(value, abs=1e-6), (i, key)
        change = (now[0].weight - reference[0].weight).norm().item()
        assert found["parameter_difference/0.weight/l2"] == pytest.approx(change, abs=1e-6)


def test_what_an_inplace_module_overwrites_is_compared_as_it_was(watching):
    model = mlp(inplace=True)
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, reference="init")
    watch.add_metric("mine", lambda a, b: a.min(), against="reference", where="0")
    watch.add_metric("its", lambda a, b: b.min(), against="reference", where="0")
    trained(model, optimizer, data())
    found = watch.metrics()
    assert found["activation_difference/0/mine"] == found["activation_difference/0/its"] < 0


def test_a_write_that_could_not_be_foreseen_is_told_and_copied_from_then_on(watching):
    class Sneaky(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x)
            y += 1
            return y

    model = Sneaky()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, reference="init")
    watch.add_metric("l2", distance, against="reference", where="fc")
    for _ in range(2):
        trained(model, optimizer, data())
    watch.close()
    assert "activation_difference/fc/l2" not in watch.metrics(0)
    assert watch.metrics(1)["activation_difference/fc/l2"] > 0
    assert memory.counted("skipped") == {
        ("fc/0", "the reference wrote into this tensor after it was made"): 1
    }


def test_the_models_own_numbers_are_its_own(watching):
    """A deep copy made after the watch began is not watched, also while it is the reference."""

    def record(with_reference):
        model = mlp()
        optimizer = sgd(model)
        watch, memory = watching(model, optimizer)
        watch.add_metric("mean", torch.mean)
        if with_reference:
            reference = copy.deepcopy(model)
            with torch.no_grad():
                for p in reference.parameters():
                    p.add_(100)
            watch.set_reference(reference, run=False)
            watch.add_metric("l2", distance, against="reference")
        for i in range(2):
            if with_reference:
                reference(data(seed=i))
            trained(model, optimizer, data(seed=i))
        watch.close()
        own = {k: v for k, v in watch.metrics().items() if "difference" not in k}
        return own, {n: (s.count, s.sum, s.max) for n, s in memory.at(1).items()}

    assert record(with_reference=True) == record(with_reference=False)


class Shared(nn.Module):
    """A module that is called twice, with different values."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x) + 1)


@pytest.mark.parametrize("runs", [True, False])
def test_calls_are_compared_with_the_same_calls(watching, runs):
    torch.manual_seed(0)
    model = Shared()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    reference = copy.deepcopy(model)
    watch.set_reference(reference, run=runs)
    watch.add_metric("l2", distance, against="reference", where="fc")
    for i in range(2):
        now = copy.deepcopy(model)
        if not runs:
            reference(data(seed=i))
        trained(model, optimizer, data(seed=i))
    x = data(seed=1)
    with torch.no_grad():
        calls = [(m.fc(x), m.fc(m.fc(x) + 1)) for m in (now, reference)]
    expected = torch.cat([distance(a, b) for a, b in zip(*calls, strict=True)]).mean().item()
    assert watch.metrics()["activation_difference/fc/l2"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("order", ["alternating", "first all references"])
def test_micro_batches(watching, order):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    reference = copy.deepcopy(model)
    trained(model, optimizer, data(seed=9))
    watch.set_reference(reference)
    watch.add_metric("l2", distance, against="reference", where="2")
    now = copy.deepcopy(model)
    parts = [data(1, 1), data(3, 2), data(4, 3)]
    if order != "alternating":
        for x in parts:
            with watch.paused():
                reference(x)
    for x in parts:
        if order == "alternating":
            with watch.paused():
                reference(x)
        model(x).square().sum().backward()
    optimizer.step()
    whole = expected_distances(now, reference, torch.cat(parts))
    assert watch.metrics()["activation_difference/2/l2"] == pytest.approx(
        whole["activation_difference/2/l2"], rel=1e-5
    )


def test_a_reference_on_the_cpu(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.set_reference("init", device="cpu")
    watch.add_metric("l2", distance, against="reference")
    trained(model, optimizer, data())
    trained(model, optimizer, data())
    assert watch.metrics(0)["activation_difference/2/l2"] == 0
    assert watch.metrics(1)["activation_difference/2/l2"] > 0


class Watchful(nn.Module):
    """Counts the bytes of big intermediates that are alive when it is called."""

    alive = weakref.WeakSet()
    peak = 0

    def forward(self, x):
        y = x * 2
        Watchful.alive.add(y)
        held = {z.untyped_storage().data_ptr() for z in Watchful.alive}
        Watchful.peak = max(Watchful.peak, len(held))
        return y


def test_no_more_is_held_than_the_reference_made_and_only_until_it_is_used(watching):
    """Ten big intermediates: a pass of the reference may hold its own ten, and as the model goes
    along they are freed one by one."""
    model = nn.Sequential(*[Watchful() for _ in range(10)], nn.Linear(4, 2))
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log="parameters", reference="init")
    watch.add_metric("l2", distance, against="reference")
    counts = []
    model[9].register_forward_hook(lambda *_: counts.append(len(Watchful.alive)))
    Watchful.peak = 0
    gc.collect()
    for _ in range(2):
        with torch.no_grad():
            model(data())
        model(data()).sum().backward()
        optimizer.step()
        assert len(Watchful.alive) == 0
    # Nothing of the model's own is saved for backward, so ten of the reference and the two that
    # the model is at are all there can be.
    assert Watchful.peak <= 12
    # When the model is at its last one, those of the reference before it have been freed.
    assert max(counts) <= 3


def test_what_nobody_compares_is_not_held(watching):
    model = nn.Sequential(*[Watchful() for _ in range(10)], nn.Linear(4, 2))
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log="parameters", reference="init")
    watch.add_metric("l2", distance, against="reference", where="10")
    Watchful.peak = 0
    model(data()).sum().backward()
    optimizer.step()
    assert Watchful.peak <= 2


def test_nothing_is_held_where_nothing_is_recorded(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, every=lambda step: step == 1)
    reference = copy.deepcopy(model)
    watch.set_reference(reference, run=False)
    watch.add_metric("l2", distance, against="reference")
    kept = weakref.ref(reference(data()))
    assert kept() is None
    trained(model, optimizer, data())
    reference(data())
    trained(model, optimizer, data())
    assert watch.metrics(0) == {}
    assert len(watch.metrics(1)) == 4


def test_dropout_draws_the_same_for_both_and_training_does_not_notice(watching):
    def losses(watched):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
        optimizer = sgd(model)
        if watched:
            watch, _ = watching(model, optimizer, reference="init")
            watch.add_metric("l2", distance, against="reference")
        found = []
        for i in range(3):
            loss = model(data(seed=i)).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
            if watched and i == 0:
                assert watch.metrics()["activation_difference/1/l2"] == 0
        return found, torch.get_rng_state().tolist()

    assert losses(watched=True) == losses(watched=False)


def test_batch_norm_of_the_reference_is_as_it_was(watching):
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    optimizer = sgd(model)
    reference = copy.deepcopy(model)
    before = copy.deepcopy(reference.state_dict())
    watch, _ = watching(model, optimizer, reference=reference)
    watch.add_metric("l2", distance, against="reference")
    watch.add_metric("rcc")
    for _ in range(3):
        trained(model, optimizer, data())
    assert model[1].num_batches_tracked == 3
    for name, value in reference.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_reference_of_the_users_stays_in_its_mode_and_a_copy_follows_the_model(watching):
    model = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5))
    teacher = copy.deepcopy(model).eval()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, reference=teacher)
    watch.add_metric("zeros", lambda _a, b: (b == 0).float(), against="reference", where="1")
    trained(model, optimizer, data())
    assert not teacher.training
    assert watch.metrics()["activation_difference/1/zeros"] == 0
    watch.set_reference("init")
    trained(model, optimizer, data())
    assert watch.metrics()["activation_difference/1/zeros"] > 0.3


def test_a_copy_of_the_reference_keeps_nothing(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    reference = copy.deepcopy(model)
    watch.set_reference(reference, run=False)
    watch.add_metric("l2", distance, against="reference")
    copy.deepcopy(reference)(data())
    trained(model, optimizer, data())
    assert watch.metrics() == {}


def test_closing_leaves_nothing_on_the_reference(watching):
    model = mlp()
    reference = copy.deepcopy(model)
    watch, _ = watching(model, sgd(model), reference=reference)
    watch.close()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in reference.modules())


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        (nn.Linear(4, 2), "same modules as the watched model, but it lacks `0`"),
        ("start", "must be a model or 'init', got 'start'"),
        (3, "must be a torch.nn.Module, got int"),
    ],
)
def test_what_cannot_be_a_reference(watching, reference, says):
    with pytest.raises(sonde.SondeError, match=says):
        watching(mlp(), reference=reference)
    model = mlp()
    watch, _ = watching(model)
    with pytest.raises(sonde.SondeError, match="cannot be its own reference"):
        watch.set_reference(model)


def test_a_call_with_a_cache_is_not_made_twice(watching):
    class Cache:
        def __init__(self):
            self.calls = 0

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x, cache):
            cache.calls += 1
            return self.fc(x)

    model = Cached()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, reference="init")
    watch.add_metric("l2", distance, against="reference")
    cache = Cache()
    model(data(), cache).sum().backward()
    optimizer.step()
    watch.close()
    assert cache.calls == 1
    assert list(memory.counted("skipped")) == [
        ("reference", "a call with a Cache cannot be made twice")
    ]
