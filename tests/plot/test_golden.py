"""One golden test for each view: page, report, widget and figure hold the same numbers.

A view without a figure is compared with the Python call that gives the same numbers, where there is
one. A new view fails `test_every_view_has_a_golden` until it has a place here.
"""

import re

import matplotlib as mpl
import numpy as np
import pytest
from archived import answers_of, blocks_of
from small_run import STEPS, VARIABLE, write

import sonde
from sonde.present.archive import key_of
from sonde.present.report.writing import make
from sonde.present.worker import OpenRuns, answer
from sonde.views import envelope
from sonde.views.questions import parse
from sonde.views.routes import ROUTES

mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

SITE = "down/output/0"

QUESTIONS = {
    "run": {},
    "spark": {},
    "clock": {"name": "epoch"},
    "tree": {},
    "level": {},
    "panel": {"module": "down"},
    "search": {},
    "lines": {"name": "loss", "columns": "2048"},
    "heat": {"kind": "output", "stat": "rms", "columns": "2048"},
    "kymograph": {"site": SITE, "columns": "512"},
    "section": {"site": SITE, "step": "3"},
    "variable": {"site": VARIABLE},
    "tint": {"kind": "output", "stat": "rms", "columns": "64"},
    "table": {"kind": "output", "step": "3"},
    "movers": {"kind": "output", "stat": "rms"},
    "compare": {},
    "paired_heat": {"kind": "output", "stat": "rms"},
    "paired_section": {"site": SITE, "step": "6"},
}

WIDGETS = {
    "clock": lambda run, _: run.view.lines("loss", axis="epoch", live=False),
    "heat": lambda run, _: run.view.heatmap("output", live=False),
    "lines": lambda run, _: run.view.lines("loss", live=False),
    "panel": lambda run, _: run.view.kymograph("down", kind="output", live=False),
    "kymograph": lambda run, _: run.view.kymograph("down", kind="output", live=False),
    "section": lambda run, _: run.view.exponents("down", kind="output", step=3, live=False),
    "variable": lambda run, _: run.view.variable(VARIABLE, live=False),
    "level": lambda run, _: run.view.graph(live=False),
    "tint": lambda run, _: run.view.graph(live=False),
    "table": lambda run, _: run.view.table("output", step=3, live=False),
    "compare": lambda run, other: sonde.show(run, other, live=False),
    "paired_heat": lambda run, other: run.view.compare(other, kind="output", live=False),
    "paired_section": lambda run, other: run.view.compare(
        other, kind="output", site="down", step=6, live=False
    ),
}
"""All others are in every widget."""


# -- figures --------------------------------------------------------------------------------------


def meshes(figure):
    """The numbers of each heatmap of a figure, row by row; NaN where nothing is drawn."""
    found = []
    for ax in figure.axes:
        drawn = [c for c in ax.collections if hasattr(c, "get_coordinates")]
        if drawn and ax.get_label() != "<colorbar>":
            found.append(np.ma.filled(drawn[0].get_array(), np.nan).reshape(-1))
    return found


def numbers_of(heat):
    values = np.asarray(heat["values"], np.float64).reshape(-1)
    return np.where(np.asarray(heat["flags"]).reshape(-1) == 1, values, np.nan)


def is_outline(patch, section):
    """Whether a histogram of a figure is that of a cross-section."""
    heights, edges, _ = patch.get_data()
    density = section["counts"] / section["total"] / np.diff(section["edges"])
    return np.array_equal(edges, section["edges"]) and np.allclose(heights, density, rtol=1e-12)


def check_heat(spec, run, _):
    (drawn,) = meshes(run.plot.heatmap("output", "rms"))
    assert np.array_equal(drawn, numbers_of(spec), equal_nan=True)
    line = run.plot.lines("rms", site="down", kind="output").axes[0].lines[0]
    assert np.array_equal(line.get_ydata(), numbers_of(spec).reshape(3, -1)[2], equal_nan=True)


def check_kymograph(spec, run, _):
    cells = len(spec["edges"]) - 1
    (drawn,) = meshes(run.plot.kymograph("down", kind="output", cells=cells))
    density = np.asarray(spec["density"], np.float64).reshape(-1, cells).T.reshape(-1)
    assert np.array_equal(np.nan_to_num(drawn), density)


