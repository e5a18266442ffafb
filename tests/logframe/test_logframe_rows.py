"""What a LogFrame holds of one array, of a metric and under short names; its rows and its specs."""

import gzip

import numpy as np
import pytest

import sonde
from sonde import SondeError
from sonde.kernels.reference import sketch
from sonde.logframe import describe, figures, of_run, to_run
from sonde.logframe.selection import NoRowsError, metrics_of, rows_of, split
from sonde.record import NumberBatch, Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.store import Writer

pd = pytest.importorskip("pandas")

SITES = [
    Site("", "output"),
    Site("fc", "output"),
    Site("fc", "param", 0, "weight"),
    Site("fc", "param", 0, "bias"),
]


def values(i, step):
    return np.random.default_rng(10 * i + step).normal(size=40) * 2.0**i


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "run"
    with Writer(path, compact=False) as writer:
        writer.sites([SiteInfo(i, s, "float16", (40,), "Linear") for i, s in enumerate(SITES)])
        for step in range(3):
            rows = concatenate([sketch(values(i, step)).columns() for i in range(len(SITES))])
            writer.sketches(SketchBatch(step, "train", np.arange(len(SITES), dtype=np.int32), rows))
            names, numbers = ["stash/l2", "param/weight/stash/l2"], np.array([step, 10.0 + step])
            writer.numbers(NumberBatch(step, "train", names, ["fc", "fc"], numbers))
    return sonde.open(path)


def test_numbers_of_a_metric_are_columns_at_the_tensors_that_they_are_of(run):
    frame = of_run(run, metric="stash")
    found = frame.set_index([("metadata", "name"), ("metadata", "step")])["scalar_stats", "l2"]
    assert [found["fc", step] for step in range(3)] == [0.0, 1.0, 2.0]
    assert [found["fc.weight", step] for step in range(3)] == [10.0, 11.0, 12.0]
    assert found["fc.bias"].isna().all()
    assert "l2" not in of_run(run)["scalar_stats"]


def test_short_names_are_those_of_track_and_visualize(run):
    assert set(of_run(run, short_names=True)["metadata", "name"]) == {"", "fc", "fc.bias"}


@pytest.mark.parametrize("x", [np.zeros(5), np.array([1.0, np.nan, np.inf, 0.0]), np.ones(0)])
def test_odd_arrays_are_described(x):
    found = describe(x, min_exp=-3, max_exp=3)
    stats = found["scalar_stats"]
    assert stats["zeros"] + stats["nans"] + sum(found["exp_hist"]["hist"]) == len(x)
    assert len(found["exp_hist"]["bins"]) == len(found["exp_hist"]["hist"]) == 9


@pytest.mark.parametrize("exponents", ["frexp", "floor"])
def test_a_cross_section_counts_powers_of_two_in_either_convention(run, exponents):
    frame = of_run(run, exponents=exponents, min_exp=-2, max_exp=1)
    rows = rows_of(frame, "fc", "Activation", 1)
    spec = figures.cross_section(rows, True)
    x = np.floor(np.log2(np.abs(values(1, 1))))
    low, high = (-4, 1) if exponents == "frexp" else (-3, 2)
    expected = {n: float((np.clip(x, low, high) == n).sum()) for n in range(low, high + 1)}
    found = dict(zip(spec.exponents.tolist(), spec.exponent_counts, strict=True))
    assert {n: c for n, c in found.items() if c} == {n: c for n, c in expected.items() if c}
    assert dict(figures.ends(rows)) == {
        at: name for at, name in ((low, "-inf"), (high, "+inf")) if expected[at]
    }
    assert [form.name for form in spec.formats] == ["float16"]


def test_rows_are_chosen_and_split_and_what_is_not_there_is_named(run):
    frame = of_run(run)
    assert [name for name, _ in split(rows_of(frame, None, "Weight"), "name")] == [
        *("fc.bias", "fc.weight")
    ]
    assert sorted(set(rows_of(frame, "fc", "Activation", every=2)["metadata", "step"])) == [0, 2]
    with pytest.raises(NoRowsError, match="layer 'gone'"):
        rows_of(frame, "gone", "Activation")
    with pytest.raises(NoRowsError, match="no `gone`"):
        metrics_of(frame, "gone")


def test_a_heatmap_tells_missing_cells_from_numbers_that_are_not_finite(run):
    frame = of_run(run)
    frame.loc[frame["metadata", "step"] == 1, ("scalar_stats", "rm2")] = np.nan
    gone = (frame["metadata", "step"] == 2) & (frame["metadata", "name"] == "fc")
    spec = figures.heat(rows_of(frame[~gone], None, "Activation"), "rm2")
    assert [row.label for row in spec.rows] == [".", "fc"]
    assert spec.flags.reshape(2, 3).tolist() == [[1, 2, 1], [1, 2, 0]]


def test_scalars_go_along_into_the_run_of_a_frame(run, tmp_path):
    path = to_run(of_run(run), tmp_path / "run", scalars={"loss": {0: 3.0, 2: 1.0}})
    found = sonde.open(path).scalars("loss")
    assert dict(zip(found["step"], found["value"], strict=True)) == {0: 3.0, 2: 1.0}


def test_rows_of_one_tensor_and_step_merge_in_the_run_of_a_frame(run, tmp_path):
    frame = of_run(run)
    path = to_run(pd.concat([frame, frame]), tmp_path / "run")
    assert sonde.open(path).sketch("fc/output/0", step=1).count == 80


def test_open_and_packed_files_are_read(run, tmp_path):
    frame = of_run(run)
    frame.to_pickle(tmp_path / "plain")
    packed = tmp_path / "a.pkl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "plain").read_bytes()))
    assert sonde.read_logframe(packed).shape == frame.shape
    assert sonde.read_logframe(tmp_path / "plain", "pickle").shape == frame.shape
    with packed.open("rb") as file:
        assert sonde.read_logframe(file, "pickle", compression="gzip").shape == frame.shape
    with pytest.raises(SondeError, match="`compression` must be"):
        sonde.read_logframe(packed, compression="rar")
