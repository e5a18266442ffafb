"""LogFrames hold what numpy says of the values, survive files, and never run code."""

import os
import pickle

import numpy as np
import pytest

import sonde
from sonde import SondeError
from sonde.kernels.reference import sketch
from sonde.logframe import of_run, rates, to_run, validate, write
from sonde.record import Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.store import Writer

pd = pytest.importorskip("pandas")

SITES = [
    (Site("fc", "output"), "Activation", "fc"),
    (Site("fc", "output_grad"), "Gradient", "fc"),
    (Site("fc", "param", 0, "weight"), "Weights", "fc.weight"),
    (Site("fc", "param_grad", 0, "weight"), "Weight_Gradients", "fc.weight"),
    (Site("fc", "optim", 0, "weight/exp_avg"), "Optimiser_State.exp_avg", "fc.weight"),
]


def boundaries() -> np.ndarray:
    """Every power of two of float32 with its neighbours, both signs; zeros, infinities, NaN."""
    powers = np.exp2(np.arange(-126, 128)).astype(np.float32)
    around = [powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))]
    some = np.concatenate(around)
    odd = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1e-40], np.float32)
    return np.concatenate([some, -some, odd])


def values(i: int, step: int) -> np.ndarray:
    if i == 0 and step == 0:
        return boundaries()
    return np.random.default_rng(10 * i + step).normal(size=50).astype(np.float32) * 10.0**i


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("logframes") / "run"
    with Writer(path, compact=False) as writer:
        writer.sites(
            [SiteInfo(i, s, "float32", (50,), "Linear") for i, (s, _, _) in enumerate(SITES)]
        )
        for step in range(3):
            rows = concatenate([sketch(values(i, step)).columns() for i in range(len(SITES))])
            writer.sketches(SketchBatch(step, "train", np.arange(len(SITES), dtype=np.int32), rows))
    return sonde.open(path)


def row_of(frame, i, step):
    meta = frame["metadata"]
    _, tensor_type, name = SITES[i]
    found = (meta["tensor_type"] == tensor_type) & (meta["name"] == name) & (meta["step"] == step)
    assert found.sum() == 1
    return frame[found].iloc[0]


def test_every_site_and_step_has_a_row_under_its_name(run):
    frame = run.to_logframe()
    assert len(frame) == 3 * len(SITES)
    for i in range(len(SITES)):
        row = row_of(frame, i, 2)
        assert row["metadata", "type"] == "Linear"
        assert row["metadata", "dtype"] == "float32"


@pytest.mark.parametrize("convention", ["frexp", "floor"])
@pytest.mark.parametrize(("low", "high"), [(-16, 16), (-126, 127), (0, 1)])
def test_counts_of_exponents_equal_brute_force_at_every_boundary(run, convention, low, high):
    frame = of_run(run, min_exp=low, max_exp=high, exponents=convention)
    row = row_of(frame, 0, 0)["exponent_counts"]
    x = boundaries().astype(np.float64)
    x = np.abs(x[(x != 0) & ~np.isnan(x)])
    e = np.where(np.isinf(x), 10**6, np.frexp(np.where(np.isinf(x), 1, x))[1])
    e = e if convention == "frexp" else e - 1
    assert row[-np.inf] == (e < low).sum()
    assert row[np.inf] == (e > high).sum()
    for n in range(low, high + 1):
        assert row[n] == (e == n).sum(), n


def test_statistics_equal_numpy(run):
    frame = run.to_logframe()
    for i in range(1, len(SITES)):
        x = values(i, 1).astype(np.float64)
        row = row_of(frame, i, 1)["scalar_stats"]
        assert row["mean"] == pytest.approx(x.mean())
        assert row["std"] == pytest.approx(x.std(ddof=1))
        assert row["mean_abs"] == pytest.approx(np.abs(x).mean())
        assert row["max_abs"] == np.abs(x).max()
        assert row["min_abs"] == np.abs(x).min()
        assert row["rm2"] == pytest.approx(np.mean(x**2) ** 0.5)
        assert row["rm4"] == pytest.approx(np.mean(x**4) ** 0.25)
    odd = row_of(frame, 0, 0)["scalar_stats"]
    assert (odd["zeros"], odd["nans"], odd["infs"]) == (2, 1, 2)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.pkl"])
