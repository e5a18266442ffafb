"""One golden test per view: what the page gets over the wire is what matplotlib draws.

`BROUGHT` is how a spec reaches whoever draws it. A report and a widget get the same bytes: add the
way they take here, and every view is compared with it.
"""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from told import asked, recorded

import sonde
from sonde.store import open_run
from sonde.views import envelope
from sonde.views.answers import ANSWERS_OF_SEVERAL
from sonde.views.questions import parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.runs.several import SeveralRuns

mpl.use("Agg")

SITE = "h.1.mlp/output/0"


def over_the_wire(view, spec, run):
    """As the page gets it: packed, sent, unpacked."""
    return envelope.unpack(envelope.pack(view, spec, run.state())[1])["spec"]


BROUGHT = {"page": over_the_wire}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    recorded(folder / "a", range(12))
    recorded(folder / "b", range(0, 12, 2))
    opened = [OpenedRun(open_run(folder / name, frame="arrow"), name) for name in ("a", "b")]
    yield opened
    for one in opened:
        one.run.close()


@pytest.fixture(params=BROUGHT)
def bring(request):
    return BROUGHT[request.param]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


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


@pytest.mark.parametrize("stat", ["rms", "mean", "sparsity", "p90", "underflow_e4m3"])
def test_the_heatmap(pair, bring, stat):
    run = pair[0]
    spec = bring("heat", asked(run, "heat", kind="output", stat=stat, columns=512), run)
    (drawn,) = meshes(sonde.plot.heatmap(run.run, "output", stat))
    assert np.array_equal(drawn, numbers_of(spec), equal_nan=True)


def test_the_kymograph(pair, bring):
    run = pair[0]
    asked_for = {"site": SITE, "columns": 512, "cells": 96}
    spec = bring("kymograph", asked(run, "kymograph", **asked_for), run)
    (drawn,) = meshes(sonde.plot.kymograph(run.run, SITE))
    density = np.asarray(spec["density"], np.float64).reshape(-1, 96).T.reshape(-1)
    assert np.array_equal(np.nan_to_num(drawn), density)


def test_the_histogram(pair, bring):
    run = pair[0]
    spec = bring("section", asked(run, "section", site=SITE, step=3, scale="linear"), run)
    heights, edges, _ = sonde.plot.histogram(run.run, SITE, step=3).axes[0].patches[0].get_data()
    assert np.array_equal(edges, spec["edges"])
    assert np.allclose(heights, spec["counts"] / spec["total"] / np.diff(spec["edges"]), rtol=1e-12)


def test_the_exponents(pair, bring):
    run = pair[0]
    spec = bring("section", asked(run, "section", site=SITE, step=3), run)
    bars = sonde.plot.exponents(run.run, SITE, step=3).axes[0].patches
    drawn = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in bars}
    shares = np.asarray(spec["exponent_counts"]) / spec["total"]
    assert drawn == dict(zip(np.asarray(spec["exponents"]).tolist(), shares, strict=True))


def test_the_lines(pair, bring):
    run = pair[0]
    spec = bring("lines", asked(run, "lines", name="loss", phase="train"), run)
    (line, *_) = sonde.plot.lines(run.run, "loss", phase="train").axes[0].lines
    assert np.array_equal(line.get_ydata(), spec["mean"], equal_nan=True)


def test_lines_of_a_statistic(pair, bring):
    run = pair[0]
    spec = bring("heat", asked(run, "heat", kind="output", stat="rms"), run)
    row = [r["site"] for r in spec["rows"]].index(SITE)
    wide = len(spec["columns"]["first"])
    figure = sonde.plot.lines(run.run, "rms", site="h.1.mlp", kind="output")
    drawn = figure.axes[0].lines[0].get_ydata()
    expected = numbers_of(spec)[row * wide : (row + 1) * wide]
    assert np.array_equal(drawn, expected, equal_nan=True)


def test_the_graph(pair, bring):
    run = pair[0]
    spec = bring("level", asked(run, "level"), run)
    texts = [t.get_text() for t in sonde.plot.graph(run.run).axes[0].texts if t.get_text()]
    assert len(texts) == len(spec["nodes"])
    for node, text in zip(spec["nodes"], texts, strict=True):
        assert text.startswith(node["label"][:12])


def two(pair, view, **question):
    pairs = [("run", "a"), ("other", "b"), *((k, str(v)) for k, v in question.items())]
    runs = SeveralRuns({"a": pair[0], "b": pair[1]}.get)
    return ANSWERS_OF_SEVERAL[view](runs, parse(ROUTES[view].question, pairs))


@pytest.mark.parametrize("measure", ["ratio", "distance"])
def test_two_runs(pair, bring, measure):
    spec = bring(
        "paired_heat",
        two(pair, "paired_heat", kind="output", measure=measure, columns=512),
        pair[0],
    )
    figure = sonde.plot.compare(pair[0].run, pair[1].run, kind="output", measure=measure)
    drawn = meshes(figure)
    for mesh, name in zip(drawn, ("a", "b", "difference"), strict=True):
        assert np.array_equal(mesh, numbers_of(spec[name]), equal_nan=True), name


def test_histograms_of_two_runs(pair, bring):
    spec = bring("paired_section", two(pair, "paired_section", site=SITE, step=4), pair[0])
    figure = sonde.plot.compare(pair[0].run, pair[1].run, site=SITE, step=4)
    outlines = figure.axes[0].patches[::2]
    for patch, name in zip(outlines, ("a", "b"), strict=True):
        heights, edges, _ = patch.get_data()
        part = spec[name]
        assert np.array_equal(edges, part["edges"])
        expected = part["counts"] / part["total"] / np.diff(part["edges"])
        assert np.allclose(heights, expected, rtol=1e-12)


def test_several_runs_are_small_multiples(pair):
    figure = sonde.plot.compare(pair[0].run, pair[1].run, pair[0].run, kind="output")
    drawn = meshes(figure)
    assert len(drawn) == 3
    assert not np.nan_to_num(drawn[2]).any()  # the run and itself
