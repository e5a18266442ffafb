"""What a kymograph draws is density per value: a distribution has the same shape on any axis."""

from statistics import NormalDist

import numpy as np
import pytest
from told import asked

from sonde.kernels.reference import sketch
from sonde.record import Site, SiteInfo, SketchBatch
from sonde.sketch.bins import EDGES
from sonde.store import Writer, open_run
from sonde.views.runs.opened_run import OpenedRun

SITE = Site("layer", "output")
NORMAL = np.array([NormalDist().inv_cdf((i + 0.5) / 20_000) for i in range(20_000)])
SIGNED = ("linear", "asinh")
MAGNITUDES = ("log", "exponent")


def recorded(path, columns):
    """A run of one site whose values at each step are given."""
    with Writer(path, compact=False) as writer:
        writer.sites([SiteInfo(0, SITE, "float32", (len(columns[0]),), "Linear")])
        for step, values in enumerate(columns):
            writer.sketches(
                SketchBatch(step, "train", np.zeros(1, np.int32), sketch(values).columns())
            )
    return OpenedRun(open_run(path, frame="arrow"), "id")


def modes(found, column):
    """Cells with the largest density. A second hump of more than two values fails the test."""
    density = found.density[column].astype(float)
    two_values = 2 / found.total[column] / np.diff(found.edges)
    top = int(np.argmax(density))
    steps, slack = np.diff(density), np.maximum(two_values[1:], two_values[:-1])
    assert (steps[:top] >= -slack[:top]).all()
    assert (steps[top:] <= slack[top:]).all()
    return np.flatnonzero(density >= density[top] - two_values)


def bin_around(value):
    """The bin of the sketch that holds a value: closer than that no place is known."""
    at = int(np.searchsorted(EDGES, abs(value), side="right")) - 1
    low, high = EDGES[at], EDGES[at + 1]
    return (low, high) if value >= 0 else (-high, -low)


@pytest.mark.parametrize("range_", ["robust", "all"])
@pytest.mark.parametrize(
    ("mean", "deviation"), [(0.0, 1.0), (0.0, 1e-5), (5.0, 1.0), (-0.3, 0.1), (40.0, 30.0)]
)
@pytest.mark.parametrize("scale", ["auto", *SIGNED])
def test_a_normal_distribution_has_one_mode_at_its_mean(tmp_path, scale, mean, deviation, range_):
    subject = recorded(tmp_path / "run", [mean + deviation * NORMAL] * 3)
    found = asked(subject, "kymograph", site=SITE.name, scale=scale, range=range_)
    low, high = bin_around(mean)
    for column in range(3):
        at = modes(found, column)
        assert (found.edges[at] <= high).any()
        assert (found.edges[at + 1] >= low).any()


@pytest.mark.parametrize("mean", [0.0, 6.5, -6.5])
@pytest.mark.parametrize("scale", MAGNITUDES)
def test_magnitudes_of_a_normal_distribution_have_one_mode(tmp_path, scale, mean):
    """Around zero the density of magnitudes falls from the smallest on: there is no second hump."""
    subject = recorded(tmp_path / "run", [mean + NORMAL] * 3)
    found = asked(subject, "kymograph", site=SITE.name, scale=scale)
    low, high = bin_around(abs(mean))
    for column in range(3):
        at = modes(found, column)
        assert (found.edges[at] <= max(high, found.edges[0])).any()
        assert (found.edges[at + 1] >= low).any()


@pytest.mark.parametrize("scale", [*SIGNED, *MAGNITUDES])
def test_density_times_width_is_the_share_of_values(tmp_path, scale):
    values = np.where(np.arange(len(NORMAL)) % 3 == 0, 0.0, NORMAL + 0.5)
    subject = recorded(tmp_path / "run", [values])
    found = asked(subject, "kymograph", site=SITE.name, scale=scale, range="all")
    inside = (found.density[0] * np.diff(found.edges)).sum()
    other = (found.below[0] + found.above[0]) / len(values)
    assert inside + other == pytest.approx((values != 0).mean(), rel=1e-4)


def test_zeros_do_not_darken_the_other_values(tmp_path):
    """They have a strip of their own: half of all values at one point has no density."""
    values = np.maximum(NORMAL, 0.0)
    subject = recorded(tmp_path / "run", [values])
    found = asked(subject, "kymograph", site=SITE.name, scale="linear")
    assert found.max_density < 0.5
    assert found.counts.sum() > 0.99 * len(values)
    assert found.zeros[0] == 10_000


def test_a_diverged_step_does_not_flatten_those_before_it(tmp_path):
    columns = [NORMAL * (1 + 0.01 * i) for i in range(49)] + [NORMAL * 1e12]
    found = asked(recorded(tmp_path / "run", columns), "kymograph", site=SITE.name)
    assert found.scale == "linear"
    assert -6 < found.edges[0] < -2
    assert 2 < found.edges[-1] < 6
    assert found.above[-1] + found.below[-1] > 0.99 * len(NORMAL)
    assert (found.above[:-1] + found.below[:-1] < 0.02 * len(NORMAL)).all()
    everything = asked(
        recorded(tmp_path / "all", columns), "kymograph", site=SITE.name, range="all"
    )
    assert everything.edges[-1] > 1e12


def test_growth_over_many_decades_is_drawn_on_a_logarithmic_axis(tmp_path):
    columns = [NORMAL * 10.0 ** (i / 5) for i in range(50)]
    found = asked(recorded(tmp_path / "run", columns), "kymograph", site=SITE.name)
    assert found.scale == "log"
    assert found.edges[-1] > 10.0**9
    assert (found.above + found.below < 0.02 * len(NORMAL)).all()


def test_growth_over_few_decades_stays_linear_and_is_shown_whole(tmp_path):
    columns = [NORMAL * 10.0 ** (i / 20) for i in range(50)]
    found = asked(recorded(tmp_path / "run", columns), "kymograph", site=SITE.name)
    assert found.scale == "linear"
    assert found.edges[-1] > 2.5 * 10 ** (49 / 20)


def test_values_of_many_decades_in_one_step_are_drawn_on_a_logarithmic_axis(tmp_path):
    found = asked(recorded(tmp_path / "run", [np.exp(4 * NORMAL)]), "kymograph", site=SITE.name)
    assert found.scale == "log"


def test_the_brightest_colour_is_not_set_by_a_column_of_equal_values(tmp_path):
    columns = [np.full(len(NORMAL), 0.5)] + [NORMAL] * 20
    found = asked(recorded(tmp_path / "run", columns), "kymograph", site=SITE.name)
    assert found.density[0].max() > 10 * found.density[1].max()
    assert found.max_density <= 4.001 * found.density[1].max()
