"""What is compared at every recorded step, to notice what has changed since the last one."""

import pytest
import torch
from torch import nn

from sonde.capture.torch.names import ModelStructure
from sonde.capture.torch.optim.parameters import (
    OptimizerParameters,
    WatchedParameter,
    same_state,
    signs_of,
    state_of,
)
from sonde.capture.torch.rows.bundles import TensorBundle


def _model():
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 1, bias=False)))


# -- the structure of a model ----------------------------------------------------------------------


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


# -- parameters and their state --------------------------------------------------------------------


def test_signs_change_with_who_it_is_and_with_what_trains():
    a, b = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    before = signs_of([a, b])
    assert signs_of([a, b]) == before
    assert signs_of([b, a]) != before
    assert signs_of([a]) != before
    b.requires_grad_(False)
    assert signs_of([a, b]) != before


def _trained():
    """An optimizer with state, and its parameters, of which the state was read once."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    structure = ModelStructure(model)
    structure.refresh()
    known = [(WatchedParameter(named), named.ref()) for named in structure.parameters]
    parameters = [p for _, p in known]
    party = OptimizerParameters(0, signs_of(parameters), known)
    party.changing.hold()
    state_of(optimizer, party)
    return model, optimizer, party, parameters


def test_state_that_is_made_as_it_was_is_found_in_order():
    _model, optimizer, party, parameters = _trained()
    found = same_state(optimizer, party)
    expected = [optimizer.state[p][k] for p in parameters for k in ("exp_avg", "exp_avg_sq")]
    assert all(a is b for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda state, p: state[p[0]].update(more=torch.ones(1)),
        lambda state, p: state[p[1]].pop("step"),
        lambda state, p: state[p[2]].update(exp_avg=3.0),
        lambda state, p: state.pop(p[1]),
        lambda state, p: state.update({p[0]: state.pop(p[0])}),  # now the last one
        lambda state, p: state.update({torch.ones(1): {}}),
        lambda state, p: state.update({p[1]: [1, 2, 3]}),
    ],
)
def test_state_that_is_made_otherwise_is_looked_at_anew(change):
    _model, optimizer, party, parameters = _trained()
    change(optimizer.state, parameters)
    assert same_state(optimizer, party) is None


# -- tensors that are read together ----------------------------------------------------------------


def test_a_bundle_fits_tensors_that_differ_in_nothing_but_their_place():
    room = torch.arange(64.0)
    a, b = room[:12].view(3, 4), room[16:20]
    bundle = TensorBundle([], [a, b])
    assert bundle.fits([a, b])
    assert bundle.fits([a, b])  # as they lay when it was last asked
    assert bundle.fits([a.clone(), b.clone()])
    assert not bundle.fits([a, None])
    assert not bundle.fits([a])
    assert not bundle.fits([a, b.double()])
    assert not bundle.fits([a, room[16:21]])
    assert not bundle.fits([torch.as_strided(room, (3, 4), (1, 3)), b])  # the same memory
    assert not bundle.fits([torch.as_strided(room, (3, 4), (4, 0)), b])


def test_a_view_fits_only_where_it_begins_at_the_same_part_of_a_vector():
    room = torch.zeros(8, 16)
    bundle = TensorBundle([], [room[:, 4:8]])
    assert bundle.fits([room[:, 8:12]])
    assert not bundle.fits([room[:, 5:9]])
