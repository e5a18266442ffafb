"""Figures and widgets of LogFrames under tandv's names, and faults that they do not have."""

import re

import numpy as np
import pytest

from sonde.compat.tandv import viz
from sonde.compat.tandv.track.common import TrainingStats
from sonde.compat.tandv.viz import FacetException, QueryException
from sonde.logframe import describe
from sonde.store.reading.run import open_run

pd = pytest.importorskip("pandas")
mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")

LAYERS, STEPS = ("fc'1", "fc2", "output"), 6


def values(layer, step, tensor_type="Activation"):
    i = LAYERS.index(layer)
    seed = 100 * i + step + (1000 if tensor_type == "Gradient" else 0)
    return np.random.default_rng(seed).normal(size=64) * 4.0**i


def make_frame(dtype="float8_e4m3fn", *, doubled=False, make=values):
    rows = []
    for step in range(STEPS):
        for layer in LAYERS * (2 if doubled else 1):
            for tensor_type in ("Activation", "Gradient"):
                found = describe(make(layer, step, tensor_type))
                counts = dict(
                    zip([-np.inf, *range(-16, 17), np.inf], found["exp_hist"]["hist"], strict=True)
                )
                meta = {"name": layer, "type": "", "tensor_type": tensor_type, "step": step}
                groups = {
                    "metadata": {**meta, "dtype": dtype},
                    "scalar_stats": {**found["scalar_stats"], "l2": float(step)},
                    "exponent_counts": counts,
                }
                rows.append({(g, k): v for g, held in groups.items() for k, v in held.items()})
    frame = pd.DataFrame(rows)
    frame.columns = pd.MultiIndex.from_tuples(frame.columns)
    return frame


@pytest.fixture(scope="module")
def df():
    return make_frame()


@pytest.fixture(autouse=True)
def _closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def shown(ax):
    return {round(b.get_x() + b.get_width() / 2): b.get_height() for b in ax.patches}


@pytest.mark.parametrize("layer", LAYERS)
def test_tv_16_bars_are_shares_by_power_of_two(df, layer):
    (ax,) = viz.exp_hist(df, layer, "Activation", 2).axes
    exponents = np.floor(np.log2(np.abs(values(layer, 2)))).astype(int)
    expected = {int(n): np.mean(exponents == n) for n in np.unique(exponents)}
    assert {n: h for n, h in shown(ax).items() if h} == pytest.approx(expected)


def test_tv_16_limits_of_formats_stand_between_the_columns_that_they_part(df):
    (ax,) = viz.exp_hist(df, "output", "Activation", 0, dtype_annotation=["float8_e4m3fn"]).axes
    lines = {line.get_linestyle(): line.get_xdata()[0] for line in ax.lines}
    assert lines == {"-": 8.5, "--": -6.5, ":": -9.5}, "448, 2**-6 and 2**-9"
    (ax,) = viz.exp_hist(df, "output", "Activation", 0, dtype_info=(False, True, False)).axes
    assert [line.get_linestyle() for line in ax.lines] == ["--"]
    (ax,) = viz.exp_hist(df, "output", "Activation", 0, dtype_annotation=False).axes
    assert not ax.lines


def test_tv_16_values_beyond_the_columns_are_shown(df):
    def make(layer, step, _kind):
        return np.array([2.0**-30, 2.0**30, 1.0, 1.0])

    (ax,) = viz.exp_hist(make_frame(make=make), "output", "Activation", 0).axes
    assert {n: h for n, h in shown(ax).items() if h} == {-18: 0.25, 0: 0.5, 16: 0.25}
    assert {"-inf", "+inf"} <= {text.get_text() for text in ax.texts}


@pytest.mark.parametrize("kind", ["line", "kde"])
def test_tv_16_lines_and_densities_cover_the_same_values(df, kind):
    figure = viz.exp_hist(
        df,
        "output",
        "Activation",
        0,
        kind,
        dtype_annotation=False,
        fig_title="a",
        figsize=(5, 4),
        xtick_labelsize=6,
        xtick_rotation=30,
        legend_kws={"loc": "best"},
    )
    x, y = figure.axes[0].lines[0].get_data()
    area = y.sum() if kind == "line" else np.trapezoid(y, x)
    assert area == pytest.approx(1, abs=0.01)
    assert tuple(figure.get_size_inches()) == (5, 4)


def test_tv_16_panels_are_for_layers_or_for_types(df):
    by_layer = viz.exp_hist(df, list(LAYERS), "Activation", 0, col_wrap=2)
    assert sum(ax.get_visible() for ax in by_layer.axes) == 3
    by_pattern = viz.exp_hist(df, re.compile("fc"), "Activation", 0)
    assert len(by_pattern.axes) == 2
    by_type = viz.exp_hist(df, "fc2", None, 0)
    assert len(by_type.axes) == 2


