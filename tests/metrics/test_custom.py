"""Metrics of one's own: of every kind, over micro-batches and calls, under promised names."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import sonde


class Twice(nn.Module):
    """A module that is called twice in a pass, and one that returns several tensors."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.split = Split()

    def forward(self, x):
        a, b = self.split(self.fc(self.fc(x)))
        return a + b


class Split(nn.Module):
    def forward(self, x):
        return x * 2, x.argmax(-1, keepdim=True)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def data(n=8, seed=0):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))


def step(model, optimizer, *parts):
    for x in parts:
        model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("log", ["all", "parameters", "gradients"])
def test_every_kind_can_be_asked_whatever_is_sketched(watching, log):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kinds = [
        "input",
        "output",
        "input_grad",
        "output_grad",
        "param",
        "param_grad",
        "update",
        "optim",
    ]
    watch, memory = watching(model, optimizer, log=log)
    for kind in kinds:
        watch.add_metric("size", lambda x: x.abs().max(), kind=kind, where="2")
    step(model, optimizer, data())
    found = watch.metrics()
    assert set(found) == {
        *("activation/2/size", "input/2/size", "output_grad/2/size", "input_grad/2/size"),
        *(
            f"{k}/2.{p}/size"
            for k in ("parameter", "gradient", "update")
            for p in ("weight", "bias")
        ),
        *(f"optim/2.{p}/momentum_buffer/size" for p in ("weight", "bias")),
    }
    sketches = memory_after(watch, memory).at(0)
    if log == "all":
        assert found["activation/2/size"] == sketches["2/output/0"].max_abs
        assert found["input_grad/2/size"] == sketches["2/input_grad/0"].max_abs
        assert found["update/2.weight/size"] == pytest.approx(sketches["2/update/weight"].max_abs)
        assert (
            found["optim/2.bias/momentum_buffer/size"]
            == sketches["2/optim/bias/momentum_buffer"].max_abs
        )
    else:
        assert not any("/output/" in name for name in sketches)


def memory_after(watch, memory):
    watch.flush()
    return memory


