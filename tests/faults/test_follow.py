"""A reader beside a writer and a compactor sees each step once, in order, and soon."""

import glob
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import made
import polars as pl
import pytest
from faulty import QuickFiles

from sonde.store import Writer, open_run
from sonde.store.writing.compaction import compact

HERE = Path(__file__).parent
N_SITES = 6

WRITING = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
import made
from sonde.store.writing.writer import Writer
writer = Writer(sys.argv[1], flush_s=0.4)
writer.sites(made.sites(6))
began = time.monotonic()
step = 0
while time.monotonic() - began < float(sys.argv[3]):
    writer.sketches(made.batch(step, 6))
    writer.numbers(made.loss(step))
    os.write(1, f"{step} {time.monotonic()}\\n".encode())
    if step % 5 == 4:
        writer.flush()      # many segments, so that compaction has something to do
    step += 1
    time.sleep(0.02)
writer.close()
"""


def read_stock(path):
    """What DuckDB and Polars see in a folder by themselves; files may vanish under them."""
    seen = []
    for folder in ("live", "stats"):
        pattern = f"{path}/{folder}/*/*.parquet"
        if not glob.glob(pattern):
            continue
        try:
            query = f"select count(*), count(distinct (step, name)) from '{pattern}'"
            rows = duckdb.connect().execute(query).fetchone()
            assert rows[0] == rows[1]
            frame = pl.read_parquet(pattern, hive_partitioning=False)
            assert (frame["count"] == 1000 * frame["step"] + frame["count"] % 1000).all()
            seen.append((rows[0], len(frame)))
        except (duckdb.IOException, FileNotFoundError, pl.exceptions.ComputeError, OSError):
            continue  # compacted away between listing and opening: stock readers have no rule
    return seen


@pytest.mark.slow
def test_a_second_process_follows_a_run_for_twenty_seconds(tmp_path):
    path = str(tmp_path / "run")
    store_tests = str(HERE.parent / "store")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITING, path, store_tests, "20"], stdout=subprocess.PIPE, text=True
    )
    handed = {}
    reading = threading.Thread(
        target=lambda: handed.update(
            (int(a), float(b)) for a, b in (line.split() for line in writer.stdout)
        )
    )
    first_line = writer.stdout.readline().split()
    handed[int(first_line[0])] = float(first_line[1])
    # Whole lines are collected by a thread; steps are looked up in it only when all is over.
    reading.start()
    first_seen, stock, polls = {}, 0, 0
    with open_run(path, frame="arrow") as run:
        while writer.poll() is None:
            rows = run.stats(stat="count")
            now = time.monotonic()
            steps = rows["step"].to_pylist()
            assert steps == [s for s in range(len(steps) // N_SITES) for _ in range(N_SITES)]
            assert rows["count"].to_pylist() == [
                1000 * s + 10 * (i % N_SITES) + 1 for i, s in enumerate(steps)
            ]
            assert len(steps) // N_SITES >= len(first_seen), "a step that was seen stays seen"
            for step in range(len(first_seen), len(steps) // N_SITES):
                first_seen[step] = now
            losses = run.scalars("loss")["step"].to_pylist()
            assert losses == list(range(len(losses)))
            polls += 1
            if polls % 5 == 0:
                stock += bool(read_stock(path))
            time.sleep(0.03)
        reading.join()
        assert run.status == "finished"
        assert run.damaged == []
        assert run.stats(stat="count").num_rows == N_SITES * len(handed)
    assert len(handed) > 20
    assert len(first_seen) > 1
    assert all(first_seen[s] > handed[s] for s in first_seen)
    assert stock > 0
    assert glob.glob(f"{path}/stats/*/*.parquet"), "compaction was at work meanwhile"


def test_stock_readers_read_a_finished_run_as_it_lies(tmp_path):
    path = tmp_path / "run"
    with Writer(path, flush_s=60, compact=False, files=QuickFiles()) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(70):
            writer.sketches(made.batch(step, N_SITES))
            writer.flush()
    assert read_stock(path) == [(70 * N_SITES, 70 * N_SITES)]
    compact(str(path))
    assert read_stock(path) == [(70 * N_SITES, 70 * N_SITES)]
    import pyarrow.dataset as ds

    rows = ds.dataset(path / "stats", format="parquet", partitioning=None)
    assert rows.count_rows() == 70 * N_SITES
    sums = duckdb.sql(
        f"select sum(list_sum(bin_counts)), sum(count) from '{path}/stats/*/*.parquet'"
    )
    assert len(set(sums.fetchall()[0])) == 1


def test_a_reader_beside_a_compactor_misses_nothing_and_sees_nothing_twice(tmp_path):
    """Writer, two compactors and two readers at once, over hundreds of segments."""
    path = str(tmp_path / "run")
    writer = Writer(path, flush_s=60, compact=False, files=QuickFiles())
    writer.sites(made.sites(2))
    writer.flush()
    errors, done = [], threading.Event()
    written = [0]
    reads = [0]

    def guarded(work):
        def loop():
            rng = random.Random(work.__name__)
            try:
                while not done.is_set():
                    work()
                    time.sleep(rng.random() * 0.01)
            except BaseException as error:
                errors.append(error)
                done.set()

        return loop

    runs = [open_run(path, frame="arrow") for _ in range(2)]

    def read(run):
        before = written[0]
        steps = run.sql(
            "select step, count(*) as n, min(count) as c from records group by step order by step"
        )
        after = written[0] + 1
        found = steps["step"].to_pylist()
        assert found == list(range(len(found)))
        assert before <= len(found) <= after
        assert set(steps["n"].to_pylist()) <= {2}
        assert run.damaged == []
        reads[0] += 1

    def read_first():
        read(runs[0])

    def read_second():
        read(runs[1])

    def compact_first():
        compact(path, files=QuickFiles())

    def compact_second():
        compact(path, files=QuickFiles())

    work = (read_first, read_second, compact_first, compact_second)
    threads = [threading.Thread(target=guarded(w)) for w in work]
    for thread in threads:
        thread.start()
    while written[0] < 300 and not done.is_set():
        writer.sketches(made.batch(written[0], 2))
        assert writer.flush()
        written[0] += 1
    done.set()
    for thread in threads:
        thread.join()
    writer.close()
    assert errors == []
    assert reads[0] > 20
    compact(path)
    names = [n for n in os.listdir(f"{path}/stats/r00000") if not n.startswith(".")]
    assert len(names) == 1
    read(runs[0])
