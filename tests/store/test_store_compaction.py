"""Compaction changes how rows lie on disk and nothing else."""

import os
import shutil
import subprocess
import sys
import threading
import time

import duckdb
import made
import pyarrow.parquet as pq
import pytest
from faulty import QuickFiles

import sonde
from sonde.store import Writer, open_run
from sonde.store.writing import compaction as module

N_SITES = 3


def compact(path, **options):
    return module.compact(path, files=QuickFiles(), **options)


def write(path, n, *, close=True, rank=0, first=0, **options):
    options = {"flush_s": 60, "compact": False, "world_size": 4, "files": QuickFiles(), **options}
    writer = Writer(path, rank=rank, **options)
    writer.sites(made.sites(N_SITES))
    for step in range(first, first + n):
        writer.sketches(made.batch(step, N_SITES, rank=rank))
        writer.numbers(made.loss(step))
        writer.flush()
    if close:
        writer.close()
    return writer


def ranges(path, folder, rank=0):
    """Ranges of sequence numbers of the segments in a folder."""
    where = path / folder / f"r{rank:05d}"
    names = [n for n in os.listdir(where) if not n.startswith(".")] if where.exists() else []
    return sorted(tuple(int(x) for x in name.split("-")[2:4]) for name in names)


def content(path):
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        columns = "rank, attempt, step, phase, name, count, sum, max, bin_ids, bin_counts, t_ns"
        records = run.sql(f"select {columns} from records order by rank, attempt, step, name")
        numbers = run.sql("select * from numbers order by rank, attempt, ordinal")
        return records.to_pylist(), numbers.to_pylist()


def test_only_full_blocks_of_a_live_attempt_are_compacted(tmp_path):
    path = tmp_path / "run"
    writer = write(path, 130, close=False)
    before = content(path)
    report = compact(str(path))
    assert (report.segments_before, report.segments_after) == (256, 4)
    assert ranges(path, "stats") == ranges(path, "numbers") == [(0, 63), (64, 127)]
    assert ranges(path, "live") == [(128, 128), (129, 129)]
    assert content(path) == before
    assert compact(str(path)).segments_before == 0
    writer.close()
    compact(str(path))
    assert ranges(path, "stats") == [(0, 129)]
    assert ranges(path, "live") == []
    assert content(path) == before


def test_larger_blocks_gather_smaller_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LEVELS", (4, 16, 64))
    path = tmp_path / "run"
    writer = write(path, 40, close=False)
    before = content(path)
    compact(str(path))
    assert ranges(path, "stats") == [(0, 15), (16, 31), (32, 35), (36, 39)]
    assert content(path) == before
    writer.close()
    compact(str(path))
    assert ranges(path, "stats") == [(0, 39)]
    assert content(path) == before


def test_segments_that_are_large_together_stay_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LIMITS_BYTES", (1 << 30, 1000, 1000))
    path = tmp_path / "run"
    write(path, 130)
    compact(str(path))
    assert ranges(path, "stats") == [(0, 63), (64, 127), (128, 129)]


def test_rows_are_sorted_and_row_groups_are_cut_between_names(tmp_path, monkeypatch):
    for rows_per_group, expected in ((50, 3), (64, 3), (65, 2), (1000, 1), (20, 9)):
        monkeypatch.setattr(module, "_ROWS_PER_GROUP", rows_per_group)
        path = tmp_path / f"run{rows_per_group}"
        write(path, 64)
        before = content(path)
        compact(str(path))
        assert content(path) == before
        folder = path / "stats" / "r00000"
        file = pq.ParquetFile(folder / os.listdir(folder)[0])
        assert file.num_row_groups == expected
        groups = [file.read_row_group(i) for i in range(file.num_row_groups)]
        keys = [
            key
            for group in groups
            for key in zip(group["name"].to_pylist(), group["step"].to_pylist(), strict=True)
        ]
        assert keys == sorted(keys)
        if rows_per_group >= 50:
            names = [set(group["name"].to_pylist()) for group in groups]
            assert sum(len(n) for n in names) == N_SITES, "no name lies in two groups"


