"""Merging is exact: the laws, and the columns that hold many sketches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sonde.kernels.reference import sketch
from sonde.record import COUNTS, EXTREMA, SUMS
from sonde.sketch import Sketch, concatenate, from_dense, merge_groups, row, take
from sonde.sketch.columns import empty

SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-310, 5e-324, 1e-40, 3.4e38, 1e39, -1e39]
NUMBERS = st.one_of(
    st.floats(-1e70, 1e70),
    st.floats(width=32),
    st.sampled_from(SPECIAL),
)
SAMPLES = st.lists(NUMBERS, max_size=60).map(lambda x: np.array(x, dtype=np.float64))


def assert_same_sample(found, expected):
    """Counts, extrema and bins to the bit; sums to float64 rounding.

    n additions in any order are off by at most n * 2**-53 * sum(|terms|). Both sides may err.
    """
    for name in (*COUNTS, *EXTREMA):
        assert getattr(found, name) == getattr(expected, name), name
    np.testing.assert_array_equal(found.bins, expected.bins)
    sizes = (expected.sum_abs, expected.sum_abs, expected.sum_sq, expected.sum_4)
    for name, size in zip(SUMS, sizes, strict=True):
        a, b = getattr(found, name), getattr(expected, name)
        assert a == b or abs(a - b) <= 2 * expected.count * 2.0**-53 * size, name


@given(SAMPLES, st.data())
def test_sketch_of_parts_equals_sketch_of_whole(x, data):
    cuts = data.draw(st.lists(st.integers(0, len(x)), max_size=5).map(sorted))
    parts = [sketch(part) for part in np.split(x, cuts)]
    assert_same_sample(Sketch.merged(parts), sketch(x))


@given(SAMPLES, SAMPLES, SAMPLES)
def test_merge_is_associative(a, b, c):
    a, b, c = sketch(a), sketch(b), sketch(c)
    assert_same_sample(a.merge(b).merge(c), a.merge(b.merge(c)))


@given(SAMPLES, SAMPLES)
def test_merge_is_commutative_to_the_bit(a, b):
    a, b = sketch(a), sketch(b)
    assert a.merge(b) == b.merge(a)


@given(SAMPLES)
def test_the_empty_sketch_is_the_identity(x):
    x = sketch(x)
    assert x.merge(Sketch.empty()) == x
    assert Sketch.empty().merge(x) == x


def test_the_empty_sketch_is_the_sketch_of_nothing():
    assert sketch([]) == Sketch.empty()
    assert Sketch.merged([]) == Sketch.empty()


def test_a_sketch_is_a_value():
    x = sketch([1.0, 2.0])
    with pytest.raises(ValueError, match="read-only"):
        x.bins[0] = 1
    with pytest.raises(AttributeError):
        x.count = 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    assert x != "a sketch"


@given(st.lists(SAMPLES, max_size=6))
def test_a_row_of_columns_is_the_sketch_that_went_in(samples):
    sketches = [sketch(x) for x in samples]
    columns = concatenate([s.columns() for s in sketches])
    assert len(columns) == len(sketches)
    assert [row(columns, i) for i in range(len(columns))] == sketches


@given(st.lists(SAMPLES, min_size=1, max_size=6), st.data())
def test_take_gives_rows_in_any_order_and_number(samples, data):
    sketches = [sketch(x) for x in samples]
    chosen = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=8))
    columns = take(concatenate([s.columns() for s in sketches]), np.array(chosen, dtype=np.int64))
    assert [row(columns, i) for i in range(len(columns))] == [sketches[i] for i in chosen]


@given(st.lists(st.tuples(st.integers(0, 3), SAMPLES), max_size=8))
def test_merge_groups_equals_merging_one_by_one(grouped):
    sketches = [(group, sketch(x)) for group, x in grouped]
    columns = concatenate([s.columns() for _, s in sketches])
    merged = merge_groups(columns, np.array([g for g, _ in sketches], dtype=np.int64), 4)
    for group in range(4):
        expected = Sketch.merged(s for g, s in sketches if g == group)
        assert row(merged, group) == expected


def test_columns_of_nothing_are_empty():
    assert len(concatenate([])) == 0
    assert len(take(empty(), np.zeros(0, np.int64))) == 0
    assert len(from_dense(*(np.zeros((0, n)) for n in (6, 4, 3, 2048)))) == 0
    assert row(merge_groups(empty(), np.zeros(0, np.int64), 1), 0) == Sketch.empty()


def test_a_sketch_prints_what_matters():
    assert repr(sketch([1.0, 3.0])) == "Sketch(count=2, mean=2, std=1.414, min=1, max=3)"
    assert "nonfinite=1" in repr(sketch([1.0, np.nan, 3.0]))
    assert repr(sketch([np.nan, np.inf])) == "Sketch(count=2, nans=1, infs=1)"
