"""One spec for each view: page, report, widget and figure show the same numbers."""

import matplotlib as mpl
import numpy as np
import pytest
from archived import answers_of, blocks_of
from small_run import STEPS

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
    "tree": {},
    "level": {},
    "panel": {"module": "down"},
    "movers": {"kind": "output", "stat": "rms"},
    "lines": {"name": "loss", "columns": "2048"},
    "heat": {"kind": "output", "stat": "rms", "columns": "2048"},
    "kymograph": {"site": SITE, "columns": "512"},
    "section": {"site": SITE, "step": "3"},
    "tint": {"kind": "output", "stat": "rms", "columns": "64"},
}


@pytest.fixture(scope="module")
def page(run):
    """`page(view)` is the answer that the page gets, by the way of the server's worker."""
    desk = OpenRuns(run.path)
    run_id = desk.shelf.runs()[0].id

    def ask(view):
        pairs = [("run", run_id), *QUESTIONS[view].items()]
        _, body = answer(desk, {"view": view, "run": run_id, "question": pairs})
        return envelope.unpack(body), parse(ROUTES[view].question, pairs)

    return ask


@pytest.fixture(scope="module")
def report(run):
    return answers_of(blocks_of(make(run)[0]))


def same(a, b):
    """Whether two specs are equal, to the bit."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(same(a[k], b[k]) for k in a if k not in LOOSE)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return a == b


LOOSE = {"asked", "last_seen_ms"}
"""What was asked for, and the time."""


def found_in(answers, view, question):
    key = tuple(map(str, key_of(view, question)))
    wanted = getattr(question, "step", None)
    some = [(step, spec) for v, k, step, spec in answers if v == view and k == key]
    assert some, f"{view} is not there"
    if wanted is None:  # the last one, as on the page
        return max(some, key=lambda one: -1 if one[0] is None else one[0])[1]
    return next(spec for step, spec in some if step == wanted)


@pytest.mark.parametrize("view", QUESTIONS)
def test_the_report_has_the_specs_of_the_page(page, report, view):
    served, question = page(view)
    held = found_in(report, view, question)
    assert same(held["spec"], served["spec"])
    assert held["version"] == served["version"]
    assert held["api"] == served["api"]


def test_the_figures_have_the_specs_of_the_page(page, run):
    heat = page("heat")[0]["spec"]
    mesh = run.plot.heatmap("output", "rms", columns=2048).axes[0].collections[0]
    drawn = np.ma.filled(mesh.get_array(), np.nan).reshape(3, STEPS)
    wanted = np.where(heat["flags"] == 1, heat["values"], np.nan).reshape(3, STEPS)
    assert np.array_equal(drawn, wanted.astype(float), equal_nan=True)

    section = page("section")[0]["spec"]
    bars = run.plot.exponents("down", step=3).axes[0].patches
    shown = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in bars}
    for n, count in zip(section["exponents"], section["exponent_counts"], strict=True):
        assert shown[int(n)] == pytest.approx(count / section["total"])

    line = run.plot.lines("loss").axes[0].lines[0]
    lines = page("lines")[0]["spec"]
    values = dict(zip(lines["first"], lines["mean"], strict=True))
    pairs = [(x, y) for x, y in zip(*line.get_data(), strict=True) if np.isfinite(y)]
    assert len(pairs) >= STEPS - 1
    assert all(values[x] == y for x, y in pairs)
    plt.close("all")


WIDGETS = {
    "heat": lambda run: run.view.heatmap("output", live=False),
    "lines": lambda run: run.view.lines("loss", live=False),
    "kymograph": lambda run: run.view.kymograph("down", kind="output", live=False),
    "section": lambda run: run.view.exponents("down", kind="output", step=3, live=False),
    "level": lambda run: run.view.graph(live=False),
    "tint": lambda run: run.view.graph(live=False),
}


@pytest.mark.parametrize("view", [*WIDGETS, "run", "tree", "spark", "movers"])
def test_the_widget_has_the_specs_of_the_page(page, run, view):
    pytest.importorskip("anywidget")
    served, question = page(view)
    widget = WIDGETS.get(view, WIDGETS["heat"])(run)
    held = found_in(answers_of(widget.get_state()["_archive"]), view, question)
    assert same(held["spec"], served["spec"])