def test_a_frame_survives_a_file(run, tmp_path, name):
    frame = run.to_logframe()
    path = tmp_path / name
    frame.to_pickle(path) if name.endswith("pkl") else write(frame, path)
    back = sonde.read_logframe(path)
    assert list(back.columns) == list(frame.columns)
    assert (back["exponent_counts"].to_numpy() == frame["exponent_counts"].to_numpy()).all()
    assert np.allclose(back["scalar_stats"], frame["scalar_stats"], rtol=1e-12, equal_nan=True)
    assert back["metadata"].to_numpy().tolist() == frame["metadata"].to_numpy().tolist()


def test_an_older_pickle_with_plain_text_columns_is_read(run, tmp_path):
    frame = run.to_logframe()
    texts = {c: object for c in frame.columns if c[0] == "metadata" and c[1] != "step"}
    frame = frame.astype(texts)
    path = tmp_path / "old.pkl"
    path.write_bytes(pickle.dumps(frame, protocol=4))
    assert sonde.read_logframe(path).shape == frame.shape


class _Attack:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "attack",
    [
        _Attack(os.system, "touch ran"),
        _Attack(eval, "open('ran', 'w')"),
        _Attack(exec, "open('ran', 'w')"),
        _Attack(__import__, "this"),
        _Attack(getattr, "", "upper"),
        _Attack(pd.read_pickle, "ran"),
        _Attack(pd.eval, "1"),
        _Attack(np.load, "ran"),
    ],
    ids=lambda a: getattr(a.call[0], "__name__", "call"),
)
def test_a_pickle_that_would_run_code_is_refused_by_name(tmp_path, monkeypatch, attack):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pkl"
    path.write_bytes(pickle.dumps({"frame": attack}))
    with pytest.raises(SondeError, match=r"would load `[\w.]+`, which is no data"):
        sonde.read_logframe(path)
    assert not (tmp_path / "ran").exists()


def test_a_frame_becomes_a_run_with_the_same_numbers(run, tmp_path):
    frame = run.to_logframe()
    usual = frame[frame["metadata", "step"] > 0]
    path = to_run(usual, tmp_path / "imported")
    with sonde.open(path) as imported:
        assert imported.damaged == []
        back = imported.to_logframe()
        keys = [("metadata", c) for c in ("name", "tensor_type", "step")]
        one, two = (f.sort_values(keys).reset_index(drop=True) for f in (usual, back))
        assert (one["exponent_counts"].to_numpy() == two["exponent_counts"].to_numpy()).all()
        for name in ("mean", "rm2", "rm4", "mean_abs", "max_abs", "min_abs"):
            assert np.allclose(one["scalar_stats", name], two["scalar_stats", name]), name
        assert sonde.plot.heatmap(imported, "output").axes
        found = imported.scalars("underflow_rate/Weights", frame="arrow").to_pylist()
        expected = rates(usual)["underflow_rate"].loc["Weights"]
        assert {row["step"]: row["value"] for row in found} == expected.to_dict()


def test_rates_are_shares_of_all_counted_values(run):
    frame = run.to_logframe(min_exp=-2, max_exp=0)
    found = rates(frame).loc[("Weights", 1)]
    x = np.abs(values(2, 1).astype(np.float64))
    e = np.frexp(x)[1]
    assert found["underflow_rate"] == pytest.approx((e < -2).mean())
    assert found["overflow_rate"] == pytest.approx((e > 0).mean())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda f: f.drop(columns=[("metadata", "step")]), "'step'.* is missing"),
        (lambda f: f.drop(columns=[("exponent_counts", np.inf)]), r"\+inf.* is missing"),
        (lambda f: f.drop(columns="scalar_stats", level=0), "no column of `scalar_stats`"),
        (lambda f: f.rename(columns={"scalar_stats": "other"}), "`other` is no part"),
        (lambda f: f["scalar_stats"], "two levels"),
        (lambda f: {"not": "a frame"}, "two levels"),
    ],
)
def test_what_is_no_logframe_is_named(run, spoil, words):
    with pytest.raises(SondeError, match=words):
        validate(spoil(run.to_logframe()))


@pytest.mark.parametrize("name", ["a.txt", "missing.parquet", "broken.parquet", "broken.pkl"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    path = tmp_path / name
    if not name.startswith("missing"):
        path.write_bytes(b"not a frame")
    with pytest.raises(SondeError, match=name.replace(".", r"\.")):
        sonde.read_logframe(path)
