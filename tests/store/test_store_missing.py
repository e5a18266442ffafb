"""A pattern that matches nothing is an error that names the nearest; one that matches a site
without a record is an empty answer. And answers come in the frame that was asked for."""

import importlib.util

import made
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from faulty import QuickFiles

from sonde._errors import SondeError
from sonde.record import NumberBatch, Site, SiteInfo, SketchBatch
from sonde.store import Writer, open_run

SITES = [
    Site("0", "output"),
    Site("0", "param", 0, "weight"),
    Site("0", "param_grad", 0, "weight"),
    Site("0", "param_grad", 0, "weight/before_clip"),
    Site("0", "update", 0, "weight"),
    Site("0", "optim", 0, "weight/exp_avg"),
    Site("0", "optim", 0, "weight/exp_avg_sq"),
    Site("0", "optim", 0, "bias/exp_avg"),
    Site("1.attn", "output"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("missing") / "run"
    with Writer(path, flush_s=60, compact=False, files=QuickFiles()) as writer:
        writer.sites([SiteInfo(i, s, "float32", (2,), "T") for i, s in enumerate(SITES)])
        for step in range(3):
            writer.sketches(made.batch(step, len(SITES) - 1))
            writer.numbers(made.loss(step))
            names = ["output_difference/dist", "output_difference/cos", "gain"]
            modules = ["0", "0", "1.attn"]
            writer.numbers(NumberBatch(step, "train", names, modules, np.arange(3.0)))
        ids = np.array([len(SITES) - 1], np.int32)
        writer.sketches(SketchBatch(2, "train", ids, made.plain_sketches(2, 1)))
    with open_run(path, frame="arrow") as found:
        yield found


@pytest.mark.parametrize("pattern", ["nothing", "attn*x", "2.*", "re:zz.*", "0.weights"])
def test_a_pattern_that_matches_no_site_is_an_error(run, pattern):
    for ask in (run.stats, run.merge):
        with pytest.raises(SondeError, match="There is no site"):
            ask(pattern)
    assert run.stats(pattern, missing="ok").num_rows == 0


@pytest.mark.parametrize(
    ("pattern", "near"), [("0.wieght", "0.weight"), ("1.atn", "1.attn"), ("*.atn*", "1.attn")]
)
def test_the_error_names_the_nearest(run, pattern, near):
    with pytest.raises(SondeError, match=f"`{near}`"):
        run.stats(pattern)


def test_a_site_without_a_record_in_the_steps_asked_is_an_empty_answer(run):
    assert run.stats("1.attn", steps=0).num_rows == 0
    assert run.stats("1.attn").num_rows == 1
    assert run.stats("1.attn", phase="eval").num_rows == 0
    assert run.stats("1.attn", kind="param").num_rows == 0
    assert run.scalars("loss", steps=(50, 60)).num_rows == 0
    assert run.metrics("gain", steps=99).num_rows == 0
    assert run.metrics("gain", "0").num_rows == 0


def test_the_name_of_a_parameter_stands_for_all_that_belongs_to_it(run):
    def found(*args, **options):
        return sorted(set(run.stats(*args, **options)["name"].to_pylist()))

    assert found("0.weight", kind="optim") == [
        "0/optim/weight/exp_avg",
        "0/optim/weight/exp_avg_sq",
    ]
    assert found("*.weight", kind="optim") == found("0.weight", kind="optim")
    assert found("0.weight/exp_avg", kind="optim") == ["0/optim/weight/exp_avg"]
    assert found("*/exp_avg", kind="optim") == ["0/optim/bias/exp_avg", "0/optim/weight/exp_avg"]
    for kind in ("param", "param_grad", "update"):
        assert found("0.weight", kind=kind) == [f"0/{kind}/weight"]
    assert found("0.weight", stage="before_clip") == ["0/param_grad/weight/before_clip"]
    assert len(found("0.weight")) == 5


def test_a_metric_is_found_by_the_end_of_its_name(run):
    for name in ("dist", "output_difference/dist", "*/dist", "re:.*dist"):
        assert set(run.metrics(name)["name"].to_pylist()) == {"output_difference/dist"}
    assert set(run.metrics("output_difference/*")["name"].to_pylist()) == {
        "output_difference/dist",
        "output_difference/cos",
    }
    with pytest.raises(SondeError, match=r"There is no metric `dst`.*output_difference/dist"):
        run.metrics("dst")
    with pytest.raises(SondeError, match=r"There is no module `1.atn`.*`1.attn`"):
        run.metrics(module="1.atn")
    assert run.metrics("dst", missing="ok").num_rows == 0


def test_a_scalar_that_is_not_there_is_an_error_that_names_those_that_are(run):
    with pytest.raises(SondeError, match="There is no scalar `los` in this run"):
        run.scalars("los")
    assert run.scalars("los", missing="ok").num_rows == 0
    assert run.scalars("l*s").num_rows == 3


def test_a_run_that_has_nothing_yet_has_nothing_to_miss(tmp_path):
    with Writer(tmp_path / "empty", compact=False, files=QuickFiles()):
        pass
    with open_run(tmp_path / "empty", frame="arrow") as run:
        assert run.stats("h.0").num_rows == run.scalars("loss").num_rows == 0
        assert run.metrics("dist", "h.0").num_rows == 0


def test_missing_is_error_or_ok(run):
    for ask in (run.stats, run.scalars, run.metrics):
        with pytest.raises(SondeError, match="must be 'error' or 'ok'"):
            ask("0", missing="maybe")


FRAMES = {"arrow": pa.Table, "pandas": pd.DataFrame, "polars": pl.DataFrame}


@pytest.mark.parametrize("frame", FRAMES)
def test_every_answer_comes_in_the_frame_asked_for(run, frame):
    kind = FRAMES[frame]
    with open_run(run.path, frame=frame) as opened:
        answers = [opened.sites, opened.traces, opened.stats(), opened.sql("select 1 as x")]
        assert all(isinstance(answer, kind) for answer in answers)
        assert isinstance(opened.stats(frame="arrow"), pa.Table)
    for answer in (
        run.stats(stat=["rms", "count", "p50"], frame=frame),
        run.scalars(frame=frame),
        run.metrics(frame=frame),
        run.sql("select * from sites", frame=frame),
        run.sql("select * from records limit 0", frame=frame),
    ):
        assert isinstance(answer, kind)


def test_polars_holds_the_same_values(run):
    found = run.stats(stat=["rms", "count"], frame="polars")
    assert found.to_arrow().to_pylist() == run.stats(stat=["rms", "count"]).to_pylist()


@pytest.mark.parametrize("library", ["polars", "pandas"])
def test_a_library_that_is_not_installed_is_named(run, monkeypatch, library):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == library else real(name)
    )
    with pytest.raises(SondeError, match=rf"{library} is not installed.*sonde\[{library}\]"):
        run.stats(frame=library)
    with pytest.raises(SondeError, match="must be 'pandas', 'polars' or 'arrow'"):
        run.stats(frame="dask")
