"""Numbers are right: what is recorded equals what is computed from retained tensors."""

import copy
import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from witness import Witness, assert_same, sketch_of, tensors

import sonde
from sonde.sketch import Sketch


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Mlp(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.act = nn.ReLU()
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def train(model, optimizer, *, steps=2, x=None, loss=lambda y: y.square().mean(), **kwargs):
    x = torch.randn(5, 8) if x is None else x
    for _ in range(steps):
        loss(model(x, **kwargs)).backward()
        optimizer.step()
        optimizer.zero_grad()


def check(watching, model, make_optimizer=None, *, steps=2, without=(), **kwargs):
    """Train watched and witnessed; every site and every number must agree."""
    make = make_optimizer or (lambda p: torch.optim.Adam(p, lr=0.01))
    optimizer = make(model.parameters())
    witness = Witness(model, optimizer)
    watch, memory = watching(model, optimizer)
    train(model, optimizer, steps=steps, **kwargs)
    watch.close()
    witness.check(memory, without=without)
    witness.remove()
    return memory


def test_all_kinds_of_an_mlp_are_right(watching):
    memory = check(watching, Mlp())
    kinds = {info.site.kind for info in memory.infos.values()}
    assert kinds == {
        *("input", "output", "input_grad", "output_grad"),
        *("param", "param_grad", "update", "optim"),
    }
    assert memory.steps == [(0, "train"), (1, "train")]


def test_sites_say_what_they_are(watching):
    memory = check(watching, Mlp())
    infos = {i.site.name: i for i in memory.infos.values()}
    first = infos["first/output/0"]
    assert (first.dtype, first.shape, first.module_type) == ("float32", (5, 16), "Linear")
    assert infos["./output/0"].module_type == "Mlp"
    assert infos["first/param/weight"].shape == (16, 8)
    assert infos["first/optim/weight/exp_avg"].site.path == "first.weight/exp_avg"


# -- structure ---------------------------------------------------------------------------------


class Residual(nn.Module):
    """In-place activations, in-place residuals, views and a reused module."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(2, 3)

    def forward(self, x):
        h = self.act(self.norm(self.conv(x)))
        residual = self.conv(h)
        residual += h
        h = self.act(residual)
        return self.head(h.mean((2, 3)))


def test_in_place_operations_and_reuse_are_right(watching):
    memory = check(watching, Residual(), x=torch.randn(3, 2, 5, 5))
    assert {"conv/output/0", "conv#1/output/0", "act#1/output_grad/0"} <= set(memory.at(0))


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.id = nn.Identity()

    def forward(self, x):
        h = self.fc(x)
        whole = self.id(h)
        left, right = whole.chunk(2, dim=1)
        self.id(left)
        self.id(right.T)
        self.id(h[:, ::3])
        self.id(left.unsqueeze(0).expand(3, -1, -1))
        h = h.clone()
        h[:, 0] = 0
        return self.id(h)


def test_views_of_one_tensor_are_told_apart(watching):
    memory = check(watching, Views())
    counts = [memory.at(0)[f"id{c}/output/0"].count for c in ("", "#1", "#2", "#3", "#4", "#5")]
    assert counts == [40, 20, 20, 15, 60, 40]


class Written(nn.Module):
    """Returns the tensor it was given, changed in place."""

    def forward(self, x):
        return x.mul_(2)


def test_a_tensor_changed_in_place_is_read_again(watching):
    model = nn.Sequential(nn.Linear(8, 8), Written(), nn.Identity())
    memory = check(watching, model)
    found = memory.at(0)
    assert found["0/output/0"].sum * 2 == pytest.approx(found["1/output/0"].sum)
    assert found["1/output/0"] == found["2/output/0"]


class Shared(nn.Module):
    """The same layer in several places, and tied parameters."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = self.a
        self.c = nn.Linear(8, 8, bias=False)
        self.c.weight = self.a.weight

    def forward(self, x):
        return self.c(self.b(self.a(x)))


def test_a_shared_module_has_one_name_and_several_calls(watching):
    memory = check(watching, Shared())
    names = set(memory.at(0))
    assert {"a/output/0", "a#1/output/0", "c/output/0"} <= names
    assert not any(name.startswith("b") for name in names)
    assert [n for n in names if "/param/" in n and "weight" in n] == ["a/param/weight"]


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclasses.dataclass
class Answer:
    logits: Tensor
    hidden: list


class Nested(nn.Module):
    """Returns whatever its maker says, built from one tensor."""

    def __init__(self, build):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.build = build

    def forward(self, x, *args, **kwargs):
        return self.build(self.fc(x))


class Outer(nn.Module):
    """Uses every tensor that its inner module returns."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return sum(t.float().mean() for _, t in tensors(self.inner(x)))


NESTED = {
    "tuple": (lambda h: (h, None, (h * 2, "text", 3)), {"0", "2.0"}),
    "dict": (lambda h: {"a": h, "b": {"c": [h + 1]}}, {"a", "b.c.0"}),
    "named tuple": (lambda h: Point(h, h * 3), {"x", "y"}),
    "dataclass": (lambda h: Answer(h, [h, h * 2]), {"logits", "hidden.0", "hidden.1"}),
    "structseq": (lambda h: h.max(dim=1), {"0", "1"}),
    "one in a list": (lambda h: [h], {"0"}),
}


@pytest.mark.parametrize("form", NESTED)
def test_tensors_inside_of_nested_outputs_are_found(watching, form):
    build, slots = NESTED[form]
    outer = Outer(Nested(build))
    memory = check(watching, outer, loss=lambda y: y)
    found = {
        i.site.slot
        for i in memory.infos.values()
        if i.site.module == "inner" and i.site.kind == "output"
    }
    assert found == slots


class WithArguments(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.inner = Nested(lambda h: h)

    def forward(self, x, mask=None, *, scale, extras=None):
        y = self.fc(x) * scale
        z = self.inner(x, None, mask, {"k": x}, flag=True, named=scale, nothing=None)
        return (y + z) * (1 if mask is None else mask.unsqueeze(1))


def test_arguments_by_name_and_none_are_right(watching):
    memory = check(
        watching,
        WithArguments(),
        mask=torch.tensor([True, False, True, True, False]),
        scale=torch.tensor(2.0),
        extras=[torch.ones(3, dtype=torch.int64), None],
    )
    found = set(memory.at(0))
    assert {"./input/0", "./input/mask", "./input/scale", "./input/extras.0"} <= found
    assert {"inner/input/0", "inner/input/2", "inner/input/3.k", "inner/input/named"} <= found
    assert memory.at(0)["./input/mask"].sum == 3


class Partly(nn.Module):
    """A frozen part, a part without gradients, an input that wants a gradient."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.silent = nn.Linear(8, 8)
        self.live = nn.Linear(8, 4)

    def forward(self, x):
        h = self.frozen(x)
        with torch.no_grad():
            quiet = self.silent(x)
        return self.live(h + quiet)


def test_frozen_and_silent_parts_are_right(watching):
    memory = check(watching, Partly())
    found = set(memory.at(0))
    assert "frozen/param/weight" in found
    assert "frozen/param_grad/weight" not in found
    assert "frozen/update/weight" not in found
    assert "silent/output_grad/0" not in found
    assert "silent/param_grad/weight" not in found
    assert "silent/update/weight" in found  # the optimizer may change it, and did not
    assert memory.at(0)["silent/update/weight"].zeros == 64


def test_the_gradient_of_an_input_is_right_over_micro_batches(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 8, requires_grad=True)
    watch, memory = watching(model, optimizer)
    grads = []
    for scale in (1.0, 2.0, 3.0):
        before = torch.zeros_like(x) if x.grad is None else x.grad.clone()
        (model(x) * scale).sum().backward()
        grads.append(x.grad - before)
    optimizer.step()
    model(x).sum().backward()
    assert len(x._backward_hooks) == 1
    watch.close()
    assert not x._backward_hooks
    found = memory.at(0)["./input_grad/0"]
    assert found.count == 3 * x.numel()
    assert found.sum == pytest.approx(sum(g.double().sum().item() for g in grads), rel=1e-5)


class Position(nn.Module):
    """Returns its parameter."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self):
        return self.weight


class WithPosition(nn.Module):
    def __init__(self):
        super().__init__()
        self.position = Position()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x + self.position())


def test_a_parameter_that_is_returned_has_one_gradient_per_backward(watching):
    model = WithPosition()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    for _ in range(3):
        model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    watch.close()
    assert memory.at(0)["position/output_grad/0"].count == 3 * 8


def test_different_dtypes_at_one_place_are_told_apart(watching):
    model = nn.Sequential(nn.Identity())
    watch, memory = watching(model)
    for dtype in (torch.float32, torch.float16, torch.float32, torch.int64):
        model(torch.ones(4, dtype=dtype))
    watch.step()
    watch.close()
    by_dtype = {
        memory.infos[i].dtype: int(n)
        for batch in memory.batches
        for i, n in zip(batch.ids.tolist(), batch.sketches.counts[:, 0], strict=True)
        if memory.infos[i].site.name == "0/output/0"
    }
    assert by_dtype == {"float32": 8, "float16": 4, "int64": 4}


def test_unusual_tensors_are_recorded_or_skipped_with_a_reason(watching):
    class Odd(nn.Module):
        def forward(self, x):
            return {
                "complex": torch.complex(x, x),
                "empty": x[:0],
                "scalar": x.sum(),
                "sparse": x.to_sparse(),
                "meta": x.to("meta"),
                "bits": torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
            }

    model = Odd()
    watch, memory = watching(model)
    for _ in range(2):
        model(torch.eye(3))
        watch.step()
    watch.close()
    found = memory.at(1)
    assert found["./output/complex"].max == pytest.approx(2**0.5)
    assert found["./output/empty"].count == 0
    assert found["./output/scalar"].sum == 3
    assert (found["./output/sparse"].count, found["./output/sparse"].zeros) == (9, 6)
    assert "./output/meta" not in found
    assert memory.counted("skipped") == {
        ("./output/meta", "meta tensor: it has no values"): 1,
        ("./output/bits", "dtype bits8"): 1,
    }


def test_more_calls_than_the_limit_are_counted_as_skipped(watching):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x):
            for _ in range(5):
                x = self.fc(x)
            return x

    model = Loop()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, max_calls=3, log=["output", "output_grad"])
    train(model, optimizer, steps=2)
    watch.close()
    assert {n for n in memory.at(0) if n.startswith("fc")} == {
        f"fc{c}/{kind}/0" for c in ("", "#1", "#2") for kind in ("output", "output_grad")
    }
    text = "more than 3 calls in a pass; the first 3 are kept. Raise `max_calls` to keep more"
    assert memory.counted("skipped") == {("fc", text): 4}


def test_more_tensors_than_the_limit_are_counted_as_skipped(watching):
    model = Nested(lambda h: [h * i for i in range(70)])
    watch, memory = watching(model, log="output")
    model(torch.ones(2, 8))
    watch.step()
    watch.close()
    assert len([n for n in memory.at(0) if n.startswith("./")]) == 64
    assert memory.counted("skipped") == {(".", "more than 64 tensors in one call"): 1}


def test_a_forward_overridden_on_an_instance_is_seen(watching):
    model = Mlp()
    model.act.forward = lambda x: x.tanh() * 3
    memory = check(watching, model)
    assert memory.at(0)["act/output/0"].min < 0


def test_a_module_that_calls_itself_is_numbered_by_call(watching):
    class Tree(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)

        def forward(self, x, depth=2):
            x = self.fc(x)
            return self(x, depth - 1) if depth else x

    memory = check(watching, Tree())
    roots = {n for n in memory.at(0) if n.startswith((".", "fc")) and "/output/" in n}
    assert roots == {"./output/0", ".#1/output/0", ".#2/output/0"} | {
        "fc/output/0",
        "fc#1/output/0",
        "fc#2/output/0",
    }


def test_parts_that_are_called_by_themselves_are_recorded(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    h = model.first(torch.ones(3, 8))
    model.last(h.relu()).sum().backward()
    optimizer.step()
    watch.close()
    assert memory.at(0)["first/output/0"].count == 48
    assert memory.at(0)["last/output_grad/0"].count == 12
    assert "./output/0" not in memory.at(0)


def test_looking_at_a_parametrized_weight_is_no_pass(watching):
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    train(model, optimizer, steps=1)
    model[0].weight.sum().item()
    watch.log(after=1.0)
    watch.close()
    assert memory.scalars == {(0, "train"): {"after": 1.0}}
    found = memory.at(0)
    assert found["0.parametrizations.weight/output/0"].count == 64
    assert found["0.parametrizations.weight/param/original0"].count == 8


def test_lazy_modules_are_named_after_what_they_become(watching):
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    watch, memory = watching(model)
    model(torch.ones(2, 8)).sum().backward()
    watch.step()
    watch.close()
    infos = {i.site.name: i for i in memory.infos.values()}
    assert infos["0/output/0"].module_type == "Linear"
    assert memory.at(0)["0/param_grad/weight"].count == 32


# -- accumulation, recomputation, higher orders ------------------------------------------------


def test_micro_batches_of_any_size_are_one_step(watching):
    data = torch.randn(8, 8)

    def run(sizes):
        torch.manual_seed(1)
        model = Mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        watch, memory = watching(model, optimizer, log=["input", "output", "output_grad"])
        for part in data.split(sizes):
            model(part).sum().backward()
        optimizer.step()
        watch.close()
        return memory.at(0)

    whole, parts = run([8]), run([1, 3, 4])
    assert set(whole) == set(parts)
    for name in ("./input/0", "./output_grad/0", "last/output_grad/0"):
        assert_same(parts[name], whole[name], name)
    assert {n: s.count for n, s in parts.items()} == {n: s.count for n, s in whole.items()}


def test_accumulated_passes_are_right_whatever_is_shared(watching):
    model = Residual()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    witness = Witness(model, optimizer)
    watch, memory = watching(model, optimizer)
    for _ in range(2):
        for size in (1, 3, 4):
            model(torch.randn(size, 2, 5, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    witness.check(memory)


def test_two_forwards_before_one_backward_are_right(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    witness = Witness(model, optimizer)
    watch, memory = watching(model, optimizer)
    a, b = model(torch.randn(2, 8)), model(torch.randn(3, 8))
    (a.sum() * b.sum()).backward()
    optimizer.step()
    watch.close()
    witness.check(memory)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.GELU())
        self.reentrant = reentrant

    def forward(self, x):
        x = self.fc(x)
        for _ in range(2):
            if self.reentrant is None:
                x = self.block(x)
            else:
                x = checkpoint(self.block, x, use_reentrant=self.reentrant)
        return self.fc(x)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_counts_once_and_finds_every_gradient(watching, reentrant):
    """The same numbers as without checkpointing, call by call."""

    def run(reentrant):
        torch.manual_seed(1)
        model = Checkpointed(reentrant)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch, memory = watching(model, optimizer)
        train(model, optimizer, x=torch.ones(4, 8))
        watch.close()
        return memory

    plain, found = run(None), run(reentrant)
    for step in (0, 1):
        assert {n for n in plain.at(step) if "input_grad" not in n} <= set(found.at(step))
        for name, sketch in found.at(step).items():
            if "input_grad" in name and name not in plain.at(step):
                continue
            assert_same(sketch, plain.at(step)[name], name)


def test_retained_graphs_count_each_backward(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, log="output_grad")
    loss = model(torch.ones(2, 8)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    watch.close()
    assert memory.at(0)["./output_grad/0"].count == 16
    assert memory.at(0)["./output_grad/0"].sum == 16


def test_double_backward_is_right_and_unchanged(watching):
    def run(watched):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch, memory = watching(model, optimizer) if watched else (None, None)
        x = torch.ones(4, 8, requires_grad=True)
        for _ in range(2):
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            slope.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        if watch:
            watch.close()
        return [p.detach().clone() for p in model.parameters()], memory

    plain, _ = run(False)
    watched, memory = run(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    # One gradient of the output for the slope, and none for the penalty, which does not use it.
    assert memory.at(0)["2/output_grad/0"].sum == 4


def test_a_backward_after_the_step_belongs_to_the_next_one(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, log="output_grad")
    late = model(torch.ones(2, 8)).sum()
    optimizer.step()
    late.backward()
    optimizer.step()
    watch.close()
    assert memory.at(0) == {}
    assert memory.at(1)["./output_grad/0"].sum == 8


# -- parameters and optimizers -----------------------------------------------------------------

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "sgd for-loop": lambda p: torch.optim.SGD(p, lr=0.1, foreach=False),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adamw for-loop amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_and_states_are_right_for_every_optimizer(watching, name):
    memory = check(watching, Mlp(), OPTIMIZERS[name])
    assert memory.at(0)["first/update/weight"].count == 128


def test_sparse_gradients_are_right(watching):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)

        def forward(self, x):
            return self.table(x)

    memory = check(watching, Bag(), lambda p: torch.optim.SGD(p, lr=0.1), x=torch.tensor([1, 1, 7]))
    grad = memory.at(0)["table/param_grad/weight"]
    assert (grad.count, grad.zeros) == (40, 32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_right(watching, dtype):
    check(
        watching,
        Mlp().to(dtype),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        x=torch.randn(5, 8, dtype=dtype),
    )


def test_the_last_of_several_optimizers_ends_the_step(watching):
    model = Mlp()
    first = torch.optim.SGD(model.first.parameters(), lr=0.1)
    last = torch.optim.Adam(model.last.parameters(), lr=0.1)
    witness = Witness(model, first, last)
    watch, memory = watching(model, [first, last])
    for _ in range(2):
        model(torch.randn(3, 8)).square().sum().backward()
        first.step()
        watch.log(middle=1.0)
        last.step()
        model.zero_grad()
    watch.close()
    witness.check(memory)
    assert memory.steps == [(0, "train"), (1, "train")]
    assert set(memory.scalars) == {(0, "train"), (1, "train")}


def test_parameters_without_an_optimizer_are_seen_by_hand(watching):
    model = Mlp()
    before = copy.deepcopy(model)
    watch, memory = watching(model)
    model(torch.ones(2, 8)).sum().backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
    grads = {n: p.grad.clone() for n, p in model.named_parameters()}
    watch.step(loss=3.0)
    model.zero_grad()
    watch.close()
    found = memory.at(0)
    for name, p in before.named_parameters():
        path, _, own = name.rpartition(".")
        assert_same(found[f"{path}/param/{own}"], sketch_of(p))
        assert_same(found[f"{path}/param_grad/{own}"], sketch_of(grads[name]))
        now = model.get_parameter(name)
        assert_same(found[f"{path}/update/{own}"], sketch_of(now.detach() - p.detach()))
    assert memory.scalars == {(0, "train"): {"loss": 3.0}}


def test_closures_record_the_gradients_the_optimizer_saw_last(watching):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    watch, memory = watching(model, optimizer)
    x, before, evaluations = torch.randn(6, 8), [], []

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        evaluations.append(model.weight.grad.clone())
        return loss

    for _ in range(2):
        before.append(model.weight.detach().clone())
        optimizer.step(closure)
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train")]
    found = memory.at(1)
    assert_same(found["./param/weight"], sketch_of(before[1]))
    assert_same(found["./param_grad/weight"], sketch_of(evaluations[-1]))
    change = model.weight.detach() - before[1]
    assert_same(found["./update/weight"], sketch_of(change))
    assert found["./output/0"].count == 6 * (len(evaluations) - len(evaluations) // 2)


def test_clipping_is_seen_from_both_sides(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    model(torch.randn(5, 8)).square().sum().backward()
    raw = model.first.weight.grad.clone()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    clipped = model.first.weight.grad.clone()
    optimizer.step()
    watch.close()
    assert norm > 0.1
    found = memory.at(0)
    assert_same(found["first/param_grad/weight/before_clip"], sketch_of(raw))
    assert_same(found["first/param_grad/weight"], sketch_of(clipped))


def test_a_parameter_added_later_appears_under_its_name(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    train(model, optimizer, steps=1)
    model.scale = nn.Parameter(torch.ones(4))
    optimizer.add_param_group({"params": [model.scale]})
    model.scale.grad = torch.ones(4)
    optimizer.step()
    watch.close()
    assert "./param/scale" not in memory.at(0)
    assert memory.at(1)["./param_grad/scale"].sum == 4


# -- mixed precision ---------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_unscaled(watching, fused):
    def run(scale):
        torch.manual_seed(1)
        model = Mlp()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        watch, memory = watching(model, optimizer)
        for _ in range(2):
            scaler.scale(model(torch.ones(3, 8)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        watch.close()
        return memory

    plain, scaled = run(1), run(1024.0)
    for step in (0, 1):
        for name, sketch in plain.at(step).items():
            if "/output_grad/" in name or "/input_grad/" in name:
                assert scaled.at(step)[name].norm == pytest.approx(1024 * sketch.norm), name
            else:
                assert_same(scaled.at(step)[name], sketch, name)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_update_is_marked_and_its_gradients_are_kept(watching, fused):
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    watch, memory = watching(model, optimizer)
    for bad in (False, True, False):
        loss = model(torch.ones(3, 8)).square().mean() * (torch.inf if bad else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train"), (2, "train")]
    assert [e.step for e in memory.events if e.code == "update_skipped"] == [1]
    assert memory.at(1)["first/param_grad/weight"].finite < 128
    assert memory.at(2)["first/param_grad/weight"].finite == 128
    assert "first/param/weight" in memory.at(1)
    if fused:  # it ran, and changed nothing
        assert memory.at(1)["first/update/weight"].zeros == 128
    else:
        assert "first/update/weight" not in memory.at(1)


def test_a_scaler_that_skips_another_optimizer_ends_no_step(watching):
    model = Mlp()
    first = torch.optim.SGD(model.first.parameters(), lr=0.1)
    last = torch.optim.SGD(model.last.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    watch, memory = watching(model, [first, last])
    scaler.scale(model(torch.ones(3, 8)).sum()).backward()
    model.first.weight.grad[0, 0] = torch.nan
    scaler.step(first)
    scaler.step(last)
    scaler.update()
    watch.close()
    assert memory.steps == [(0, "train")]
    assert memory.at(0)["first/param_grad/weight"].nans == 1
    assert "first/update/weight" not in memory.at(0)
    assert "last/update/weight" in memory.at(0)


def test_autocast_records_what_flows(watching):
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    witness = Witness(model, optimizer)
    watch, memory = watching(model, optimizer)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(5, 8)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    witness.check(memory)
    infos = {i.site.name: i.dtype for i in memory.infos.values()}
    assert infos["first/output/0"] == "bfloat16"
    assert infos["first/param/weight"] == "float32"


# -- attached tensors --------------------------------------------------------------------------


class Attached(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        self.kept = sonde.attach(self.fc(x) * 3, "scores")
        for _ in range(2):
            sonde.attach(x, "twice")
        return F.relu(self.kept)


def test_attached_tensors_have_values_and_gradients(watching):
    model = nn.Sequential(Attached(), Attached())
    model[1].fc = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch, memory = watching(model, optimizer)
    grads = []
    y = model(torch.randn(5, 8))
    model[0].kept.register_hook(grads.append)
    y.sum().backward()
    optimizer.step()
    watch.close()
    found = memory.at(0)
    assert_same(found["0/attach/scores"], sketch_of(model[0].kept))
    assert_same(found["0/attach_grad/scores"], sketch_of(grads[0]))
    assert found["1/attach/scores"].count == 20
    assert found["0/attach/twice"].count == 2 * 40


def test_attach_returns_its_argument_and_does_nothing_unwatched(watching, unheard):
    x = torch.ones(3, requires_grad=True) * 1
    assert sonde.attach(x, "x") is x
    model = Mlp()
    watch, memory = watching(model)
    assert sonde.attach(x, "outside any module") is x
    assert sonde.attach("no tensor", "x") == "no tensor"
    model(torch.ones(1, 8))
    watch.step()
    watch.close()
    assert x._backward_hooks is None
    assert not any("attach" in name for name in memory.at(0))
    assert "no watched module was being called" in unheard.pop()


def test_attached_tensors_follow_the_selection_of_their_module(watching):
    model = nn.Sequential(Attached(), nn.Linear(4, 8), Attached())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch, memory = watching(model, optimizer, include="2*")
    train(model, optimizer, steps=1)
    watch.close()
    names = set(memory.at(0))
    assert {"2/attach/scores", "2/attach_grad/scores", "2.fc/output/0"} <= names
    assert all(n.startswith("2") for n in names)


@pytest.mark.parametrize("reentrant", [True, False])
def test_attached_tensors_inside_of_checkpoints_count_once(watching, reentrant):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attached()
            self.last = nn.Linear(4, 8)

        def forward(self, x):
            for _ in range(2):
                x = self.last(checkpoint(self.inner, x, use_reentrant=reentrant))
            return x

    model = Twice()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch, memory = watching(model, optimizer, log=["attach", "attach_grad", "output_grad"])
    train(model, optimizer, steps=1, x=torch.ones(3, 8, requires_grad=True))
    watch.close()
    found = memory.at(0)
    for call in ("", "#1"):
        assert found[f"inner{call}/attach/scores"].count == 12
        assert found[f"inner{call}/attach_grad/scores"].count == 12
        assert found[f"inner.fc{call}/output_grad/0"].count == 12


def test_nothing_recorded_is_the_empty_sketch(watching, flushing):
    model = Mlp()
    watch, memory = watching(model)
    text = "no call of the model was seen"
    with pytest.warns(sonde.SondeWarning, match=text), flushing(watch):
        watch.step()
    watch.close()
    assert Sketch.merged(memory.at(0).values()).nans == 0


def test_a_gradient_that_stands_for_zeros_is_recorded_as_zeros(watching):
    """It has no memory: to read it with the others would fail, or end the process."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    for i in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        if i == 1:
            model.weight.grad = torch._efficientzerotensor((2, 3))
        optimizer.step()
    watch.close()
    assert memory.counted("failed") == {}
    found = [memory.at(i)["./param_grad/weight"] for i in range(3)]
    assert [s.count for s in found] == [6, 6, 6]
    assert [s.zeros for s in found] == [0, 6, 0]
    assert memory.at(1)["./param_grad/bias"].zeros == 0
