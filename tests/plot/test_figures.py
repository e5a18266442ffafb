"""Static figures show the numbers of the run: what is drawn is compared with numpy."""

import matplotlib as mpl
import numpy as np
import pytest
from small_run import NAN_STEP, PATHS, STEPS, values

import sonde
from sonde import SondeError

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def finite(site, step):
    found = values(site, step)
    return found[np.isfinite(found)]


def test_a_heatmap_has_the_statistic_of_every_site_and_step(run):
    figure = sonde.plot.heatmap(run, "output", "rms")
    mesh, marks = figure.axes[0].collections[:2]
    expected = [[np.sqrt(np.mean(finite(i, s) ** 2)) for s in range(STEPS)] for i in range(3)]
    expected[2][NAN_STEP] = np.nan  # has a mark of its own
    shown = np.ma.filled(mesh.get_array(), np.nan).reshape(3, STEPS)
    assert np.allclose(shown, expected, rtol=1e-6, equal_nan=True)
    bad = np.ma.filled(marks.get_array(), 0).reshape(3, STEPS)
    assert np.argwhere(bad == 1).tolist() == [[2, NAN_STEP]]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == list(PATHS)


def test_a_histogram_covers_all_values(run):
    figure = run.plot.histogram("act", step=3, cells=32)
    step = figure.axes[0].patches[0]
    heights, edges, _ = step.get_data()
    assert np.sum(heights * np.diff(edges)) == pytest.approx(1.0)
    assert edges[0] <= values(1, 3).min()
    assert edges[-1] >= values(1, 3).max()


def test_exponents_are_exact_and_formats_have_their_limits(run):
    figure = sonde.plot.exponents(run, "down", step=2, formats=["float16"])
    ax = figure.axes[0]
    found = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in ax.patches}
    exponents = np.floor(np.log2(np.abs(values(2, 2)))).astype(int)
    for n in np.unique(exponents):
        assert found[int(n)] == pytest.approx(np.mean(exponents == n))
    # float16: the largest value lies in column 15, normals begin at -14, subnormals at -24.
    lines = sorted(line.get_xdata()[0] for line in ax.lines)
    assert lines == [-24.5, -14.5, 15.5]


def test_a_kymograph_marks_the_step_with_nan(run):
    figure = sonde.plot.kymograph(run, "down")
    ax = figure.axes[0]
    marks = [line for line in ax.lines if line.get_marker() == "|"]
    assert marks[0].get_xdata().tolist() == [NAN_STEP]
    medians = next(line for line in ax.lines if line.get_linestyle() == "-")
    expected = [np.median(finite(2, s)) for s in range(STEPS)]
    assert np.allclose(medians.get_ydata(), expected, atol=0.6)


def test_lines_are_the_logged_numbers(run):
    figure = sonde.plot.lines(run, "loss")
    line = figure.axes[0].lines[0]
    expected = [1 / (s + 1) if s != NAN_STEP else np.nan for s in range(STEPS)]
    assert np.allclose(line.get_ydata(), expected, equal_nan=True)
    assert figure.axes[0].lines[1].get_xdata().tolist() == [NAN_STEP]


def test_the_graph_has_a_box_for_each_module_in_the_order_of_data(run):
    figure = sonde.plot.graph(run)
    texts = {
        t.get_text().split("\n")[0]: t.get_position()[1]
        for t in figure.axes[0].texts
        if t.get_text()
    }
    assert texts["up"] > texts["act"] > texts["down"]


def test_several_sites_are_small_multiples(run):
    figure = sonde.plot.exponents(run, ["up", "down"], kind="output", wrap=2)
    assert [ax.get_title(loc="left").split(" · ")[0] for ax in figure.axes] == [
        "up/output/0",
        "down/output/0",
    ]


def test_axes_of_the_user_are_drawn_into(run):
    figure, axes = plt.subplots(1, 2)
    assert sonde.plot.heatmap(run, ax=axes[0]) is figure
    assert sonde.plot.lines(run, "loss", ax=axes[1]) is figure
    assert axes[1].lines


def test_a_path_serves_as_well_as_a_run(run):
    assert sonde.plot.lines(run.path).axes[0].lines


def test_settings_of_the_user_stay_as_they_were(run):
    before = dict(mpl.rcParams)
    run.plot.heatmap()
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: sonde.plot.histogram(r, "nothing"), "no site `nothing`"),
        (lambda r: sonde.plot.heatmap(r, "outputs"), "Unknown kind `outputs`"),
        (lambda r: sonde.plot.lines(r, "acc"), "no scalar or metric `acc`"),
        (lambda r: sonde.plot.exponents(r, "up", style="pie"), "'bar', 'line' or 'kde'"),
        (lambda r: sonde.plot.histogram(r, "up", ax=plt.subplots(1, 2)[1]), "1 panels"),
    ],
)
def test_bad_input_is_named(run, call, words):
    with pytest.raises(SondeError, match=words):
        call(run)


def test_an_unknown_figure_is_named_with_those_there_are(run):
    with pytest.raises(AttributeError, match="heatmap"):
        _ = run.plot.violin


def test_without_matplotlib_the_extra_is_named(run, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(SondeError, match=r"sonde\[plots\]"):
        sonde.plot.heatmap(run)


def test_smoothed_exponents_have_the_area_of_the_bars(run):
    figure = run.plot.exponents("up", kind="output", step=2, formats=(), style="kde")
    x, y = figure.axes[0].lines[0].get_data()
    assert np.trapezoid(y, x) == pytest.approx(1.0, abs=0.01)


def test_panels_of_lines_stand_side_by_side(run):
    figure = run.plot.lines(["rms", "std"], site=["up", "act"], kind="output")
    figure.canvas.draw()
    one, two = (ax.get_position() for ax in figure.axes[:2])
    assert one.width > 0.3
    assert two.x0 - one.x1 < 0.2
