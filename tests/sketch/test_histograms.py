"""Histograms of many sketches at once: each is that of its sketch alone."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sonde.kernels import reference
from sonde.sketch import concatenate, equal_histograms, histograms
from sonde.sketch.columns import empty
from sonde.sketch.model import row

VALUES = st.one_of(
    st.floats(width=32),
    st.floats(),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.25, 1e-45, -1e-40, 1e-310, 3e38, -1e300, 1e300]),
)
TENSORS = st.lists(VALUES, max_size=12).map(lambda x: np.array(x, np.float64))


def columns(tensors):
    return concatenate([reference.sketch(x).columns() for x in tensors])


@given(st.lists(TENSORS, min_size=1, max_size=5), st.integers(1, 70))
@example([np.array([5e-324, 1e-323]), np.array([1.7e308, -1.7e308]), np.array([])], 64)
@example([np.array([-1.0, -1e-30, 1e-30, 1.0]), np.array([-1.0, 0.0]), np.array([2.0, 2.0])], 50)
def test_histograms_of_many_are_those_of_each_alone(tensors, n):
    s = columns(tensors)
    for i, found in enumerate(equal_histograms(s, n)):
        alone = row(s, i).histogram(n)
        np.testing.assert_array_equal(found.edges, alone.edges)
        assert (found.zeros, found.nans, found.infs) == (alone.zeros, alone.nans, alone.infs)
        np.testing.assert_allclose(found.counts, alone.counts, rtol=1e-6, atol=1e-6)
        assert found.counts.sum() == pytest.approx(row(s, i).finite)


def test_no_sketches_have_no_histograms():
    assert equal_histograms(empty(), 8) == []


def test_more_rows_than_are_read_at_once_are_those_of_each_alone():
    few = columns([np.arange(k, 2 * k, dtype=np.float64) for k in range(1, 8)])
    alone = [row(few, i).histogram(16) for i in range(len(few))]
    found = equal_histograms(concatenate([few] * 80), 16)
    assert len(found) == 560
    for i, one in enumerate(found):
        np.testing.assert_array_equal(one.edges, alone[i % 7].edges)
        np.testing.assert_allclose(one.counts, alone[i % 7].counts, rtol=1e-6, atol=1e-6)


def test_a_history_has_all_values_of_all_steps_between_its_edges():
    found = histograms.history(
        {
            5: reference.sketch([1.0, np.inf]),
            2: reference.sketch([0.0, 3.0, np.nan]),
            9: reference.sketch([]),
        },
        4,
    )
    assert found.steps == [2, 5, 9]
    assert (found.edges[0], found.edges[-1]) == (0.0, 3.0)
    assert found.counts.sum(axis=1).tolist() == pytest.approx([2, 1, 0])
    assert (found.nans, found.infs) == ([1, 0, 0], [0, 1, 0])
    assert histograms.history({}, 3).counts.shape == (0, 3)
