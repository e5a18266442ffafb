"""Questions to many objects at once: C and Python give the same answers, and notice the same."""

import importlib.util
import sys
from unittest import mock
from weakref import ref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sonde.capture import native
from sonde.capture.torch.names import ModelStructure

DICTS, NAME = ("_modules", "_parameters"), "_compiled_call_impl"


def _in_python():
    """The module as an install without a compiler has it."""
    spec = importlib.util.find_spec("sonde.capture.native")
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {"sonde.capture._native": None}):
        spec.loader.exec_module(module)
    return module


BOTH = pytest.mark.parametrize("lists", [native, _in_python()], ids=["c", "python"])


def test_the_two_are_not_the_same():
    assert native.AVAILABLE
    assert not _in_python().AVAILABLE


def _model():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 1, bias=False)))


def test_both_tell_the_same_identities():
    model = _model()
    references = [ref(m) for m in model.modules()]
    found = native.holdings(references, DICTS, NAME)
    assert found == _in_python().holdings(references, DICTS, NAME)
    held = torch.frombuffer(bytearray(found), dtype=torch.int64).tolist()
    inner = model[1]
    # Of each module: its children, its parameters (a missing bias among them), and no code.
    assert held == [
        *(id(model[0]), id(inner), 0),
        *(id(model[0].weight), id(model[0].bias), 0),
        *(id(inner[0]), id(inner[1]), 0),
        0,
        *(id(inner[1].weight), id(None), 0),
    ]


@BOTH
def test_the_dead_hold_nothing(lists):
    model, other = _model(), nn.Linear(1, 1)
    references = [ref(other), *(ref(m) for m in model.modules())]
    del other
    assert lists.referents(references)[0] is None
    assert lists.referents(references)[1] is model
    assert lists.holdings(references, DICTS, NAME) == lists.holdings(references[1:], DICTS, NAME)


def test_what_is_no_dict_is_left_to_python():
    class Odd:
        def __init__(self):
            self._modules, self._parameters = (), {}

    odd = Odd()
    assert native.holdings([ref(odd)], DICTS, NAME) is None


def _replace(m):
    m[1][1] = nn.Linear(3, 1)


def _drop(m):
    del m[1][0]


def _renew(m):
    m[0].weight = nn.Parameter(m[0].weight.detach())


def _leave_out(m):
    m[0].register_parameter("bias", None)


@pytest.mark.parametrize("change", [_replace, _drop, _renew, _leave_out, lambda m: m[1].compile()])
def test_a_structure_notices_every_change(change):
    model = _model()
    structure = ModelStructure(model)
    structure.refresh()
    before = structure.version
    structure.refresh()
    assert structure.version == before
    change(model)
    structure.refresh()
    assert structure.version == before + 1


@BOTH
@given(data=st.data())
def test_signs_change_with_who_it_is_and_with_the_attribute(lists, data):
    tensors = [torch.zeros(1, requires_grad=r) for r in data.draw(st.lists(st.booleans()))]
    found = lists.signs(tensors, "requires_grad")
    expected = [n for x in tensors for n in (id(x), int(x.requires_grad))]
    assert found == torch.tensor(expected, dtype=torch.int64).numpy().tobytes()


@BOTH
def test_signs_of_what_has_no_such_attribute_are_an_error(lists):
    with pytest.raises(AttributeError):
        lists.signs([object()], "requires_grad")


def _trained():
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return optimizer, list(model.parameters())


MADE = (3, ["exp_avg", "exp_avg_sq"])


@BOTH
def test_state_that_is_made_as_it_was_is_picked_in_order(lists):
    optimizer, parameters = _trained()
    found = lists.pick(optimizer.state, parameters, [MADE] * 3, Tensor)
    expected = [optimizer.state[p][k] for p in parameters for k in MADE[1]]
    assert all(a is b for a, b in zip(found, expected, strict=True))


@BOTH
@pytest.mark.parametrize(
    "change",
    [
        lambda state, p: state[p[0]].update(more=torch.ones(1)),
        lambda state, p: state[p[1]].pop("step"),
        lambda state, p: state[p[2]].update(exp_avg=3.0),
        lambda state, p: state.pop(p[1]),
        lambda state, p: state.update({p[0]: state.pop(p[0])}),  # now the last one
        lambda state, p: state.update({torch.ones(1): {}}),
    ],
)
def test_state_that_is_made_otherwise_is_not_picked(lists, change):
    optimizer, parameters = _trained()
    change(optimizer.state, parameters)
    assert lists.pick(optimizer.state, parameters, [MADE] * 3, Tensor) is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda: native.holdings((), DICTS, NAME),
        lambda: native.referents(()),
        lambda: native.signs((), "a"),
        lambda: native.pick([], [], [], Tensor),
    ],
)
def test_nonsense_is_refused(ask):
    with pytest.raises(TypeError, match="takes a"):
        ask()
