"""SQL over a run says what `sonde.sketch` says, and a locked run says nothing else."""

import os

import made
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sonde
from sonde.record import SketchBatch
from sonde.sketch import STATISTICS, needs_bins, row, statistic
from sonde.store import Writer, open_run

WITHOUT_BINS = [name for name in STATISTICS if not needs_bins(name)]


def write_sketches(path, sketches, *, ranks=1):
    """The same sites on each rank; returns the merged sketches that must come out."""
    share = len(sketches) // ranks
    for rank in range(ranks):
        mine = sketches[rank * share : (rank + 1) * share]
        with Writer(path, rank=rank, world_size=ranks) as writer:
            writer.sites(made.sites(share))
            ids = np.arange(share, dtype=np.int32)
            writer.sketches(SketchBatch(0, "train", ids, made.columns(mine)))
    parts = [sketches[r * share : (r + 1) * share] for r in range(ranks)]
    return [a.merge(b) if ranks == 2 else a for a, b in zip(parts[0], parts[-1], strict=True)]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), ranks=st.sampled_from([1, 2]))
def test_statistics_in_sql_equal_those_of_the_sketch(tmp_path_factory, seed, ranks):
    path = tmp_path_factory.mktemp("run") / "run"
    expected = write_sketches(
        path, made.real_sketches(np.random.default_rng(seed), 40), ranks=ranks
    )
    with open_run(path, frame="arrow") as run:
        shown = run.stats(stat=WITHOUT_BINS)
        in_sql = run.sql("select * from stats")
        place = {name: i for i, name in enumerate(in_sql["name"].to_pylist())}
        for i, sketch in enumerate(expected):
            at = place[shown["name"][i].as_py()]
            for name in WITHOUT_BINS:
                wanted = statistic(name)(sketch.columns())[0]
                for value in (shown[name][i].as_py(), in_sql[name][at].as_py()):
                    found = np.nan if value is None else value
                    np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=0, err_msg=name)


def test_every_statistic_that_needs_no_bins_is_a_column_of_stats():
    assert {name for name, known in STATISTICS.items() if known.sql} == set(WITHOUT_BINS)


def test_sums_beyond_float64_do_not_stop_a_query(tmp_path):
    from sonde.kernels.reference import sketch

    write_sketches(tmp_path / "run", [sketch([1e200, -1e200, 1e308]), sketch([]), sketch([np.nan])])
    with open_run(tmp_path / "run", frame="arrow") as run:
        rows = run.stats(stat=["std", "rms", "rm4", "mean"])
        assert rows["rms"].to_pylist()[0] == np.inf
        assert all(np.isnan(rows[s].to_pylist()[1]) for s in ("std", "rms", "rm4", "mean"))
        assert run.sql("select count(*) as n from stats where mean is null")["n"][0].as_py() == 2


def test_bins_in_sql_hold_every_value_that_is_not_nan(tmp_path):
    sketches = made.real_sketches(np.random.default_rng(1), 8)
    expected = write_sketches(tmp_path / "run", sketches, ranks=2)
    with open_run(tmp_path / "run", frame="arrow") as run:
        rows = run.sql(
            "select name, sum(count) n, min(low) low, max(high) high from bins group by name"
        )
        found = {r["name"]: r for r in rows.to_pylist()}
        for info, sketch in zip(made.sites(4), expected, strict=True):
            n = sketch.count - sketch.nans
            if n:
                assert found[info.site.name]["n"] == n
                if sketch.infs == 0:
                    assert found[info.site.name]["low"] <= sketch.min <= sketch.max
                    assert sketch.max <= found[info.site.name]["high"]
        per_bin = run.sql(
            "select bin, count from bins where name = ?", [made.sites(4)[0].site.name]
        )
        assert {r["bin"]: r["count"] for r in per_bin.to_pylist()} == {
            int(b): int(n) for b, n in enumerate(expected[0].bins) if n
        }


def test_bins_have_the_edges_of_the_sketch(tmp_path):
    from sonde.sketch.bins import bin_of

    write_sketches(tmp_path / "run", made.real_sketches(np.random.default_rng(0), 2))
    with open_run(tmp_path / "run", frame="arrow") as run:
        edges = run.sql("select * from bin_edges where bin < 1020 or bin between 1024 and 2043")
        low, high, bins = (edges[c].to_numpy() for c in ("low", "high", "bin"))
        inner = np.where(bins < 1024, low, high)  # the edge nearer to zero belongs to the bin
        nonzero = inner != 0
        assert np.array_equal(bin_of(inner[nonzero]), bins[nonzero])
        assert (low < high).all()


