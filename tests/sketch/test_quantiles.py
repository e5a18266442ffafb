"""Quantiles of many sketches at once are, to the bit, those of each sketch by itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sonde.kernels.reference import sketch
from sonde.record import Sketches
from sonde.sketch import Sketch, concatenate, quantiles, statistic
from sonde.sketch.columns import take

ODD = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 2.0**-126, 1.0, -1.0, 3e38, -3e38, 1e39, -1e39, 1e300]
VALUES = st.one_of(
    st.sampled_from([*ODD, np.nan, np.inf, -np.inf]), st.floats(width=32), st.floats()
)
TENSORS = st.lists(VALUES, max_size=40).map(lambda x: np.array(x, np.float64))
SHARES = [0.0, 1e-9, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999, 1.0]


def one_by_one(s):
    """The definition: each sketch by itself."""
    return np.array([one.quantiles(SHARES) for one in s]).reshape(len(s), len(SHARES))


@settings(max_examples=300)
@given(st.lists(TENSORS, max_size=6))
def test_many_at_once_are_each_by_itself(tensors):
    each = [sketch(x) for x in tensors]
    found = quantiles(concatenate([one.columns() for one in each]), SHARES)
    np.testing.assert_array_equal(found, one_by_one(each))


def test_rows_that_are_wide_and_narrow_stand_beside_each_other():
    rng = np.random.default_rng(5)
    each = [sketch(rng.normal(size=n) * 10.0 ** rng.integers(-30, 30, n)) for n in (1, 5000, 0, 7)]
    found = quantiles(concatenate([one.columns() for one in each]), SHARES)
    np.testing.assert_array_equal(found, one_by_one(each))


def test_a_statistic_reads_the_same():
    rng = np.random.default_rng(6)
    both = concatenate([sketch(rng.normal(size=n)).columns() for n in (500, 20)])
    many = take(both, np.arange(200) % 2)
    np.testing.assert_array_equal(statistic("p99")(many), quantiles(many, SHARES)[:, 6])


def test_no_rows_have_no_quantiles():
    assert np.isnan(quantiles(Sketch.empty().columns(), [0.5])).all()
    assert quantiles(take(sketch(np.ones(3)).columns(), np.arange(0)), [0.5]).shape == (0, 1)


def test_counts_that_contradict_each_other_give_no_error():
    """Of a stranger's run: more zeros and infinities than there are values in their bins."""
    s = sketch(np.array([0.0, 1.0, -2.0, np.inf])).columns()
    counts = s.counts.copy()
    counts[:, [1, 3, 4]] += 5
    odd = Sketches(counts, s.sums, s.extrema, s.offsets, s.bin_ids, s.bin_counts)
    found = quantiles(odd, SHARES)
    assert found.shape == (1, len(SHARES))


@pytest.mark.parametrize("q", [-0.1, 1.1, np.nan])
def test_a_quantile_outside_of_0_to_1_is_refused(q):
    with pytest.raises(ValueError, match="between 0 and 1"):
        quantiles(sketch(np.ones(2)).columns(), [q])


def test_quantiles_of_more_rows_than_are_read_at_once_are_those_of_each_alone():
    rng = np.random.default_rng(0)
    each = [sketch(rng.standard_normal(50) * 10.0**k) for k in range(7)]
    many = concatenate([one.columns() for one in each] * 600)
    assert len(many) == 4200
    expected = np.tile(one_by_one(each), (600, 1))
    np.testing.assert_array_equal(quantiles(many, SHARES), expected)