def test_large_blocks_are_compacted_in_eighths(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LIMITS_BYTES", (100_000, 0, 0))
    path = tmp_path / "run"
    writer = write(path, 70, close=False)
    before = content(path)
    assert sum(os.path.getsize(f) for f in files(path / "live")) > 100_000
    compact(str(path))
    assert ranges(path, "stats") == [(8 * i, 8 * i + 7) for i in range(8)]
    assert content(path) == before
    writer.close()


def test_each_rank_can_be_compacted_by_itself(tmp_path):
    path = tmp_path / "run"
    for rank in (0, 2):
        write(path, 66, rank=rank)
    before = content(path)
    compact(str(path), rank=2)
    assert ranges(path, "stats", 2) == [(0, 65)]
    assert ranges(path, "stats", 0) == []
    compact(str(path))
    assert ranges(path, "stats", 0) == [(0, 65)]
    assert content(path) == before


def test_attempts_are_never_mixed(tmp_path):
    path = tmp_path / "run"
    write(path, 40)
    write(path, 40, first=20, resume_from_step=20)
    before = content(path)
    compact(str(path))
    assert len(os.listdir(path / "stats" / "r00000")) == 2
    assert content(path) == before


def test_two_compactors_write_the_same_bytes(tmp_path):
    write(tmp_path / "a", 70)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name in "ab":
        compact(str(tmp_path / name))
    for folder in ("stats", "numbers"):
        a, b = ({f.name: f.read_bytes() for f in files(tmp_path / x / folder)} for x in "ab")
        assert a == b
        assert len(a) == 1


def files(folder):
    return [file for file in folder.rglob("*") if file.is_file()]


def test_two_compactors_at_once_make_no_duplicates(tmp_path):
    for i in range(3):
        path = tmp_path / f"run{i}"
        write(path, 70)
        before = content(path)
        ready = threading.Barrier(2)
        errors = []

        def work(path=path, ready=ready, errors=errors):
            ready.wait()
            try:
                compact(str(path))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert content(path) == before
        compact(str(path))
        assert ranges(path, "stats") == [(0, 69)]
        stock = duckdb.sql(f"select count(*) from '{path}/stats/*/*.parquet'").fetchall()
        assert stock == [(70 * N_SITES,)]


def test_a_crash_between_publishing_and_removing_is_harmless_and_cleaned_up(tmp_path):
    path = tmp_path / "run"
    write(path, 70)
    before = content(path)
    shutil.copytree(path / "live", tmp_path / "live")
    compact(str(path))
    shutil.copytree(tmp_path / "live", path / "live", dirs_exist_ok=True)
    assert content(path) == before
    report = compact(str(path))
    assert report.removed == 70
    assert report.segments_before == 0
    assert ranges(path, "live") == []
    assert content(path) == before


def test_left_over_temporary_files_are_removed_when_they_are_old(tmp_path):
    path = tmp_path / "run"
    write(path, 2)
    for name, age_s in ((".tmp-old", 7200), (".tmp-new", 0)):
        file = path / "live" / "r00000" / name
        file.write_bytes(b"half a segment")
        os.utime(file, (time.time() - age_s,) * 2)
    compact(str(path))
    assert os.listdir(path / "live" / "r00000") == [".tmp-new"]


def test_the_writer_starts_a_compactor_when_a_block_is_complete(tmp_path):
    path = tmp_path / "run"
    with Writer(path, flush_s=60) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(65):
            writer.sketches(made.batch(step, N_SITES))
            writer.flush()
        deadline = time.monotonic() + 300
        while ranges(path, "stats") != [(0, 63)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 65 * N_SITES


def test_a_run_that_cannot_be_compacted_says_so(tmp_path):
    with pytest.raises(sonde.RunError, match="cannot be compacted"):
        compact(str(tmp_path))


def test_compacting_needs_no_framework(tmp_path):
    path = tmp_path / "run"
    write(path, 64)
    script = "import sys; from sonde.cli import main; code = main(sys.argv[1:]); "
    script += "assert not {'torch', 'jax', 'duckdb'} & set(sys.modules); sys.exit(code)"
    subprocess.run([sys.executable, "-c", script, "compact", str(path), "--background"], check=True)
    assert ranges(path, "stats") == [(0, 63)]


def test_following_a_live_run_keeps_no_memory_of_files_that_are_gone(tmp_path):
    path = tmp_path / "run"
    writer = Writer(path, flush_s=60, compact=False, files=QuickFiles())
    held = []
    with open_run(path, frame="arrow") as run:
        for step in range(1600):
            writer.numbers(made.loss(step))
            writer.flush()
            if step % 64 == 63:
                compact(str(path))
            if step % 16 == 15:
                found = run.sql("select count(*) as n, max(step) as last from scalars")
                assert found.to_pylist() == [{"n": step + 1, "last": step}]
                held.append(_held_by_duckdb(run))
    writer.close()
    assert max(held[50:]) <= 1.1 * max(held[:50])


def _held_by_duckdb(run):
    query = "select sum(memory_usage_bytes) from duckdb_memory()"
    return run._inquiry._connection.execute(query).fetchone()[0]
