"""Where slices of tensors lie, without making them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sonde.capture.torch.rows.strided import KnownSlices, Slices

SIZES = st.integers(1, 5)


@st.composite
def wholes(draw):
    """Tensors of four dimensions, in any order in memory, somewhere in a larger one."""
    b, h, length, width = (draw(SIZES) for _ in range(4))
    order = draw(st.permutations(range(4)))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
    shape = [(b, h, length, width)[i] for i in order]
    room = torch.arange(2 * b * h * length * width).to(dtype).reshape(*shape[:-1], 2 * shape[-1])
    skip = draw(st.integers(0, shape[-1]))
    cut = room[..., skip : skip + shape[-1]] if draw(st.booleans()) else room[..., ::2]
    return cut.permute(*np.argsort(order).tolist())


@given(st.lists(wholes(), min_size=1, max_size=4))
def test_they_lie_where_they_would_if_they_were_made(several):
    slices = Slices(several)
    known = KnownSlices([], None, slices)
    made = [one for x in several for one in x.unbind(1)]
    assert len(slices) == len(made)
    assert np.frombuffer(known.addresses(slices), np.int64).tolist() == [x.data_ptr() for x in made]
    assert all(map(torch.equal, slices, made))
    assert torch.equal(slices[-1], made[-1])


@given(wholes(), wholes(), st.integers(0, 3))
def test_others_fit_if_they_differ_in_nothing_but_their_place(x, y, shift):
    spots = []
    known = KnownSlices(spots, None, Slices([x]))
    looks = [(z.dtype, z.shape, z.stride(), z.data_ptr() % 16) for z in (x, y)]
    assert known.fits(spots, Slices([y])) == (looks[0] == looks[1])
    assert known.fits(spots, Slices([x]))
    assert not known.fits([], Slices([x]))
    assert not known.fits(spots, Slices([x, x]))
    moved = torch.empty(x.untyped_storage().nbytes() + 64, dtype=torch.uint8).view(x.dtype)
    moved = moved.as_strided(x.shape, x.stride(), shift)
    same_start = (moved.data_ptr() - x.data_ptr()) % 16 == 0
    assert known.fits(spots, Slices([moved])) == same_start


def test_nothing_that_has_no_memory_fits():
    spots, x = [], torch.zeros(2, 3, 4, 5)
    known = KnownSlices(spots, None, Slices([x]))
    assert not known.fits(spots, Slices([x.to("meta")]))
    assert not known.fits(spots, Slices([torch._efficientzerotensor((2, 3, 4, 5))]))
    with pytest.raises(IndexError):
        Slices([x])[3]
