"""What is read off a sketch, against numpy on the values themselves, with the stated bounds."""

import math
import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sonde.kernels.reference import sketch
from sonde.sketch import STATISTICS, Sketch, concatenate, needs_bins, quantiles, statistic
from sonde.sketch.bins import EDGES, EXPONENTS, INF_BIN, bin_of

NORMAL = st.floats(2.0**-60, 2.0**60, width=32).flatmap(lambda x: st.sampled_from([x, -x]))
FINITE32 = st.one_of(st.just(0.0), st.floats(width=32, allow_nan=False, allow_infinity=False))
FINITE64 = st.one_of(FINITE32, st.floats(-1e300, 1e300), st.sampled_from([1e39, -1e39, 1e-60]))


def arrays(numbers, min_size=1):
    return st.lists(numbers, min_size=min_size, max_size=80).map(lambda x: np.array(x, np.float64))


@given(arrays(NORMAL))
def test_statistics_are_those_of_the_values(x):
    s = sketch(x)
    close = {"rel": 1e-12}
    assert s.mean == pytest.approx(x.mean(), abs=1e-12 * np.abs(x).mean())
    assert s.norm == pytest.approx(np.linalg.norm(x), **close)
    assert s.rms == pytest.approx(np.sqrt((x**2).mean()), **close)
    assert s.stat("rm2") == s.rms
    assert s.stat("mean_abs") == s.abs_mean
    assert s.rm4 == pytest.approx((x**4).mean() ** 0.25, **close)
    assert s.abs_mean == pytest.approx(np.abs(x).mean(), **close)
    assert s.stat("min") == x.min()
    assert s.stat("max") == x.max()
    assert s.stat("min_abs") == np.abs(x).min()
    assert s.max_abs == np.abs(x).max()
    assert s.sparsity == 0


@given(arrays(FINITE64, min_size=2))
def test_variance_loses_digits_only_by_cancellation(x):
    """The two sums are off by n * 2**-53 of themselves, and what is left after subtracting them may
    be much smaller than either."""
    x = np.clip(x, -1e70, 1e70)
    exact = [Fraction(v) for v in x.tolist()]
    mean = sum(exact) / len(exact)
    var = float(sum((v - mean) ** 2 for v in exact) / (len(exact) - 1))
    s = sketch(x)
    bound = 4 * (len(x) + 4) * (2.0**-53 * s.sum_sq + 2.0**-1074) / (len(x) - 1)
    assert s.var == pytest.approx(var, abs=bound)
    assert s.std == math.sqrt(s.var)


@given(arrays(st.sampled_from([0.0, -0.0, 1.0, 1e-40, math.nan, math.inf, -math.inf])))
def test_counts_are_exact(x):
    s = sketch(x)
    assert s.count == x.size
    assert s.zeros == (x == 0).sum()
    assert s.sparsity == (x == 0).mean()
    assert s.nans == np.isnan(x).sum()
    assert (s.pos_infs, s.neg_infs) == ((x == np.inf).sum(), (x == -np.inf).sum())
    assert s.infs == s.stat("infs") == np.isinf(x).sum()
    assert s.finite == np.isfinite(x).sum()
    assert s.subnormals == (x == 1e-40).sum()
    assert s.stat("nonfinite") == (~np.isfinite(x)).mean()


@given(arrays(FINITE64), st.lists(st.floats(0, 1), min_size=1, max_size=5))
@example(np.array([0.0, 0.0, 0.0, -3e54]), [0.25])
def test_quantiles_lie_in_the_bin_of_the_order_statistic(x, q):
    """So they are off by less than that bin is wide: 25 % of the magnitude of normal numbers."""
    found = sketch(x).quantiles(q)
    ranks = np.maximum(np.ceil(np.array(q) * len(x)).astype(int), 1)
    truth = np.sort(x)[ranks - 1]
    for value, exact, share in zip(found, truth, q, strict=True):
        if share in (0, 1):
            assert value == (x.min() if share == 0 else x.max())
        elif abs(exact) >= 2.0**128:
            assert abs(value) >= min(2.0**128, np.abs(x).max())
        else:
            width = max(0.25 * max(abs(exact), abs(value)), 2.0**-127)
            assert abs(value - exact) <= width * (1 + 2**-20)