def check_section(spec, run, _):
    bars = run.plot.exponents("down", kind="output", step=3).axes[0].patches
    drawn = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in bars}
    shares = np.asarray(spec["exponent_counts"]) / spec["total"]
    assert drawn == dict(zip(np.asarray(spec["exponents"]).tolist(), shares, strict=True))
    figure = run.plot.histogram("down", kind="output", step=3, scale=spec["scale"])
    assert is_outline(figure.axes[0].patches[0], spec)


def check_lines(spec, run, _):
    line = run.plot.lines("loss").axes[0].lines[0]
    assert np.array_equal(line.get_ydata(), spec["mean"], equal_nan=True)
    assert np.array_equal(line.get_xdata(), spec["first"])


def check_spark(spec, run, _):
    line = run.plot.lines("loss").axes[0].lines[0]
    assert np.array_equal(line.get_ydata(), spec["y"], equal_nan=True)


def check_clock(spec, run, _):
    steps, values = np.asarray(spec["steps"]), np.asarray(spec["values"])
    figure = run.plot.lines("loss", axis="epoch")
    assert figure.axes[0].get_xlabel() == "epoch"
    assert np.array_equal(figure.axes[0].lines[0].get_xdata(), values)
    assert len(values) == STEPS
    heat = run.plot.heatmap("output", axis="epoch").axes[0].collections[0]
    edges = heat.get_coordinates()[0, 1:-1, 0]
    assert np.array_equal(edges, np.interp(steps[:-1] + 0.5, steps, values))


def check_level(spec, run, _):
    texts = [t.get_text() for t in run.plot.graph().axes[0].texts if t.get_text()]
    assert [text.split("\n")[0] for text in texts] == [node["label"] for node in spec["nodes"]]


def check_table(spec, run, _):
    known = run.stats(kind="output", stat=["rms", "max_abs", "sparsity"], steps=3)
    by_name = known.set_index("name") if "name" in known else known.set_index("module")
    for row in spec["rows"]:
        one = by_name.loc[row["site"]["name"] if "name" in known else row["site"]["path"]]
        assert row["rms"] == pytest.approx(one["rms"], rel=1e-12)
        assert row["max_abs"] == pytest.approx(one["max_abs"], rel=1e-12)
        assert row["zeros"] == pytest.approx(one["sparsity"], abs=1e-12)


def check_compare(spec, run, other):
    found = sonde.compare(run, other)
    assert (spec["verdict"], spec["headline"]) == (found.verdict, found.headline)
    far = found.farthest(3)
    assert [row["w1"] for row in spec["farthest"][:3]] == [row["w1"] for row in far]


def check_paired_heat(spec, run, other):
    drawn = meshes(run.plot.compare(other, kind="output"))
    for mesh, name in zip(drawn, ("a", "b", "difference"), strict=True):
        assert np.array_equal(mesh, numbers_of(spec[name]), equal_nan=True), name


def check_paired_section(spec, run, other):
    figure = run.plot.compare(other, site="down", kind="output", step=6)
    outlines = figure.axes[0].patches[::2]
    assert [is_outline(p, spec[name]) for p, name in zip(outlines, "ab", strict=True)] == [True] * 2


PYTHON = {
    "heat": check_heat,
    "kymograph": check_kymograph,
    "section": check_section,
    "lines": check_lines,
    "spark": check_spark,
    "clock": check_clock,
    "level": check_level,
    "table": check_table,
    "compare": check_compare,
    "paired_heat": check_paired_heat,
    "paired_section": check_paired_section,
}
NOT_DRAWN = {"run", "tree", "panel", "search", "variable", "tint", "movers"}
"""Lists and texts: no figure shows them."""


# -- the three ways to a page ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    write(folder / "a", is_traced=True)
    write(folder / "b", scale=3.0)
    return sonde.open(folder / "a"), sonde.open(folder / "b")


