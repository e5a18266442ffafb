"""A value is kept when it changed, and what is kept is what it was."""

import copy
import math
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import sonde
from sonde.kernels import c as kernel
from sonde.tracing.torch.tensor_ops import TorchTensorOps
from sonde.tracing.values import ObjectCopy, OutOfRoomError, RefusedError, snapshot


class Holder(nn.Module):
    """A variable `v`, and what is done to it, one line each."""

    def __init__(self, value=None):
        super().__init__()
        self.value = value
        self.ops = []

    def forward(self, x):
        v = self.value
        for op in self.ops:
            v = op(v)
        self.value = v
        return x


def values_of(model, path, steps, between=lambda step: None, **options):
    with sonde.trace(model, [path], **options) as trace:
        for step in range(steps):
            model(torch.zeros(1))
            between(step)
    return trace.results[path]


# -- the promises of the issue ------------------------------------------------------------------


class Wide(nn.Sequential):
    def forward(self, x):
        return super().forward(x.expand(3))


def test_an_unchanged_weight_is_kept_once_in_100_steps():
    model = Wide(nn.Linear(3, 3))
    result = values_of(model, "0.forward.self.weight", 100)
    assert result.iterations == [0]
    assert torch.equal(result.values[0], model[0].weight)


def test_a_weight_changed_in_place_is_kept_each_time_it_changed():
    model = Wide(nn.Linear(3, 3))
    seen = []

    def between(step):
        if step % 3 != 2:
            with torch.no_grad():
                model[0].weight.add_(1.0)
        seen.append(model[0].weight.detach().clone())

    first = model[0].weight.detach().clone()
    result = values_of(model, "0.forward.self.weight", 9, between)
    assert result.iterations == [0, 1, 2, 4, 5, 7, 8]
    assert torch.equal(result.values[0], first)
    for iteration, value in zip(result.iterations[1:], result.values[1:], strict=True):
        assert torch.equal(value, seen[iteration - 1])


def test_a_write_that_torch_does_not_count_is_noticed_at_the_next_call():
    model = Wide(nn.Linear(3, 3))

    def between(step):
        model[0].weight.data.add_(1.0)

    assert values_of(model, "0.forward.self.weight", 4, between).iterations == [0, 1, 2, 3]


def test_buffers_that_change_inside_of_the_call_are_kept_in_it():
    model = nn.Sequential(nn.BatchNorm1d(3))
    means = []
    with sonde.trace(model, ["0.forward.self.running_mean"]) as trace:
        for step in range(3):
            model(torch.full((4, 3), float(step)))
            means.append(model[0].running_mean.clone())
    result = trace.results["0.forward.self.running_mean"]
    # A step of zeros changes nothing: the mean begins at zero.
    assert result.iterations == [0, 1, 2]
    assert torch.equal(torch.stack(result.values), torch.stack(means))


def test_a_list_and_a_dict_changed_in_place_are_noticed():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.history = []
            self.nested = {"deep": [{"n": 0}]}

        def forward(self, x):
            self.history.append(len(self.history))
            self.nested["deep"][0]["n"] = len(self.history) // 2
            return x

    model = Model()
    with sonde.trace(model, ["forward.self.history", "forward.self.nested"]) as trace:
        for _ in range(4):
            model(torch.zeros(1))
    history, nested = (trace.results[f"forward.self.{n}"] for n in ("history", "nested"))
    assert history.values == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert history.iterations == [0, 0, 1, 2, 3]
    assert [v["deep"][0]["n"] for v in nested.values] == [0, 1, 2]


def test_always_keeps_a_value_in_every_call():
    model = Wide(nn.Linear(3, 3))
    result = values_of(model, "0.forward.self.weight", 4, always=True)
    assert result.iterations == [0, 1, 2, 3]


def test_what_is_kept_does_not_change_with_the_variable():
    model = Holder(torch.zeros(2))
    model.ops = [lambda v: v.add_(1)]
    result = values_of(model, "forward.v", 3)
    assert [v.tolist() for v in result.values] == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_none_is_a_value():
    model = Holder(1)
    model.ops = [lambda v: None, lambda v: None, lambda v: 1]
    assert values_of(model, "forward.v", 2).values == [1, None, 1, None, 1]


def test_nan_is_the_same_as_nan_but_not_the_same_as_another_type():
    model = Holder(1)
    sequence = [1, True, 1.0, math.nan, float("nan"), "1", b"1", 1 + 0j, complex("nan"), None, 0.0]
    model.ops = [lambda v, w=w: w for w in sequence]
    kept = values_of(model, "forward.v", 1).values
    kinds = [int, bool, float, float, str, bytes, complex, complex, type(None), float]
    assert [type(v) for v in kept] == kinds


# -- brute force --------------------------------------------------------------------------------