def test_quantiles_stay_inside_of_what_was_seen():
    s = sketch([1.0, 1.1, 1.2])
    assert (s.quantile(0.0), s.quantile(1.0)) == (1.0, 1.2)
    assert all(1.0 <= s.quantile(q) <= 1.2 for q in np.linspace(0, 1, 11))
    assert math.isnan(Sketch.empty().quantile(0.5))
    with pytest.raises(ValueError, match="between 0 and 1"):
        s.quantile(1.5)


@given(arrays(FINITE64), arrays(st.floats(-1e300, 1e300), min_size=2))
def test_a_histogram_on_any_edges_counts_every_finite_value_once(x, edges):
    edges = np.unique(edges)
    if len(edges) < 2:
        edges = np.append(edges, edges[-1] + 1 + abs(edges[-1]))
    s = sketch(np.concatenate([x, [np.nan, np.inf]]))
    h = s.histogram(edges)
    assert h.counts.sum() + h.outside == pytest.approx(x.size)
    assert (h.counts >= 0).all()
    assert (h.nans, h.infs, h.zeros) == (1, 1, (x == 0).sum())
    wide = s.histogram([-np.inf, 0.0, np.inf])
    assert wide.outside == pytest.approx(0)
    assert wide.counts.sum() == pytest.approx(x.size)


@given(arrays(FINITE32), st.data())
def test_a_histogram_on_bin_edges_is_exact(x, data):
    chosen = data.draw(st.lists(st.integers(4, INF_BIN), min_size=2, max_size=6, unique=True))
    magnitudes = EDGES[sorted(chosen)]
    edges = np.unique(np.concatenate([-magnitudes, magnitudes]))
    # A bin of negative values holds its edge away from zero, numpy's interval the other one.
    on_edge = np.isin(x, edges) & (x < 0)
    x = x[~on_edge]
    expected = np.histogram(x[x != edges[-1]], edges)[0]
    np.testing.assert_allclose(sketch(x).histogram(edges).counts, expected, atol=1e-9)


@given(arrays(st.one_of(FINITE64, st.just(math.nan))), st.integers(1, 60))
@example(np.array([0.0, 2.0**-1026]), 2)
def test_equal_bins_hold_every_finite_value(x, n):
    s = sketch(x)
    h = s.histogram(n)
    assert len(h.counts) == n
    assert (np.diff(h.edges) > 0).all()
    assert h.counts.sum() == pytest.approx(s.finite)
    assert h.outside == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("edges", [[1.0], [2.0, 1.0], [1.0, 1.0], [[0.0, 1.0]]])
def test_edges_that_do_not_rise_are_refused(edges):
    with pytest.raises(ValueError, match="rising"):
        sketch([1.0]).histogram(edges)


def test_a_histogram_of_no_bins_is_refused():
    with pytest.raises(ValueError, match="at least one bin, got 0"):
        sketch([1.0]).histogram(0)
    assert len(sketch([1.0]).histogram(np.int64(3)).counts) == 3


@given(arrays(st.one_of(FINITE32, st.sampled_from([math.nan, math.inf, -math.inf, -0.0]))))
def test_the_exponent_histogram_is_exact(x):
    e = sketch(x).exponents()
    finite = x[np.isfinite(x) & (x != 0)]
    columns = np.maximum(np.frexp(np.abs(finite))[1] - 1, -129)
    for exponent, count in zip(e.exponents, e.counts, strict=True):
        assert count == (columns == exponent).sum(), exponent
    assert e.counts.sum() + e.zeros + e.nans + e.pos_infs + e.neg_infs == x.size