@pytest.mark.parametrize("kind", ["line", "scatter"])
def test_tv_17_lines_hold_the_numbers_of_the_frame(df, kind):
    figure = viz.scalar_line(df, ["fc2", "output"], "Activation", ["rm2", "l2"], kind=kind)
    for ax, layer in zip(figure.axes, ("fc2", "output"), strict=True):
        rms, own = (line.get_ydata() for line in ax.lines[::2])
        expected = [np.sqrt(np.mean(values(layer, step) ** 2)) for step in range(STEPS)]
        assert np.allclose(rms, expected, rtol=1e-6)
        assert list(own) == list(range(STEPS)), "also of columns that only this frame has"


@pytest.mark.parametrize("doubled", [False, True])
def test_tv_18_the_heatmap_has_a_row_for_each_layer(doubled):
    """tandv raises where a step has two rows of one layer."""
    frame = make_frame(doubled=doubled)
    figure = viz.scalar_global_heatmap(frame, "Activation", "rm2", inc=2)
    shown = np.ma.filled(figure.axes[0].collections[0].get_array(), np.nan).reshape(3, 3)
    expected = [[np.sqrt(np.mean(values(n, s) ** 2)) for s in (0, 2, 4)] for n in LAYERS]
    assert np.allclose(shown, expected, rtol=1e-6)


def test_tv_19_what_cannot_be_drawn_is_an_error_by_its_name(df):
    with pytest.raises(FacetException):
        viz.exp_hist(df, list(LAYERS), None, 0)
    with pytest.raises(QueryException, match="layer 'nowhere'"):
        viz.exp_hist(df, "nowhere", "Activation", 0)
    with pytest.raises(QueryException, match="has no `rm3`"):
        viz.scalar_line(df, "fc2", "Activation", "rm3")
    with pytest.raises(ValueError, match="`kind` must be"):
        viz.exp_hist(df, "fc2", "Activation", 0, kind="pie")
    with pytest.raises(ValueError, match="`kind` must be"):
        viz.scalar_line(df, "fc2", "Activation", "rm2", kind="pie")
    with pytest.raises(ValueError, match="`inc` must be at least 1"):
        viz.scalar_global_heatmap(df, "Activation", "rm2", inc=0)
    with pytest.raises(NotImplementedError):
        viz.scalar_global_heatmap(df, None, "rm2")


def test_tv_19_without_a_metric_all_are_drawn(df):
    """tandv raises AttributeError."""
    (ax,) = viz.scalar_line(df, "fc2", "Activation").axes
    assert len(ax.lines) == 2 * df["scalar_stats"].shape[1]


def test_types_as_the_document_spells_them_are_understood(df):
    frame = df.copy()
    kinds = {"Activation": "Weights", "Gradient": "Optimiser_State.exp_avg"}
    frame["metadata", "tensor_type"] = frame["metadata", "tensor_type"].map(kinds)
    assert viz.scalar_line(frame, "fc2", "Weight", "rm2").axes
    assert viz.scalar_line(frame, "fc2", "Optimiser_State", "rm2").axes


@pytest.fixture
def opened(monkeypatch):
    """Runs that widgets were made of."""
    from sonde.notebook import frames

    found = []
    monkeypatch.setattr(frames, "open_run", lambda path: found.append(open_run(path)) or found[-1])
    return found


def test_tv_20_each_figure_has_a_widget_and_nothing_else_has(df, opened):
    for f, options in (
        (viz.exp_hist, {"layer": "fc2", "tt": "Activation", "step": 1}),
        (viz.scalar_line, {"layer": "fc2", "tt": "Activation", "scalar_metric": "rm2"}),
        (viz.scalar_global_heatmap, {"tt": "Gradient", "scalar_metric": "rm2"}),
    ):
        widget = viz.interactive(f, df=df, width=900, mouse_sensitivity=1, **options)
        assert widget.address.startswith("#/")
        widget.close()
    assert len(opened) == 3
    with pytest.raises(ValueError, match="`f` must be one of"):
        viz.interactive(print, df=df)


@pytest.mark.parametrize("as_dict", [True, False])
def test_tv_23_losses_are_scalars_of_the_widgets_run(df, opened, as_dict):
    """tandv refuses a dict, and losses of other steps than those logged."""
    given = {"steps": [0, 1, 2, 99], "train_loss": [3.0, 2.0, 1.0, 0.5]}
    stats = given if as_dict else TrainingStats(**given)
    viz.interactive(
        viz.exp_hist, train_stats=stats, df=df, layer="fc2", tt="Activation", step=0
    ).close()
    found = opened[0].scalars("train_loss")
    assert dict(zip(found["step"], found["value"], strict=True)) == dict(
        zip(given["steps"], given["train_loss"], strict=True)
    )


def test_tv_23_a_heatmap_says_what_becomes_of_losses(df, opened):
    with pytest.warns(UserWarning, match="here they are the timeline"):
        viz.interactive(
            viz.scalar_global_heatmap,
            train_stats={"steps": [0], "train_loss": [1.0]},
            df=df,
            tt="Activation",
            scalar_metric="mean_abs",
        ).close()
    assert list(opened[0].scalars("train_loss")["value"]) == [1.0]