floats = st.floats(width=32, allow_nan=True) | st.integers(-2, 2).map(float)
tensors = st.lists(floats, max_size=3).map(torch.tensor)
plain = st.none() | st.booleans() | st.integers(-2, 2) | floats | st.text("ab", max_size=2)
leaves = plain | tensors | tensors.map(lambda t: t.numpy())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["a", "b", 1]), inner, max_size=2)
        | st.tuples(inner, inner)
    ),
    max_leaves=4,
)


def mutate(value):
    """Change a value in place where it can be."""
    if isinstance(value, torch.Tensor | np.ndarray):
        value += 1
    elif isinstance(value, list):
        value.append(0)
    elif isinstance(value, dict):
        value["a"] = value.get("a", 0) if isinstance(value.get("a", 0), int) else 5
        value["z"] = len(value)
    return value


def touch(value):
    """Write the same again: another version, the same content."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        value.mul_(1)
    return value


operations = st.one_of(
    values.map(lambda new: lambda v: copy.deepcopy(new)),
    st.just(mutate),
    st.just(touch),
    st.just(copy.deepcopy),
    st.just(lambda v: v),
)


def identical(a, b):
    """Equal to the bit, in every part, and of the same types: by another route than the code."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype, a.shape) == (
            b.dtype,
            b.shape,
        ) and a.contiguous().numpy().tobytes() == b.contiguous().numpy().tobytes()
    if isinstance(a, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[k], b[k]) for k in a)
    return a == b or (a != a and b != b)


@settings(max_examples=150)
@given(values, st.lists(st.lists(operations, max_size=4), min_size=1, max_size=3))
def test_the_values_kept_are_those_of_brute_force(first, calls):
    model = Holder(copy.deepcopy(first))
    states = []
    expected_model = Holder(copy.deepcopy(first))
    for ops in calls:
        v = expected_model.value
        states.append(copy.deepcopy(v))
        for op in ops:
            v = op(v)
            states.append(copy.deepcopy(v))
        expected_model.value = v
    expected = [s for n, s in enumerate(states) if n == 0 or not identical(s, states[n - 1])]

    with sonde.trace(model, ["forward.v"]) as trace:
        for ops in calls:
            model.ops = ops
            model(torch.zeros(1))
    kept = trace.results["forward.v"].values
    assert len(kept) == len(expected)
    assert all(identical(a, b) for a, b in zip(kept, expected, strict=True))


@settings(max_examples=150)
@given(values)
def test_a_snapshot_equals_its_value_and_is_another_object(value):
    nature = TorchTensorOps()
    taken = snapshot(value, nature, 1 << 20)
    assert identical(taken.value, value)
    for quick in (False, True):
        assert not taken.differs(value, nature, [], quick)
        assert not taken.differs(copy.deepcopy(value), nature, [], quick)
    if isinstance(value, torch.Tensor) and value.numel():
        assert taken.value.data_ptr() != value.data_ptr()


# -- all kinds of values ------------------------------------------------------------------------

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int8, torch.int64, torch.uint8, torch.uint16, torch.bool, torch.complex64),
    torch.complex128,
]


VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "every second": lambda x: x[:, ::2],
    "a row seen often": lambda x: x[:1].expand(4, 6),
    "needing a gradient": lambda x: x.clone().requires_grad_(),
}


@pytest.mark.parametrize("has_c", [False, True], ids=["torch", "c"])
@pytest.mark.parametrize("view", VIEWS)
@given(
    bits=st.lists(st.sampled_from((0, 1, -(2**31), 0x7FC00000, 0x7FC00001)), min_size=24),
    place=st.integers(0, 23),
    other=st.sampled_from((0, 1, -(2**31), 0x7FC00000, 0x7FC00001)),
)
def test_one_changed_bit_is_a_change_and_none_is_none(has_c, view, bits, place, other):
    nature = TorchTensorOps()
    x = torch.tensor(bits[:24], dtype=torch.int32)
    y = x.clone()
    y[place] = other
    a, b = (VIEWS[view](each.view(torch.float32).reshape(4, 6)) for each in (x, y))
    is_same = a.detach().contiguous().numpy().tobytes() == b.detach().contiguous().numpy().tobytes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sonde.tracing.torch.tensor_ops._HAS_C", has_c and kernel.available())
        taken = snapshot(a, nature, 1 << 20)
        assert taken.differs(b, nature, [], False) is not is_same
        assert not taken.differs(a, nature, [], False)


