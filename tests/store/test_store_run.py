"""A run answers questions by pattern, kind, step, phase and rank, and says what it cannot."""

import json
import os
import threading

import made
import numpy as np
import pyarrow as pa
import pytest

import sonde
from sonde.record import Event, NumberBatch, Site, SiteInfo, SketchBatch
from sonde.store import Writer, open_run
from sonde.store.reading.catalogue import Catalogue


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Steps 0..9: eight sites, a loss, metrics of two modules, an eval phase at step 5."""
    path = tmp_path_factory.mktemp("runs") / "first"
    with Writer(path, config={"every": 1, "odd": object()}) as writer:
        writer.sites(made.sites(8))
        for step in range(10):
            writer.sketches(made.batch(step, 8))
            writer.numbers(made.loss(step))
            writer.numbers(
                NumberBatch(
                    step, "train", ["rcc", "rcc"], ["h.0", "h.1"], np.array([1.0, 2.0]) * step
                )
            )
        writer.sketches(made.batch(5, 8, phase="eval"))
        writer.numbers(made.loss(5, phase="eval", value=9.0))
        writer.event(Event("skipped", "a meta tensor", where="h.0", count=2))
        writer.event(Event("metric_failed", "it raised", where="h.1", level="warning"))
        writer.set_info(overhead=1.01)
    return path


@pytest.fixture
def run(path):
    with open_run(path, frame="arrow") as run:
        yield run


def test_stats_have_the_documented_columns(run):
    rows = run.stats("h.0", kind="output", stat=["rms", "max_abs"], steps=3)
    expected = ["step", "phase", "module", "kind", "call", "slot", "name", "rms", "max_abs"]
    assert rows.schema.names == expected
    assert rows.to_pylist()[0]["name"] == "h.0/output/0"


def test_answers_are_pandas_by_default_and_arrow_on_request(path):
    pandas = pytest.importorskip("pandas")
    with open_run(path) as run:
        for answer in (
            run.sites,
            run.stats(),
            run.scalars(),
            run.metrics(),
            run.sql("select 1 as x"),
        ):
            assert isinstance(answer, pandas.DataFrame)
        assert isinstance(run.stats(frame="arrow"), pa.Table)
        with pytest.raises(sonde.SondeError, match="frame"):
            run.stats(frame="dask")


@pytest.mark.parametrize(
    ("pattern", "kind", "modules"),
    [
        ("*", "output", {"h.0", "h.1"}),
        ("h.?", "output", {"h.0", "h.1"}),
        ("h.1", "output", {"h.1"}),
        ("re:h\\.[01]", "output", {"h.0", "h.1"}),
        ("re:h", "output", set()),
        ("h.*.weight", "param", {"h.0", "h.1"}),
        ("h.0.weight", "param", {"h.0"}),
        ("h.0", "param", {"h.0"}),
        ("*", ["param", "param_grad"], {"h.0", "h.1"}),
        ("nothing*", None, set()),
        ("h.0.weight", "output", set()),
    ],
)
def test_site_patterns_match_paths(run, pattern, kind, modules):
    found = run.stats(pattern, kind=kind, steps=0, missing="ok")
    assert set(found["module"].to_pylist()) == modules


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (None, list(range(10))),
        (4, [4]),
        ((2, 4), [2, 3, 4]),
        ((None, 1), [0, 1]),
        ((8, None), [8, 9]),
        (range(2, 5), [2, 3, 4]),
        (range(0, 10, 4), [0, 4, 8]),
        (slice(7, None), [7, 8, 9]),
        ([1, 9, 77], [1, 9]),
        (np.array([1, 2]), [1, 2]),
        ([], []),
        (list(range(100)), list(range(10))),
    ],
)
def test_steps_can_be_given_in_many_ways(run, steps, expected):
    for stat in ("rms", "p50"):
        assert (
            run.stats("h.0", kind="output", stat=stat, steps=steps)["step"].to_pylist() == expected
        )


@pytest.mark.parametrize("steps", ["3", 3.5, (1, "2"), slice(0, 9, 2), True, {"a": 1}])
def test_steps_that_are_none_are_refused(run, steps):
    with pytest.raises(sonde.SondeError, match="steps"):
        run.stats(steps=steps)


def test_phases_are_told_apart(run):
    assert run.stats("h.0", kind="output", steps=5).num_rows == 1
    assert run.stats("h.0", kind="output", phase="eval")["step"].to_pylist() == [5]
    both = run.stats("h.0", kind="output", phase=None, steps=5)
    assert both["phase"].to_pylist() == ["train", "eval"]
    assert run.scalars("loss", phase="eval")["value"].to_pylist() == [9.0]
    assert run.scalars("loss").num_rows == 11


def test_metrics_belong_to_modules(run):
    rows = run.metrics("rcc", "h.1")
    assert rows.schema.names == ["step", "phase", "module", "name", "value"]
    assert rows["value"].to_pylist() == [2.0 * s for s in range(10)]
    assert run.metrics(module="h.*").num_rows == 20
    assert run.metrics("nothing", missing="ok").num_rows == 0
    assert run.scalars().schema.names == ["step", "phase", "name", "value"]
    assert set(run.scalars()["name"].to_pylist()) == {"loss"}


def test_counts_are_whole_numbers_and_nothing_to_say_is_nan(tmp_path):
    from sonde.kernels.reference import sketch

    with Writer(tmp_path / "run") as writer:
        writer.sites(made.sites(1))
        empty = made.columns([sketch([])])
        writer.sketches(SketchBatch(0, "train", np.zeros(1, np.int32), empty))
    with open_run(tmp_path / "run", frame="arrow") as run:
        for stat in (["nans", "mean"], ["nans", "mean", "p50"]):
            rows = run.stats(stat=stat)
            assert rows["nans"].type == pa.int64()
            assert rows["nans"][0].as_py() == 0
            assert rows["mean"].null_count == 0
            assert np.isnan(rows["mean"][0].as_py())


def test_an_unknown_statistic_kind_or_site_is_named_with_what_there_is(run):
    with pytest.raises(sonde.SondeError, match=r"Unknown statistic `rmss`.*rms"):
        run.stats(stat="rmss")
    with pytest.raises(sonde.SondeError, match=r"Unknown kind `outputs`.*output_grad"):
        run.stats(kind="outputs")
    with pytest.raises(sonde.SondeError, match=r"no site `h.00`.*nearest.*`h.0`"):
        run.stats("h.00")
    with pytest.raises(sonde.SondeError, match=r"nearest.*`h.1`"):
        run.sketch("h.11")
    with pytest.raises(sonde.SondeError, match="not a regular expression"):
        run.stats("re:(")
    with pytest.raises(sonde.SondeError, match="Cannot merge by `colour`"):
        run.merge(by="colour")


def test_an_ambiguous_site_lists_what_it_could_be(run):
    with pytest.raises(
        sonde.SondeError, match=r"2 sites.*`h.0/output/0`, `h.0/output_grad/0`"
    ) as error:
        run.sketch("h.0", slot="0")
    assert "kind=" in str(error.value)
    assert run.sketch("h.0", kind="output", step=2).count == 2001
    assert run.sketch("h.0/output/0", step=2).count == 2001
    assert run.sketch("h.0.weight", kind="param", step=2).count == 2021
    with pytest.raises(sonde.SondeError, match=r"has no `update`.*h.0/output/0"):
        run.sketch("h.0", kind="update")


def test_calls_and_slots_tell_sites_apart(tmp_path):
    sites = [Site("rnn", "output", call, slot) for call in (0, 1) for slot in ("0", "1.key")]
    with Writer(tmp_path / "run") as writer:
        writer.sites([SiteInfo(i, s, "f", (), "RNN") for i, s in enumerate(sites)])
        writer.sketches(made.batch(0, 4))
    with open_run(tmp_path / "run") as run:
        assert run.sketch("rnn", "output", call=1, slot="1.key").count == 31
        assert run.sketch("rnn#1/output/1.key").count == 31


def test_the_last_step_is_the_default_and_a_missing_one_names_its_neighbours(run):
    assert run.sketch("h.0/output/0").count == 9001
    with pytest.raises(sonde.SondeError, match=r"no record at step 100.*5, 6, 7, 8, 9"):
        run.sketch("h.0/output/0", step=100)
    with pytest.raises(sonde.SondeError, match="no record in phase `test`"):
        run.sketch("h.0/output/0", phase="test")


def test_histogram_and_exponents_come_from_the_sketch(run):
    sketch = run.sketch("h.1", kind="output", step=3)
    histogram = run.histogram("h.1", kind="output", step=3, edges=[-10.0, 0.0, 10.0])
    assert np.array_equal(histogram.counts, sketch.histogram([-10.0, 0.0, 10.0]).counts)
    assert len(run.histogram("h.1", kind="output").counts) == 50
    assert (
        run.exponents("h.1", kind="output", step=3).counts.sum() == sketch.exponents().counts.sum()
    )


def test_merge_pools_over_steps_sites_and_kinds(run):
    counts = [1000 * s + 1 for s in range(2, 5)]
    assert run.merge("h.0", kind="output", steps=(2, 4)).count == sum(counts)
    by_step = run.merge("h.0", kind="output", by="step")
    assert [by_step[s].count for s in range(10)] == [1000 * s + 1 for s in range(10)]
    by_two = run.merge(steps=0, by=("module", "kind"))
    assert by_two["h.1", "param"].count == 10 * 6 + 1
    assert run.merge("nothing*", missing="ok").count == 0
    assert run.merge("nothing*", by="step", missing="ok") == {}


def test_merge_in_parts_equals_merge_at_once(run, monkeypatch):
    from sonde.store.reading import stat_queries

    whole = run.merge(by="name"), run.stats(stat=["p50", "count"])
    monkeypatch.setattr(stat_queries, "_ROWS_AT_ONCE", 7)
    assert (run.merge(by="name"), run.stats(stat=["p50", "count"])) == whole


def test_info_describes_the_run_in_plain_values(run, path):
    info = run.info
    json.dumps(info)
    assert info["status"] == "finished"
    assert info["reason"] == "finished"
    assert info["steps"] == {"first": 0, "last": 9, "recorded": 10, "known": 10}
    assert info["config"]["every"] == 1
    assert "object" in info["config"]["odd"]
    assert info["versions"]["sonde"] == sonde.__version__
    assert info["overhead"] == 1.01
    assert info["damaged"] == []
    assert info["dropped"] == {}
    assert [(e["place"], e["count"]) for e in info["skipped"]] == [("h.0", 2)]
    assert [e["code"] for e in info["warnings"]] == ["metric_failed"]
    assert info["records"] == 88
    assert info["attempts"][0]["written"] == 88 + 31 + 2
    assert run.path == str(path)
    assert run.name == "first"
    assert run.steps == list(range(10))
    assert run.status == "finished"


def test_a_run_with_nothing_in_it_answers_with_nothing(tmp_path):
    Writer(tmp_path / "run").close()
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats().num_rows == run.scalars().num_rows == run.metrics().num_rows == 0
        assert run.stats(stat="p50").num_rows == 0
        assert run.sites.num_rows == 0
        assert run.steps == []
        assert run.merge().count == 0
        assert run.info["steps"]["recorded"] == 0
        assert run.stats().schema.names[:2] == ["step", "phase"]


def test_latest_is_the_newest_run_and_a_folder_of_runs_says_so(tmp_path, monkeypatch):
    runs = tmp_path / "runs"
    for name in ("a", "b", "c"):
        Writer(runs / name).close()
    assert open_run(runs / "latest").name == "c"
    monkeypatch.chdir(tmp_path)
    assert open_run().name == "c"
    with pytest.raises(sonde.RunError, match=r"folder of runs.*`c`, `b`, `a`"):
        open_run(runs)
    with pytest.raises(sonde.RunError, match=r"no run at.*newest one there is `c`"):
        open_run(runs / "d")
    (tmp_path / "empty").mkdir()
    with pytest.raises(sonde.RunError, match="no run in"):
        open_run(tmp_path / "empty" / "latest")
    with pytest.raises(sonde.RunError, match="not a run"):
        open_run(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(sonde.RunError, match="is a file"):
        open_run(tmp_path / "file")
    os.symlink(runs / "a", runs / "latest")
    assert open_run(runs / "latest").path == str(runs / "latest")


def test_every_call_sees_what_is_on_disk_now(tmp_path):
    with (
        Writer(tmp_path / "run", flush_s=60) as writer,
        open_run(tmp_path / "run", frame="arrow") as run,
    ):
        assert run.status == "live"
        writer.sites(made.sites(1))
        for step in range(5):
            writer.sketches(made.batch(step, 1))
            writer.numbers(made.loss(step))
            assert writer.flush()
            assert run.steps == list(range(step + 1))
            assert run.stats(stat="count")["count"].to_pylist()[-1] == 1000 * step + 1
            assert run.sites.num_rows == 1


def test_many_threads_can_ask_one_run(path):
    with open_run(path, frame="arrow") as run:
        errors = []

        def ask():
            try:
                for _ in range(5):
                    assert run.stats(stat="rms").num_rows == 80
                    assert run.merge(by="step")[3].count > 0
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []


def test_a_closed_run_can_be_asked_again(path):
    run = open_run(path, frame="arrow")
    rows = run.stats(stat=["rms", "count"])
    run.close()
    run.close()
    assert run.stats(stat=["rms", "count"]).equals(rows)


def test_reading_changes_nothing_on_disk(path):
    def listing():
        return sorted(
            (d, n, os.lstat(os.path.join(d, n)).st_mtime_ns)
            for d, _, names in os.walk(path)
            for n in names
        )

    before = listing()
    with open_run(path) as run:
        run.stats()
        run.info  # noqa: B018
        run.merge(by="name")
        run.sql("select * from bins")
    assert listing() == before


def test_a_catalogue_keeps_the_order_of_the_model():
    sites = tuple(Site(f"h.{i}", "output") for i in (0, 1, 10, 2))
    assert [s.module for s in Catalogue(sites).select()] == ["h.0", "h.1", "h.10", "h.2"]


def test_sites_come_in_the_order_in_which_they_were_met(tmp_path):
    infos = [SiteInfo(i, Site(f"h.{i}", "output"), "f", (), "L") for i in range(12)]
    with Writer(tmp_path / "run") as writer:
        writer.sites(infos)
        writer.sketches(made.batch(0, 12))
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.sites["module"].to_pylist() == [f"h.{i}" for i in range(12)]
        assert run.stats()["module"].to_pylist() == [f"h.{i}" for i in range(12)]
        assert run.sites.schema.names == [
            *("name", "module", "kind", "call", "slot", "dtype", "shape", "module_type", "stage"),
            *("requires_grad", "dropout_p"),
        ]
