"""The calls of the document of Track & Visualize, section by section, on the drop-in."""

from urllib.parse import parse_qs

import numpy as np
import pytest
import torch
from torch import nn

from sonde.compat.tandv import viz
from sonde.compat.tandv.track.common import TrainingStats, read_pickle
from sonde.compat.tandv.track.torch import track

pd = pytest.importorskip("pandas")
mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")

STEPS = 6


class Net(nn.Module):
    """Names as in the document: `output`, `layers.3.attention.wq`, `layers.5.feed_forward.w1`."""

    def __init__(self):
        super().__init__()
        block = nn.ModuleDict(
            {
                "attention": nn.ModuleDict({"wq": nn.Linear(6, 6), "wk": nn.Linear(6, 6)}),
                "feed_forward": nn.ModuleDict({"w1": nn.Linear(6, 6), "w2": nn.Linear(6, 6)}),
            }
        )
        self.layers = nn.ModuleDict({"3": block})
        self.output = nn.Linear(6, 2)

    def forward(self, x):
        block = self.layers["3"]
        x = block["attention"]["wq"](x) * block["attention"]["wk"](x)
        return self.output(block["feed_forward"]["w2"](block["feed_forward"]["w1"](x).relu()))


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Section "PyTorch": the loop of the document. Also the activations of `output` by step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tandv"))
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        outputs, losses = [], []
        with track(module=model, optimizer=optimizer) as tracker:
            for _ in range(STEPS):
                y = model(torch.randn(8, 6))
                loss = y.square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                tracker.step()
                outputs.append(y.detach().double().numpy())
                losses.append(float(loss))
    return tracker, outputs, losses


@pytest.fixture
def df(tracked):
    return read_pickle(tracked[0].out_path)


@pytest.fixture
def tstats(tracked):
    return TrainingStats(steps=list(range(STEPS)), train_loss=tracked[2])


@pytest.fixture(autouse=True)
def _closed():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def line_of(widget):
    return parse_qs(widget.address.partition("?")[2])["line"][0]


def close(widget):
    for each in widget.children:
        each.close()


def rows(df, name, tensor_type, step=None):
    meta = df["metadata"]
    chosen = (meta["name"] == name) & (meta["tensor_type"] == tensor_type)
    return df[chosen if step is None else chosen & (meta["step"] == step)]


def test_tandv_track_pytorch(tracked, df):
    _, outputs, _ = tracked
    assert sorted(set(df["metadata", "step"])) == list(range(STEPS))
    assert set(df["metadata", "tensor_type"]) == {
        *("Activation", "Gradient", "Weights", "Weight_Gradients"),
        *("Optimiser_State.exp_avg", "Optimiser_State.exp_avg_sq"),
    }
    for step, y in enumerate(outputs):
        (found,) = rows(df, "output", "Activation", step)["scalar_stats", "rm2"]
        assert found == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-6)


def test_tandv_viz_static_visualization(tracked, df):
    fig = viz.exp_hist(df=df, layer="output", tt="Activation", step=3)
    (ax,) = fig.axes
    bars = {round(b.get_x() + b.get_width() / 2): b.get_height() for b in ax.patches}
    exponents = np.floor(np.log2(np.abs(tracked[1][3]))).astype(int).ravel()
    assert sum(bars.values()) == pytest.approx(1)
    for n in np.unique(exponents):
        assert bars[n] == pytest.approx(np.mean(exponents == n))


def test_tandv_viz_interactive_scalar_line(df):
    widget = viz.interactive(
        f=viz.scalar_line,
        df=df,
        tt="Activation",
        layer="output",
        col_wrap=3,
        scalar_metric=["rm2", "min_abs"],
    )
    assert [line_of(each) for each in widget.children] == ["output/rm2", "output/min_abs"]
    close(widget)


def test_tandv_viz_interactive_scalar_global_heatmap(df):
    widget = viz.interactive(
        f=viz.scalar_global_heatmap,
        df=df,
        tt="Activation",
        col_wrap=3,
        scalar_metric="rm2",
        inc=2,
    )
    assert "kind=output" in widget.address
    assert "stat=rm2" in widget.address
    widget.close()


def test_tandv_viz_interactive_exp_hist(df):
    widget = viz.interactive(
        f=viz.exp_hist, df=df, layer="output", tt="Activation", step=3, col_wrap=3
    )
    assert "step=3" in widget.address
    widget.close()


def test_tandv_cross_referencing_scalar_line(df, tstats):
    widget = viz.interactive(
        viz.scalar_line,
        train_stats=tstats,
        df=df,
        layer=[n for n in df.metadata.name.unique().tolist() if "layers.3.attention.w" in n],
        tt="Gradient",
        scalar_metric=["std", "rm2"],
        col_wrap=3,
    )
    layers = ("layers.3.attention.wk", "layers.3.attention.wq")
    assert [line_of(each) for each in widget.children] == [
        f"{layer}/{metric}" for layer in layers for metric in ("std", "rm2")
    ]
    close(widget)


def test_tandv_cross_referencing_exp_hist(df, tstats):
    widget = viz.interactive(
        viz.exp_hist,
        train_stats=tstats,
        df=df,
        layer=[n for n in df.metadata.name.unique().tolist() if "layers.3.feed_forward.w" in n],
        tt="Activation",
        step=0,
        dtype_annotation="float8_e4m3fn",
        col_wrap=3,
    )
    assert len(widget.children) == 2
    for each in widget.children:
        assert "step=0" in each.address, "the first step can be asked for, too"
    close(widget)


def test_tandv_required_log_schema(df):
    assert list(df.columns[:5]) == [
        ("metadata", name) for name in ("name", "type", "tensor_type", "step", "dtype")
    ]
    assert set(df["metadata", "dtype"]) == {"float32"}
    assert df["metadata", "step"].dtype.kind == "i"
    counts = df["exponent_counts"]
    assert list(counts.columns) == [-np.inf, *range(-16, 17), np.inf]
    assert all(kind.kind == "i" for kind in counts.dtypes)
    numbers = [c for c in df.columns if c[0] == "scalar_stats"]
    assert [c[1] for c in numbers][:8] == [
        *("mean", "std", "mean_abs", "max_abs", "min_abs", "rm2", "rm4", "rm8")
    ]