def test_a_tensor_that_stands_for_zeros_and_has_no_memory_equals_them():
    nature = TorchTensorOps()
    nothing = torch._efficientzerotensor((3,))
    assert nothing.data_ptr() == 0
    assert not snapshot(torch.zeros(3), nature, 1 << 20).differs(nothing, nature, [], False)
    assert snapshot(torch.ones(3), nature, 1 << 20).differs(nothing, nature, [], False)
    assert not snapshot(nothing, nature, 1 << 20).differs(torch.zeros(3), nature, [], False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_tensors_of_every_dtype_are_compared_by_bits(dtype, shape):
    nature = TorchTensorOps()
    x = torch.ones(shape).to(dtype)
    taken = snapshot(x, nature, 1 << 20)
    assert taken.value.dtype is dtype
    assert not taken.differs(x.clone(), nature, [], False)
    if x.numel():
        y = torch.zeros(shape).to(dtype)
        assert taken.differs(y, nature, [], False)
    assert taken.differs(x.reshape(1, *shape), nature, [], False)


def test_odd_tensors_are_kept():
    nature = TorchTensorOps()
    base = torch.arange(6.0).reshape(2, 3)
    odd = {
        "transposed": base.t(),
        "expanded": base[:1].expand(4, 3),
        "conj": torch.complex(base, base).conj(),
        "neg": torch.complex(base, base).conj().imag,
        "requires_grad": base.clone().requires_grad_(),
        "parameter": nn.Parameter(base.clone()),
        "sparse": base.to_sparse(),
    }
    for name, x in odd.items():
        taken = snapshot(x, nature, 1 << 20)
        assert not taken.value.requires_grad, name
        assert torch.equal(taken.value.to_dense() if x.is_sparse else taken.value, x.to_dense()), (
            name
        )
    with torch.inference_mode():
        taken = snapshot(base * 2, nature, 1 << 20)
    taken.value.add_(1)  # not an inference tensor
    with pytest.raises(RefusedError, match="meta"):
        snapshot(torch.empty(2, device="meta"), nature, 1 << 20)


def test_objects_are_kept_as_what_is_in_them():
    Point = namedtuple("Point", "x y")

    @dataclass
    class Config:
        width: int
        inner: list

    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self):
            self.a = 1

        def __eq__(self, other):
            raise AssertionError("nothing of the user's is called")

        __hash__ = None

    class Name(str):
        __slots__ = ()

        def __str__(self):
            raise AssertionError("nothing of the user's is called")

    nature = TorchTensorOps()

    def kept(value):
        taken = snapshot(value, nature, 1 << 20)
        assert not taken.differs(value, nature, [], False)
        return taken.value

    assert kept(Point(1, [2])) == Point(1, [2])
    config = kept(Config(3, [torch.ones(1)]))
    assert isinstance(config, ObjectCopy)
    assert config.width == 3
    assert config.type_name.endswith("Config")
    assert kept(Slotted()).fields == {"a": 1}
    assert type(kept(Name("abc"))) is str
    assert kept(OrderedDict(a=1)) == {"a": 1}
    assert kept({1, 2}) == {1, 2}
    assert kept(torch.Size([2, 3])) == (2, 3)
    assert kept(torch.float32) is torch.float32
    assert "Linear" in kept(nn.Linear(2, 2)).type_name
    assert kept(len).text == "len"
    loop = []
    loop.append(loop)
    kept(loop)
    with pytest.raises(RefusedError, match="10000 items"):
        kept(list(range(20_000)))
    taken = snapshot(Config(3, []), nature, 1 << 20)
    assert taken.differs(Config(4, []), nature, [], False)


def test_a_value_beyond_the_budget_is_refused_with_its_size_and_a_remedy():
    model = nn.Sequential(nn.Identity())
    trace = sonde.trace(model, ["0"], budget_bytes=1 << 20)
    with pytest.warns(sonde.SondeWarning, match=r"4\.0 MiB.*budget_bytes.*every=.*into=") as said:
        model(torch.zeros(1 << 20))
    model(torch.ones(1 << 20))
    model(torch.ones(10))
    trace.close()
    assert len(said) == 1
    assert trace.refused == {"0": 2}
    assert trace.results["0"].iterations == [2]
    with pytest.raises(OutOfRoomError):
        snapshot([torch.zeros(100), torch.zeros(100)], TorchTensorOps(), 600)


def test_memory_is_given_back_when_values_are_reduced_and_refused_when_they_pile_up():
    model = nn.Sequential(nn.Identity())

    def rows(step):
        return torch.full((1 << 16,), float(step))

    with sonde.trace(
        model, ["0"], budget_bytes=2 << 20, before_save=[lambda n, v, i: v.mean()]
    ) as trace:
        for step in range(50):
            model(rows(step))
    assert [v.item() for v in trace.results["0"].values] == list(range(50))
    trace = sonde.trace(model, ["0"], budget_bytes=2 << 20)

    def fill():
        for step in range(50):
            model(rows(step))

    with pytest.warns(sonde.SondeWarning, match="is not kept"):
        fill()
    trace.close()
    assert 2 <= len(trace.results["0"]) <= 8