def test_numbers_are_in_the_run_by_module_and_name(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("mean", torch.mean)
    watch.add_metric("norm", lambda g: g.norm(), kind="param_grad")
    watch.add_metric("norm", lambda g: g.norm(), kind="output_grad")
    step(model, optimizer, data())
    step(model, optimizer, data())
    watch.close()
    run = sonde.open(watch.path)
    rows = run.metrics("mean", frame="arrow").to_pylist()
    assert {(r["step"], r["module"]) for r in rows} == {
        (s, m) for s in (0, 1) for m in ("", "0", "1", "2")
    }
    names = set(run.metrics(module="2", steps=0, frame="arrow")["name"].to_pylist())
    assert names == {"mean", "output_grad/norm", "param_grad/weight/norm", "param_grad/bias/norm"}


def test_values_are_those_of_the_tensors(watching):
    model = mlp()
    expected = copy.deepcopy(model)
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("mean", torch.mean)
    watch.add_metric("norm", torch.norm, kind="param_grad")
    step(model, optimizer, data())
    y = expected(data())
    y.square().sum().backward()
    found = watch.metrics()
    assert found["activation/[root module]/mean"] == pytest.approx(y.mean().item())
    assert found["gradient/0.weight/norm"] == pytest.approx(expected[0].weight.grad.norm().item())


# -- micro-batches and calls -------------------------------------------------------------------


def exact(x):
    """Tensors whose sums are the same in any order."""
    return (x * 8).round()


class Exact(nn.Module):
    """Small integers all the way, so that pieces cannot differ by rounding."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, -1.0, 3.0, 1.0]))
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(x * self.weight)


@pytest.mark.parametrize("reduce", ["mean", "sum", "min", "max", torch.median])
def test_micro_batches_give_exactly_the_numbers_of_the_whole_batch(watching, reduce):
    """Sizes 1, 3 and 4 against 8: for sketches and for metrics of every element."""
    x = exact(data(8))

    def recorded(*parts):
        model = Exact()
        optimizer = sgd(model)
        watch, memory = watching(model, optimizer)
        for kind in ("output", "output_grad", "input"):
            watch.add_metric("per_token", lambda y: y.sum(-1), kind=kind, reduce=reduce)
            watch.add_metric("each", lambda y: {"a": y, "b": y[:, 0]}, kind=kind, reduce=reduce)
        watch.add_metric("dead_fraction")
        watch.add_metric("channel_max")
        watch.add_metric("norm", torch.norm, kind="param_grad")
        step(model, optimizer, *parts)
        watch.close()
        return watch.metrics(), memory.at(0)

    (whole, sketches), (pieces, others) = recorded(x), recorded(x[:1], x[1:4], x[4:])
    assert len(whole) > 20
    assert pieces == whole
    assert set(sketches) == set(others)
    for name in sketches:
        a, b = sketches[name], others[name]
        assert (a.count, a.sum, a.sum_sq, a.min, a.max) == (
            b.count,
            b.sum,
            b.sum_sq,
            b.min,
            b.max,
        ), name
        np.testing.assert_array_equal(a.bins, b.bins, err_msg=name)


def test_a_number_per_call_is_a_mean_of_calls_and_a_tensor_one_of_elements(watching):
    model = Exact()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("calls", lambda y: float(len(y)))
    watch.add_metric("elements", lambda y: torch.full((len(y),), float(len(y))))
    step(model, optimizer, torch.ones(1, 4), torch.ones(3, 4))
    found = watch.metrics()
    assert found["activation/act/calls"] == 2.0
    assert found["activation/act/elements"] == (1 + 3 * 3) / 4


def test_calls_of_one_module_are_put_together(watching):
    model = Twice()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("n", lambda y: float(y.numel()), reduce="sum")
    step(model, optimizer, torch.ones(3, 4))
    found = watch.metrics()
    assert found["activation/fc/n"] == 24
    assert found["activation/split/n"] == 12  # the indices that it also returns are no values


def test_several_tensors_of_a_call_have_names_of_their_own(watching):
    class Dict(nn.Module):
        def forward(self, x):
            return {"logits": x, "hidden": x * 2}

    class Wrap(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.d = nn.Linear(4, 4), Dict()

        def forward(self, x):
            return self.d(self.fc(x))["logits"]

    model = Wrap()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("rms", lambda y: y.square().mean().sqrt(), where="d")
    step(model, optimizer, data())
    assert set(watch.metrics()) == {"activation/d/logits/rms", "activation/d/hidden/rms"}


# -- several tensors at once -------------------------------------------------------------------


def test_update_and_parameter_of_the_same_step(watching):
    model = mlp()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log="activations")
    for name in ("update_ratio", "update_grad_cosine", "stable_rank", "effective_rank"):
        watch.add_metric(name)
    step(model, optimizer, data())
    found = watch.metrics()
    ratio = (model[0].weight.detach() - before[0]).norm() / before[0].norm()
    assert found["update_ratio/0.weight"] == pytest.approx(ratio.item(), rel=1e-5)
    assert found["update_grad_cosine/0.weight"] == pytest.approx(-1, rel=1e-5)
    assert (
        1
        <= found["parameter/0.weight/stable_rank"]
        <= found["parameter/0.weight/effective_rank"]
        <= 4
    )
    assert "parameter/0.bias/stable_rank" not in found


def test_per_sample_gradient_norms_of_layers(watching):
    model = mlp()
    other = copy.deepcopy(model)
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log="parameters")
    watch.add_metric("per_sample_grad_norm")
    x = data()
    step(model, optimizer, x[:3], x[3:])
    norms = []
    for i in range(len(x)):
        other.zero_grad()
        other(x[i : i + 1]).square().sum().backward()
        norms.append(other[2].weight.grad.norm().item())
    found = watch.metrics()
    assert set(found) == {"per_sample_grad_norm/0", "per_sample_grad_norm/2"}
    assert found["per_sample_grad_norm/2"] == pytest.approx(np.mean(norms), rel=1e-5)


def test_a_joint_metric_belongs_to_its_own_call_in_any_order_of_backward(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    seen = []
    watch.add_metric(
        "pair",
        lambda x, g: seen.append((x.mean().item(), g.shape[0])),
        kind=("input", "output_grad"),
        where="0",
    )
    first, second = model(torch.ones(2, 4)), model(torch.zeros(3, 4))
    first.sum().backward()
    second.sum().backward()
    assert seen == [(1.0, 2), (0.0, 3)]


def test_a_metric_of_a_parameter_and_its_gradient_needs_nothing_else_recorded(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer, log=["output"])
    watch.add_metric("dot", lambda p, g: (p * g).sum(), kind=("param", "param_grad"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model(torch.ones(2, 4)).square().mean().backward()
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    optimizer.step()
    found = {name.removeprefix("dot/"): value for name, value in watch.metrics().items()}
    assert found == pytest.approx(
        {name: (before[name] * grads[name]).sum().item() for name in before}, rel=1e-5
    )


# -- choosing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (".*", {"[root module]", "0", "1", "2"}),
        ("*", {"[root module]", "0", "1", "2"}),
        ("[02]", {"0", "2"}),
        ("re:2$", {"2"}),
        (nn.Linear, {"0", "2"}),
        (lambda path, _module: path == "1", {"1"}),
        (["0", nn.ReLU], {"0", "1"}),
    ],
)
def test_where(watching, where, expected):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("mean", torch.mean, where=where)
    step(model, optimizer, data())
    assert {key.split("/")[1] for key in watch.metrics()} == expected


def test_parameters_go_by_their_module_or_their_full_name(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("a", torch.norm, kind="param", where="0")
    watch.add_metric("b", torch.norm, kind="param", where=r".*\.bias")
    step(model, optimizer, data())
    assert set(watch.metrics()) == {
        *("parameter/0.weight/a", "parameter/0.bias/a"),
        *("parameter/0.bias/b", "parameter/2.bias/b"),
    }


def test_every_chooses_among_recorded_steps(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer, every=2)
    watch.add_metric("a", torch.mean, where="0")
    watch.add_metric("b", torch.mean, where="0", every=4)
    for _ in range(5):
        step(model, optimizer, data())
    watch.close()
    steps = {
        name: sorted(s for (s, _), found in memory.scalars.items() if name in found)
        for name in "ab"
    }
    assert steps == {"a": [0, 2, 4], "b": [0, 4]}


def test_phases_are_kept_apart(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, memory = watching(model, optimizer)
    watch.add_metric("n", lambda x: float(len(x)), reduce="sum", where="0")
    step(model, optimizer, data(8))
    with watch.phase("validation"), torch.no_grad():
        model(data(5))
    step(model, optimizer, data(8))
    watch.close()
    assert memory.scalars[0, "validation"]["n"] == 5
    assert memory.scalars[0, "train"]["n"] == memory.scalars[1, "train"]["n"] == 8


def test_before_and_after_clipping(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("norm", torch.norm, kind="param_grad")
    model(data()).square().sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    found = watch.metrics()
    total = {
        k: math.hypot(*(v for n, v in found.items() if n.startswith(f"{k}/")))
        for k in ("gradient", "gradient_before_clip")
    }
    assert total["gradient"] == pytest.approx(1.0, rel=1e-4)
    assert total["gradient_before_clip"] > 1


def test_by_hand_without_an_optimizer(watching):
    model = mlp()
    watch, _ = watching(model)
    watch.add_metric("norm", torch.norm, kind="param_grad")
    watch.add_metric("update_ratio")
    model(data()).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    watch.step(loss=1.0)
    found = watch.metrics()
    assert found["loss"] == 1.0
    assert "gradient/0.weight/norm" in found
    assert found["update_ratio/0.weight"] > 0


# -- declared, offered, known by name ----------------------------------------------------------


@sonde.metric(kind="output", reduce="max", where=nn.Linear)
def largest(x):
    return x.abs().max()


def test_a_declared_function_needs_nothing_else(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric(largest)
    watch.add_metric("renamed", largest, where="0")
    step(model, optimizer, data())
    assert set(watch.metrics()) == {
        "activation/0/largest",
        "activation/2/largest",
        "activation/0/renamed",
    }


def test_packages_offer_metrics_as_entry_points(watching, tmp_path, monkeypatch):
    (tmp_path / "offering.py").write_text(
        "import sonde\n\n@sonde.metric(kind='param')\ndef offered(x):\n    return x.sum()\n"
    )
    about = tmp_path / "offering-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[sonde.metrics]\noffered = offering:offered\nbroken = offering:no\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("offered")
    with pytest.raises(sonde.SondeError, match="`broken` cannot be loaded"):
        watch.add_metric("broken")
    with pytest.raises(sonde.SondeError, match=r"no metric `nobody`.*offered.*stable_rank"):
        watch.add_metric("nobody")
    step(model, optimizer, data())
    assert "parameter/0.weight/offered" in watch.metrics()


def test_one_name_for_one_thing(watching):
    model = mlp()
    watch, _ = watching(model, sgd(model))
    watch.add_metric("norm", torch.norm)
    watch.add_metric("norm", torch.norm, kind="param")
    with pytest.raises(sonde.SondeError, match="a metric `norm` of output already"):
        watch.add_metric("norm", torch.mean)
    with pytest.raises(sonde.SondeError, match="compares with a reference, and there is none"):
        watch.add_metric("d", torch.dist, against="reference")


def test_metrics_of_a_watch_that_is_off(monkeypatch):
    monkeypatch.setenv("SONDE", "off")
    watch = sonde.watch(mlp())
    watch.add_metric("mean", torch.mean)
    watch.set_reference("init")
    assert watch.metrics() == {}


def test_a_logger_gets_plain_numbers_of_the_last_steps(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("mean", torch.mean, where="0")
    for i in range(3):
        step(model, optimizer, data(seed=i))
        watch.log(loss=torch.tensor(float(i)))
    assert watch.metrics()["loss"] == 2.0
    assert watch.metrics(1)["loss"] == 1.0
    assert all(type(v) is float for v in watch.metrics(1).values())
    assert watch.metrics(1)["activation/0/mean"] != watch.metrics(2)["activation/0/mean"]
    assert watch.metrics(77) == {}


def test_compiled_models_are_asked_too(watching):
    model = mlp()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    watch.add_metric("mean", torch.mean, kind="output")
    watch.add_metric("size", torch.norm, kind="input")
    compiled = torch.compile(model, backend="eager")
    compiled(data()).sum().backward()
    optimizer.step()
    found = watch.metrics()
    assert found["activation/2/mean"] == pytest.approx(mlp()(data()).mean().item())
    assert "input/0/size" in found


def test_a_tensor_that_several_modules_return_is_looked_at_once(watching):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 4))

        def forward(self, x):
            return self.inner(x)

    model = Wrapper()
    optimizer = sgd(model)
    watch, _ = watching(model, optimizer)
    calls = []
    watch.add_metric("sum", lambda x: calls.append(1) or x.sum())
    watch.add_metric("first", lambda x: x[0, 0])
    step(model, optimizer, data(), data(seed=1))
    found = watch.metrics()
    assert len(calls) == 2  # one for each pass, for three modules
    assert len({v for k, v in found.items() if k.endswith("/sum")}) == 1
    assert len([k for k in found if k.endswith("/sum")]) == 3
    assert len([k for k in found if k.endswith("/first")]) == 3
