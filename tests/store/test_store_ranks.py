"""Readers count every part of a tensor once, and say what ranks are missing or differ."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sonde
from sonde._errors import SondeError
from sonde.kernels.reference import sketch
from sonde.record import NumberBatch, Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.store.writing.compaction import compact
from sonde.store.writing.writer import Writer

WEIGHT = Site("fc", "param", 0, "weight")
GRAD = Site("fc", "param_grad", 0, "weight")
INPUT = Site("", "input", 0, "0")


def write(path, rank, values, *, site=WEIGHT, part=None, parts=None, world=2, **options):
    """One attempt of a rank, with an array for each step."""
    with Writer(path, rank=rank, world_size=world, compact=False, **options) as writer:
        fill(writer, values, site=site, part=part, parts=parts)


def fill(writer, values, *, site=WEIGHT, part=None, parts=None, number=0):
    writer.sites([SiteInfo(number, site, "float32", (8,), "Linear", part=part, parts=parts)])
    for step, x in values.items():
        ids = np.array([number], np.int32)
        writer.sketches(SketchBatch(step, "train", ids, concatenate([sketch(x).columns()])))


def counts(run, **options):
    rows = run.stats(kind=["param", "param_grad"], stat="count", frame="arrow", **options)
    return dict(zip(rows["step"].to_pylist(), rows["count"].to_pylist(), strict=True))


X = np.arange(8.0) + 1


def test_replicas_count_once_and_each_rank_can_be_read(tmp_path):
    for rank in range(2):
        write(tmp_path / "run", rank, {0: X}, part=0, parts=1)
    run = sonde.open(tmp_path / "run")
    assert counts(run) == {0: 8}
    assert counts(run, rank=1) == {0: 8}
    assert run.sketch("fc/param/weight", step=0) == sketch(X)
    assert run.histogram("fc/param/weight", step=0).counts.sum() == 8
    assert run.merge(kind="param") == sketch(X)
    assert set(run.merge(kind="param", by="rank")) == {0, 1}
    assert run.stats(stat="p50", frame="arrow")["p50"].to_pylist() == [sketch(X).quantile(0.5)]
    bins = run.sql("select sum(count) as n from bins", frame="arrow")["n"].to_pylist()
    assert bins == [8]


def test_where_the_lowest_rank_records_nothing_another_replica_counts(tmp_path):
    write(tmp_path / "run", 0, {0: X}, part=0, parts=1)
    write(tmp_path / "run", 1, {0: X, 1: 2 * X}, part=0, parts=1)
    assert counts(sonde.open(tmp_path / "run")) == {0: 8, 1: 8}


def test_shards_add_up_and_an_incomplete_tensor_has_no_merged_row(tmp_path):
    write(tmp_path / "run", 0, {0: X[:6], 1: X[:6]}, part=0, parts=2)
    write(tmp_path / "run", 1, {0: X[6:]}, part=1, parts=2)
    run = sonde.open(tmp_path / "run")
    assert counts(run) == {0: 8}
    assert counts(run, rank=0) == {0: 6, 1: 6}
    with pytest.raises(SondeError, match="no record at step 1"):
        run.sketch("fc/param/weight", step=1)


def test_an_empty_shard_is_not_waited_for(tmp_path):
    write(tmp_path / "run", 0, {0: X}, part=0, parts=1, world=3)
    write(tmp_path / "run", 1, {0: X[:0]}, part=1, parts=1, world=3)
    write(tmp_path / "run", 2, {1: X[:0]}, part=2, parts=1, world=3)
    assert counts(sonde.open(tmp_path / "run")) == {0: 8}


def test_one_rank_of_a_sharded_training_says_that_the_others_are_missing(tmp_path):
    write(tmp_path / "run", 0, {0: X[:4]}, part=0, parts=2)
    run = sonde.open(tmp_path / "run")
    assert counts(run) == {}
    assert counts(run, rank=0) == {0: 4}
    assert run.info["ranks"]["missing"] == [1]


@settings(max_examples=8)
@given(st.integers(1, 4), st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False))
def test_any_layout_of_shards_and_replicas_merges_to_the_whole(
    tmp_path_factory, shards, copies, compacted, random
):
    path = tmp_path_factory.mktemp("layout") / "run"
    x = np.random.default_rng(random.randrange(1 << 30)).normal(size=12)
    cuts = sorted(random.sample(range(1, 12), shards - 1))
    places = [(part, copy) for copy in range(copies) for part in range(shards)]
    random.shuffle(places)
    for rank, (part, _) in enumerate(places):
        own = {0: np.split(x, cuts)[part]}
        write(path, rank, own, part=part, parts=shards, world=len(places))
    if compacted:
        compact(path)
    run = sonde.open(path)
    merged, whole = run.sketch("fc/param/weight", step=0), sketch(x)
    assert (merged.count, merged.min, merged.max) == (whole.count, whole.min, whole.max)
    assert (merged.bins == whole.bins).all()
    assert merged.sum_sq == pytest.approx(whole.sum_sq)
    assert not run.drift()


def test_the_norm_of_sharded_gradients_is_that_of_all_ranks(tmp_path):
    for rank, x in enumerate((X[:5], X[5:])):
        write(tmp_path / "run", rank, {0: x}, site=GRAD, part=rank, parts=2)
    run = sonde.open(tmp_path / "run")
    assert run.scalars("grad_norm", frame="arrow")["value"].to_pylist() == pytest.approx(
        [np.linalg.norm(X)]
    )


def test_a_norm_that_the_user_logs_is_not_computed(tmp_path):
    for rank in range(2):
        with Writer(tmp_path / "run", rank=rank, world_size=2, compact=False) as writer:
            fill(writer, {0: X}, site=GRAD, part=rank, parts=2)
            writer.numbers(NumberBatch(0, "train", ["grad_norm"], [None], np.array([3.0])))
    run = sonde.open(tmp_path / "run")
    assert run.scalars("grad_norm", frame="arrow")["value"].to_pylist() == [3.0]


# -- drift ---------------------------------------------------------------------------------------


def test_replicas_that_differ_are_named_with_their_ranks_and_first_step(tmp_path):
    for rank in range(3):
        own = {step: X.copy() for step in range(4)}
        if rank == 1:
            own[2][3] += 1e-3
            own[3][3] += 1e-3
        write(tmp_path / "run", rank, own, part=0, parts=1, world=3)
    run = sonde.open(tmp_path / "run")
    (found,) = run.drift()
    assert (found.what, found.name, found.ranks) == ("replica", "fc/param/weight", (1,))
    assert (found.step, found.steps) == (2, 2)
    assert run.info["drift"][0]["message"] == found.message
    assert "rank 1" in found.message


def test_sums_in_another_order_are_no_drift(tmp_path):
    x = np.random.default_rng(0).normal(size=1000)
    write(tmp_path / "run", 0, {0: x}, part=0, parts=1)
    write(tmp_path / "run", 1, {0: x[::-1]}, part=0, parts=1)
    assert not sonde.open(tmp_path / "run").drift()


def test_shards_and_activations_are_no_replicas(tmp_path):
    output = Site("fc", "output")
    for rank in range(2):
        with Writer(tmp_path / "run", rank=rank, world_size=2, compact=False) as writer:
            fill(writer, {0: X + rank}, part=rank, parts=2)
            fill(writer, {0: X + rank}, site=output, number=1)
    assert not sonde.open(tmp_path / "run").drift()


def test_ranks_that_train_on_the_same_batch_are_named(tmp_path):
    batches = {0: X, 1: X, 2: X + 1}
    for rank, x in batches.items():
        write(tmp_path / "run", rank, {0: x, 1: x + rank}, site=INPUT, world=3)
    (found,) = sonde.open(tmp_path / "run").drift()
    assert (found.what, found.ranks, found.step, found.steps) == ("batch", (0, 1), 0, 1)
    assert "DistributedSampler" in found.message


def test_inputs_that_are_one_value_throughout_are_no_batch(tmp_path):
    for rank in range(2):
        write(tmp_path / "run", rank, {0: np.ones(4)}, site=INPUT)
    assert not sonde.open(tmp_path / "run").drift()


# -- restarts ------------------------------------------------------------------------------------


def test_a_run_that_goes_on_with_fewer_ranks_replaces_those_that_are_gone(tmp_path):
    own = dict.fromkeys(range(4), X[:2])
    for rank in range(4):
        write(tmp_path / "run", rank, own, part=rank, parts=4, world=4, launch="first")
    for rank in range(2):
        again = dict.fromkeys((2, 3), X[:4])
        write(
            *(tmp_path / "run", rank, again),
            part=rank,
            parts=2,
            launch="second",
            resume_from_step=2,
        )
    run = sonde.open(tmp_path / "run")
    assert counts(run) == {0: 8, 1: 8, 2: 8, 3: 8}
    assert counts(run, rank=3) == {0: 2, 1: 2}
    assert run.info["world_size"] == 2
    assert run.status == "finished"


def test_a_run_that_goes_on_with_more_ranks_has_the_old_steps_too(tmp_path):
    write(tmp_path / "run", 0, {0: X, 1: X}, part=0, parts=1, world=1, launch="first")
    for rank in range(2):
        write(
            *(tmp_path / "run", rank, {1: X[:4]}),
            part=rank,
            parts=2,
            launch="second",
            resume_from_step=1,
        )
    assert counts(sonde.open(tmp_path / "run")) == {0: 8, 1: 8}


# -- other engines -------------------------------------------------------------------------------


@pytest.fixture
def laid_out(tmp_path):
    """A run in the folder `my-run`: replicas, shards of which one is late, and activations."""
    rng = np.random.default_rng(0)
    for rank in range(4):
        with Writer(tmp_path / "my-run", rank=rank, world_size=4, compact=False) as writer:
            fill(writer, {0: X, 1: X + 1}, part=0, parts=1)
            shards = dict.fromkeys(range(2 if rank < 3 else 1), X[2 * rank :][:2])
            fill(writer, shards, site=GRAD, part=rank, parts=4, number=1)
            fill(writer, {0: rng.normal(size=9)}, site=Site("fc", "output"), number=2)
    return tmp_path


def examples(language):
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    (found,) = [b for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if language in b]
    return found


def expected(run):
    rows = run.stats(stat=["count", "rms", "min", "max"], frame="arrow").to_pylist()
    found = [tuple(r[c] for c in ("step", "name", "count", "rms", "min", "max")) for r in rows]
    return sorted(found)


def close(found, wanted):
    assert [row[:3] for row in found] == [row[:3] for row in wanted]
    assert np.allclose([row[3:] for row in found], [row[3:] for row in wanted], rtol=1e-12)


def test_the_queries_for_duckdb_agree_with_the_run(laid_out, monkeypatch):
    monkeypatch.chdir(laid_out)
    names = {}
    exec(examples("import duckdb"), names)
    run = sonde.open("my-run")
    close(names["stats"], expected(run))
    bins = run.sql("select step, name, bin, count from bins order by all", frame="arrow")
    assert names["bins"] == [tuple(row.values()) for row in bins.to_pylist()]


def test_the_queries_for_polars_agree_with_the_run(laid_out, monkeypatch):
    monkeypatch.chdir(laid_out)
    names = {}
    exec(examples("import polars"), names)
    close(names["merged"].rows(), expected(sonde.open("my-run")))


def medians(run):
    rows = run.stats(stat="p50", frame="arrow").to_pylist()
    return sorted((row["step"], row["name"], row["p50"]) for row in rows)


def test_the_queries_for_spark_agree_with_the_run(laid_out, monkeypatch):
    monkeypatch.chdir(laid_out)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    plain = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.memory": "512m",
    }
    spark = SparkSession.builder.master("local[1]").config(map=plain).getOrCreate()
    names = {"__name__": "__main__"}
    try:
        exec(examples("import SparkSession"), names)
    finally:
        spark.stop()
    run = sonde.open("my-run")
    close([tuple(row) for row in names["stats"]], expected(run))
    bins = run.sql("select step, name, bin, count from bins order by all", frame="arrow")
    assert [tuple(row) for row in names["bins"]] == [tuple(r.values()) for r in bins.to_pylist()]
    assert [tuple(row) for row in names["p50"]] == medians(run)


def test_the_queries_for_dask_agree_with_the_run(laid_out, monkeypatch):
    monkeypatch.chdir(laid_out)
    names = {"__name__": "__main__"}
    exec(examples("import dask"), names)
    run = sonde.open("my-run")
    sums, rms = names["sums"], names["rms"]
    found = [
        (*key, row["count"], rms[key], row["min"], row["max"])
        for key, row in sums.to_dict("index").items()
    ]
    close(found, expected(run))
    assert list(names["p50"].itertuples(index=False, name=None)) == medians(run)