def test_parameters_are_never_read_as_sql(tmp_path):
    write_sketches(tmp_path / "run", made.real_sketches(np.random.default_rng(0), 4))
    with open_run(tmp_path / "run", frame="arrow") as run:
        evil = "x' or '1'='1"
        assert run.sql("select * from stats where name = ?", [evil]).num_rows == 0
        assert run.sql("select * from stats where name = $n", {"n": evil}).num_rows == 0
        assert run.scalars(evil).num_rows == 0
        with pytest.raises(sonde.SondeError, match="no site"):
            run.sketch(evil)


def test_a_wrong_query_says_what_is_wrong(tmp_path):
    write_sketches(tmp_path / "run", made.real_sketches(np.random.default_rng(0), 4))
    with open_run(tmp_path / "run") as run:
        with pytest.raises(sonde.SondeError, match="nothing_like_it"):
            run.sql("select nothing_like_it from stats")
        with pytest.raises(sonde.SondeError, match="syntax error"):
            run.sql("selec 1")


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "copy (select 1) to '{run}/stolen.csv'",
        "copy (select 1) to '/tmp/stolen.csv'",
        "attach '/tmp/other.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set memory_limit = '100GB'",
        "pragma database_list",
        "create table t as select 1",
        "drop view stats",
        "select 1; select 2",
        "select * from read_parquet('{run}/../elsewhere.parquet')",
    ],
)
def test_a_locked_run_answers_only_questions_about_itself(tmp_path, query):
    path = tmp_path / "run"
    write_sketches(path, made.real_sketches(np.random.default_rng(0), 4))
    before = sorted(os.listdir(path))
    with open_run(path, frame="arrow", locked=True) as run:
        assert run.sql("select count(*) as n from stats")["n"][0].as_py() == 4
        with pytest.raises(sonde.SondeError):
            run.sql(query.format(run=path))
        assert run.sql("select count(*) as n from stats")["n"][0].as_py() == 4
    assert sorted(os.listdir(path)) == before
    assert not os.path.exists("/tmp/stolen.csv")


def test_a_locked_run_does_not_reach_its_neighbours(tmp_path):
    write_sketches(tmp_path / "run", made.real_sketches(np.random.default_rng(0), 4))
    write_sketches(tmp_path / "run2", made.real_sketches(np.random.default_rng(0), 4))
    (tmp_path / "run.csv").write_text("a\n1\n")
    with open_run(tmp_path / "run", frame="arrow", locked=True) as run:
        for query in (
            f"select * from read_text('{tmp_path}/run2/run.json')",
            f"select * from '{tmp_path}/run2/live/*/*.parquet'",
            f"select * from read_csv('{tmp_path}/run.csv')",
            f"select * from read_text('{tmp_path}/run/../run2/run.json')",
        ):
            with pytest.raises(sonde.SondeError):
                run.sql(query)


def test_a_locked_run_still_sees_new_segments(tmp_path):
    path = tmp_path / "run"
    with Writer(path) as writer:
        writer.sites(made.sites(2))
        with open_run(path, frame="arrow", locked=True) as run:
            for step in range(3):
                writer.sketches(made.batch(step, 2))
                writer.flush()
                assert run.stats(stat="rms")["step"].to_pylist()[-1] == step


def test_python_variables_are_no_tables(tmp_path):
    write_sketches(tmp_path / "run", made.real_sketches(np.random.default_rng(0), 4))
    import pyarrow as pa

    secret = pa.table({"x": [1]})
    with open_run(tmp_path / "run") as run, pytest.raises(sonde.SondeError, match="secret"):
        run.sql("select * from secret")
    assert secret.num_rows == 1


def test_a_path_with_pattern_characters_is_taken_by_the_letter(tmp_path):
    for name in ("lr=[0.1]", "a*b", "what?", "it's", "two words", "é"):
        write_sketches(tmp_path / name, made.real_sketches(np.random.default_rng(0), 2))
        with open_run(tmp_path / name, frame="arrow") as run:
            assert run.stats(stat="count").num_rows == 2
        with open_run(tmp_path / name, frame="arrow", locked=True) as run:
            assert run.stats(stat="count").num_rows == 2


def test_rows_of_a_sketch_can_be_taken_apart_again(tmp_path):
    sketches = made.real_sketches(np.random.default_rng(3), 5)
    write_sketches(tmp_path / "run", sketches)
    columns = made.columns(sketches)
    with open_run(tmp_path / "run") as run:
        for i, info in enumerate(made.sites(5)):
            assert run.sketch(info.site.name) == row(columns, i)