@pytest.fixture(scope="module")
def page(pair):
    """`page(view)` is the answer that the page gets, by the way of the server's worker."""
    desk = OpenRuns(str(pair[0].path).rpartition("/")[0])
    ids = {run.name: run.id for run in desk.shelf.runs()}

    def ask(view):
        pairs = [("run", ids["a"]), *QUESTIONS[view].items()]
        if ROUTES[view].of_several:
            pairs.append(("other", ids["b"]))
        _, body = answer(desk, {"view": view, "run": ids["a"], "question": pairs})
        return envelope.unpack(body), parse(ROUTES[view].question, pairs)

    return ask


@pytest.fixture(scope="module")
def report(pair):
    return answers_of(blocks_of(make(pair[0], compare_with=pair[1])[0]))


LOOSE = {"asked", "last_seen_ms"}
"""What was asked for, and the time."""


def same(a, b):
    """Whether two specs are equal, to the bit."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[k], b[k]) for k in a if k not in LOOSE)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return a == b


def found_in(answers, view, question):
    key = tuple(map(str, key_of(view, question)))
    wanted = getattr(question, "step", None)
    some = [(step, spec) for v, k, step, spec in answers if v == view and k == key]
    assert some, f"{view} is not there"
    if wanted is None:  # the last one, as on the page
        return max(some, key=lambda one: -1 if one[0] is None else one[0])[1]
    return next(spec for step, spec in some if step == wanted)


def test_every_view_has_a_golden():
    views = {name for name, route in ROUTES.items() if route.of_run}
    assert set(QUESTIONS) == views
    assert PYTHON.keys() | NOT_DRAWN == views
    assert not PYTHON.keys() & NOT_DRAWN


@pytest.mark.parametrize("view", QUESTIONS)
def test_page_report_widget_and_figure_hold_the_same_numbers(page, report, pair, view):
    pytest.importorskip("anywidget")
    served, question = page(view)
    held = found_in(report, view, question)
    assert (held["version"], held["api"]) == (served["version"], served["api"])
    widget = WIDGETS.get(view, WIDGETS["heat"])(*pair)
    sent = found_in(answers_of(widget.get_state()["_archive"]), view, question)
    assert same(held["spec"], served["spec"])
    assert same(sent["spec"], served["spec"])
    if view in PYTHON:
        PYTHON[view](served["spec"], *pair)
    plt.close("all")


@pytest.mark.parametrize("stat", ["mean", "sparsity", "p90", "underflow_e4m3"])
def test_a_figure_has_every_statistic_of_the_page(pair, page, stat, monkeypatch):
    monkeypatch.setitem(QUESTIONS["heat"], "stat", stat)
    (drawn,) = meshes(pair[0].plot.heatmap("output", stat))
    assert np.array_equal(drawn, numbers_of(page("heat")[0]["spec"]), equal_nan=True)


def test_distances_of_two_runs_are_those_of_the_page(pair, page, monkeypatch):
    monkeypatch.setitem(QUESTIONS["paired_heat"], "measure", "distance")
    drawn = meshes(pair[0].plot.compare(pair[1], kind="output", measure="distance"))
    spec = page("paired_heat")[0]["spec"]
    assert np.array_equal(drawn[2], numbers_of(spec["difference"]), equal_nan=True)


def test_several_runs_are_small_multiples(pair):
    drawn = meshes(sonde.plot.compare(pair[0], pair[1], pair[0], kind="output"))
    assert len(drawn) == 3
    assert not np.nan_to_num(drawn[2]).any()  # the run and itself
    plt.close("all")


@pytest.mark.parametrize(
    ("axis", "label"), [("time", r"wall time \((s|min|h)\)"), ("epoch", "epoch")]
)
def test_every_figure_over_time_takes_another_axis(pair, axis, label):
    run, other = pair
    for figure in (
        run.plot.heatmap("output", axis=axis),
        run.plot.lines("rms", site="down", kind="output", axis=axis),
        run.plot.kymograph("down", kind="output", axis=axis),
        run.plot.compare(other, kind="output", axis=axis),
    ):
        assert re.fullmatch(label, figure.axes[0].get_xlabel())
    with pytest.raises(sonde.SondeError, match="No scalar `tokens` was logged"):
        run.plot.heatmap("output", axis="tokens")
    plt.close("all")
