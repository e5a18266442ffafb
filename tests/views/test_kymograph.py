"""Kymographs and cross-sections: the cells are the run's own histograms."""

import numpy as np
import pytest
from told import ALL_NAN, SOME_INF, STEPS, ZEROS, asked

from sonde._errors import SondeError
from sonde.views.numbers import axes
from sonde.views.runs.opened_run import NotFoundError

SITE = "h.0.mlp/output/0"
SCALES = ("linear", "asinh", "log", "exponent")


@pytest.mark.parametrize("scale", ["linear", "asinh"])
def test_cells_are_the_histograms_of_the_run(subject, scale):
    found = asked(subject, "kymograph", site=SITE, scale=scale)
    assert found.columns.first.tolist() == STEPS
    for i in (0, 11, len(STEPS) - 1):
        known = subject.run.histogram(SITE, step=STEPS[i], edges=found.edges)
        np.testing.assert_array_equal(found.counts[i], known.counts.astype(np.float32))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [SITE, ZEROS, SOME_INF, ALL_NAN])
@pytest.mark.parametrize("range_", ["robust", "all"])
def test_every_value_is_in_one_place(told, subject, scale, name, range_):
    found = asked(subject, "kymograph", site=name, scale=scale, range=range_, columns=16)
    inside = found.counts.sum(axis=1) + found.below + found.above
    if scale in {"log", "exponent"}:
        inside = inside + found.zeros
    odd = found.nans + found.pos_infs + found.neg_infs
    np.testing.assert_allclose(inside + odd, found.total, rtol=1e-5)
    stride = found.columns.stride
    for i, first in enumerate(found.columns.first.astype(int)):
        x = told.seen(name, [s for s in STEPS if s // stride == first // stride])
        assert found.total[i] == len(x)
        assert found.zeros[i] == (x == 0).sum()
        assert found.nans[i] == np.isnan(x).sum()
        assert found.pos_infs[i] == (x == np.inf).sum()
        assert found.neg_infs[i] == (x == -np.inf).sum()
        known = x[np.isfinite(x)]
        if len(known):
            assert found.low[i] == np.float32(known.min())
            assert found.high[i] == np.float32(known.max())
            assert found.mean[i] == pytest.approx(known.mean(), rel=1e-5, abs=1e-7)
            assert found.rms[i] == pytest.approx(np.sqrt((known**2).mean()), rel=1e-5)


@pytest.mark.parametrize("scale", SCALES)
def test_cells_do_not_stray_further_than_a_bin(told, subject, scale):
    """Values are known to within a bin: shifted by one, no value may be in the wrong cell."""
    found = asked(subject, "kymograph", site=SITE, scale=scale, range="all", cells=8)
    magnitudes = scale in {"log", "exponent"}
    for i, step in enumerate(STEPS):
        x = told.seen(SITE, step)
        x = np.sort(np.abs(x) if magnitudes else x)
        for j, edge in enumerate(found.edges[:-1]):
            upto = found.counts[i, : j + 1].sum() + found.below[i]
            top = found.edges[j + 1]
            low, high = sorted((top * 0.75, top / 0.75))
            assert (x < low).sum() - 1e-3 <= upto <= (x <= high).sum() + 1e-3, (step, edge)


def test_lines_of_percentiles_are_those_of_the_sketch(subject):
    found = asked(subject, "kymograph", site=SITE)
    for i in (0, 20):
        known = subject.run.sketch(SITE, step=STEPS[i]).quantiles([0.01, 0.5, 0.99])
        np.testing.assert_array_equal(
            [found.p1[i], found.p50[i], found.p99[i]], known.astype(np.float32)
        )


def test_columns_of_several_steps_hold_all_their_values(subject):
    found = asked(subject, "kymograph", site=SITE, columns=8, scale="linear")
    stride = found.columns.stride
    merged = subject.run.merge("h.0.mlp", kind="output", steps=(0, stride - 1))
    np.testing.assert_array_equal(
        found.counts[0], merged.histogram(found.edges).counts.astype(np.float32)
    )
    assert found.columns.steps[0] == stride


def test_the_first_step_that_is_not_finite_is_told(subject):
    assert asked(subject, "kymograph", site=SOME_INF).first_nonfinite_step == 17
    assert asked(subject, "kymograph", site=SITE).first_nonfinite_step is None


def test_a_window_of_nothing_but_nan_can_be_drawn(subject):
    for scale in SCALES:
        found = asked(subject, "kymograph", site=ALL_NAN, first=21, last=21, scale=scale)
        assert found.counts.sum() == 0
        assert found.nans.tolist() == [40.0]
        assert np.isnan(found.p50).all()


def test_a_fixed_range_counts_what_lies_outside(told, subject):
    found = asked(
        subject, "kymograph", site=SITE, range="fixed", low=-0.5, high=0.5, scale="linear"
    )
    assert (found.edges[0], found.edges[-1]) == (-0.5, 0.5)
    x = told.seen(SITE, STEPS[-1])
    assert found.above[-1] == pytest.approx((x >= 0.5).sum(), abs=3)
    assert found.below[-1] == pytest.approx((x < -0.5).sum(), abs=3)
    with pytest.raises(SondeError, match="needs `low` and `high`"):
        asked(subject, "kymograph", site=SITE, range="fixed")
    with pytest.raises(SondeError, match="`low` must be below"):
        asked(subject, "kymograph", site=SITE, range="fixed", low=1, high=-1)
    with pytest.raises(SondeError, match="above 0"):
        asked(subject, "kymograph", site=SITE, range="fixed", low=-1, high=1, scale="log")


@pytest.mark.parametrize("scale", SCALES)
def test_a_section_has_the_cells_of_the_kymograph(subject, scale):
    whole = asked(subject, "kymograph", site=SITE, scale=scale)
    i = 13
    section = asked(
        subject,
        "section",
        site=SITE,
        step=STEPS[i],
        scale=scale,
        low=whole.edges[0],
        high=whole.edges[-1],
        cells=min(max(len(whole.edges) - 1, 4), 512),
    )
    np.testing.assert_allclose(section.edges, whole.edges, rtol=1e-15)
    np.testing.assert_allclose(section.counts, whole.counts[i], rtol=1e-6)
    assert section.below == pytest.approx(float(whole.below[i]), rel=1e-6)


def test_a_section_tells_statistics_exponents_and_losses_of_the_sketch(told, subject):
    section = asked(subject, "section", site=SITE, step=4)
    sketch = subject.run.sketch(SITE, step=4)
    x = told.seen(SITE, 4)
    named = {s.name: s.value for s in section.statistics}
    assert named["count"] == len(x)
    assert named["max"] == x.max()
    assert named["mean"] == pytest.approx(x.mean())
    assert named["p50"] == sketch.quantiles([0.5])[0]
    known = sketch.exponents()
    np.testing.assert_array_equal(section.exponents, known.exponents)
    np.testing.assert_array_equal(section.exponent_counts, known.counts)
    for loss in section.formats:
        assert loss.overflow == sketch.loss(loss.name).overflow
        assert loss.underflow == sketch.loss(loss.name).underflow
    only = asked(subject, "section", site=SITE, step=4, format=["float16"])
    assert [loss.name for loss in only.formats] == ["float16"]
    with pytest.raises(SondeError, match="float7"):
        asked(subject, "section", site=SITE, format=["float7"])


@pytest.mark.parametrize(
    ("step", "found", "before", "after"),
    [(0, 0, None, 1), (31, 30, 29, 33), (10_000, 57, 54, None), (-5, 0, None, 1), (33, 33, 30, 36)],
)
def test_a_section_shows_the_recorded_step_at_or_before(subject, step, found, before, after):
    section = asked(subject, "section", site=SITE, step=step)
    assert (section.step, section.previous, section.next) == (found, before, after)
    assert any("was not recorded here" in note for note in section.notes) == (step != found)


def test_what_is_not_there_is_told(subject):
    with pytest.raises(NotFoundError, match="no site"):
        asked(subject, "kymograph", site="../../etc/passwd")
    with pytest.raises(NotFoundError, match="Nothing was recorded"):
        asked(subject, "kymograph", site=SITE, first=1000)
    with pytest.raises(NotFoundError, match="Nothing was recorded"):
        asked(subject, "section", site=SITE, phase="nothing")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("low", "high"), [(5e-324, 1e-322), (1e-300, 1.7e308), (1e307, 1.7e308), (1.0, 1.0000000001)]
)
def test_axes_at_the_ends_of_all_numbers_are_finite_and_rise_or_are_refused(scale, low, high):
    for first in (low, -high):
        try:
            found = axes.edges(scale, first, high, 64)
        except SondeError:
            continue
        assert np.isfinite(found).all()
        assert (np.diff(found) > 0).all()