@given(arrays(NORMAL))
def test_rm8_is_within_its_bounds(x):
    exact = (np.abs(x) ** 8).mean() ** 0.125
    found = sketch(x).rm8
    assert 0.91 * exact <= found <= 1.15 * exact
    assert found <= np.abs(x).max()


def test_rm8_of_a_smooth_sample_is_close():
    x = np.random.default_rng(0).normal(size=20_000).astype(np.float32)
    assert sketch(x).rm8 == pytest.approx((x.astype(float) ** 8).mean() ** 0.125, rel=0.02)


def test_rm8_of_zeros_is_zero_and_of_nothing_is_nan():
    assert sketch([0.0, 0.0]).rm8 == 0
    assert math.isnan(sketch([math.nan]).rm8)


def test_finite_values_beyond_float32_are_counted_and_placed():
    """They have no bin of their own; they are told from infinities by count and by extrema."""
    s = sketch([1e39, 1e300, -1e200, 1.0, math.inf, -math.inf])
    assert (s.pos_infs, s.neg_infs, s.finite) == (1, 1, 4)
    assert (s.min, s.max) == (-1e200, 1e300)
    assert s.quantile(0.1) <= -(2.0**128)
    assert s.quantile(0.9) >= 2.0**128
    assert s.histogram([-1e308, 0, 1e308]).counts.tolist() == [1, 3]
    assert dict(zip(s.exponents().exponents, s.exponents().counts, strict=True))[128] == 3
    assert s.loss("float16").overflow == 0.75
    assert s.abs_mean == pytest.approx(2.5e299)
    assert s.norm == math.inf  # the square is beyond float64, and says so


def test_nonzero_values_too_small_for_float32_are_not_zeros():
    s = sketch([1e-60, 0.0])
    assert (s.zeros, s.subnormals) == (1, 0)
    assert s.min_abs == 1e-60
    assert s.exponents().counts.sum() == 1
    assert s.exponents().exponents.tolist() == [-129]


def test_statistics_of_nothing_are_nan_and_counts_are_zero():
    for name in STATISTICS:
        value = Sketch.empty().stat(name)
        is_count = name in {"count", "zeros", "nans", "pos_infs", "neg_infs", "subnormals", "infs"}
        assert value == 0 if is_count else math.isnan(value), name


def test_statistics_of_infinities_alone_are_nan():
    s = sketch([math.inf, math.nan])
    for name in ("mean", "std", "norm", "rms", "rm4", "rm8", "min", "max", "max_abs", "p50"):
        assert math.isnan(s.stat(name)), name


def test_one_value_has_no_variance():
    assert math.isnan(sketch([3.0]).std)
    assert sketch([3.0, 3.0]).std == 0


def test_named_statistics_work_on_many_sketches_at_once():
    samples = [[1.0, 2.0], [], [math.nan, 4.0]]
    columns = concatenate([sketch(x).columns() for x in samples])
    for name in (*STATISTICS, "p25", "median"):
        each = [sketch(x).stat(name) for x in samples]
        np.testing.assert_array_equal(statistic(name)(columns), each)
    assert quantiles(columns, [0.0, 1.0]).shape == (3, 2)


def test_an_unknown_statistic_is_named_in_the_error():
    with pytest.raises(ValueError, match=r"Unknown statistic `sharpness`.*rms"):
        statistic("sharpness")
    for bad in ("p101", "p", "p-1", "pfifty"):
        with pytest.raises(ValueError, match="Unknown statistic"):
            statistic(bad)
    assert needs_bins("p50")
    assert needs_bins("rm8")
    assert not needs_bins("rms")


def test_edges_are_the_float32_patterns_they_claim_to_be():
    for i in range(INF_BIN):
        (value,) = struct.unpack("<f", struct.pack("<I", i << 21))
        assert EDGES[i] == value
        assert bin_of(value) == i
        assert bin_of(-value) == i + 1024
        if i:
            assert EXPONENTS[i] == math.floor(math.log2(value))
    assert bin_of([math.nan, math.inf, -math.inf]).tolist() == [-1, 1020, 2044]
