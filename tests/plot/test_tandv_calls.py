"""What the document of Track & Visualize draws has its equal: the calls side by side."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
from small_run import PATHS, STEPS, values

import sonde
from sonde.logframe import to_run, write

mpl.use("Agg")


@pytest.fixture(scope="module")
def imported(run, tmp_path_factory):
    """The steps: `read_pickle(path)`, here by any file; then the run that it was made of."""
    folder = tmp_path_factory.mktemp("logframe")
    write(run.to_logframe(), folder / "numerics.parquet")
    frame = sonde.read_logframe(folder / "numerics.parquet")
    return sonde.open(to_run(frame, folder / "run"))


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("which", ["run", "imported"])
def test_exp_hist_is_exponents(request, which):
    """`viz.exp_hist(df=df, layer="output", tt="Activation", step=100, dtype_annotation=...)`"""
    found = request.getfixturevalue(which)
    figure = found.plot.exponents("act", kind="output", step=3, formats=["float8_e4m3fn"], wrap=3)
    bars = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in figure.axes[0].patches}
    exponents = np.floor(np.log2(np.abs(values(1, 3)))).astype(int)
    for n in np.unique(exponents):
        assert bars[int(n)] == pytest.approx(np.mean(exponents == n))


@pytest.mark.parametrize("which", ["run", "imported"])
def test_scalar_line_is_lines_of_a_site(request, which):
    """`viz.scalar_line(df=df, tt="Activation", layer="output", scalar_metric=["rm2", ...])`"""
    found = request.getfixturevalue(which)
    figure = found.plot.lines(["rm2", "min_abs"], site=["up", "act"], kind="output", wrap=3)
    rms, least = figure.axes[:2]
    for i in range(2):
        expected = [np.sqrt(np.mean(values(i, s) ** 2)) for s in range(STEPS)]
        assert np.allclose(rms.lines[2 * i].get_ydata(), expected, rtol=1e-5)
        expected = [np.abs(values(i, s)).min() for s in range(STEPS)]
        assert np.allclose(least.lines[2 * i].get_ydata(), expected, rtol=1e-5)


@pytest.mark.parametrize("which", ["run", "imported"])
def test_scalar_global_heatmap_is_heatmap(request, which):
    """`viz.scalar_global_heatmap(df=df, tt="Activation", scalar_metric="rm2", inc=50)`"""
    found = request.getfixturevalue(which)
    figure = found.plot.heatmap("output", "rm2", columns=50)
    shown = np.ma.filled(figure.axes[0].collections[0].get_array(), np.nan)
    assert shown.size == len(PATHS) * STEPS


def test_training_statistics_are_lines_of_the_run(run):
    """`interactive(scalar_line, train_stats=tstats, ...)`: the loss above the statistics."""
    figure, axes = plt.subplots(2, 1, sharex=True)
    run.plot.lines("loss", ax=axes[0])
    run.plot.lines("std", site="down", kind="output", ax=axes[1])
    assert all(ax.lines for ax in figure.axes)
