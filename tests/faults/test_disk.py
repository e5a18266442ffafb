"""A disk that fills up, vanishes, turns read-only or slow: the writer counts and goes on."""

import errno
import os
import resource
import shutil
import subprocess
import sys

import made
import pytest
from faulty import FailingFiles, FullFiles, QuickFiles, SlowFiles

import sonde
from sonde.store import Writer, open_run
from sonde.store.writing.compaction import compact

N_SITES = 4


def hand_over(writer, steps):
    for step in steps:
        writer.sketches(made.batch(step, N_SITES))
        writer.numbers(made.loss(step))
        writer.flush()


def assert_only_counted_losses(path, writer, must):
    """All steps in `must` are there, each once and right; what is not there is counted."""
    counts = writer.counts
    assert counts.pending == 0
    assert counts.handed == counts.written + sum(counts.dropped.values())
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        rows = run.stats(stat="count")
        steps = rows["step"].to_pylist()
        assert set(must) <= set(steps)
        assert len(steps) == N_SITES * len(set(steps))
        assert rows["count"].to_pylist() == [
            1000 * s + 10 * (i % N_SITES) + 1 for i, s in enumerate(steps)
        ]
        losses = run.scalars()["step"].to_pylist()
        assert len(losses) == len(set(losses))
        events = run.sql("select * from events").num_rows
        assert len(steps) + len(losses) + events == counts.written


def test_a_disk_that_is_full_for_a_while_loses_only_what_came_meanwhile(tmp_path):
    files = FullFiles(10_000_000)
    said = []
    with Writer(tmp_path / "run", files=files, flush_s=60, on_problem=said.append) as writer:
        writer.sites(made.sites(N_SITES))
        hand_over(writer, range(10))
        files.free_bytes = 0
        hand_over(writer, range(10, 20))
        assert writer.counts.dropped["disk"] > 0
        files.free_bytes = 10_000_000
        hand_over(writer, range(20, 30))
    # The last batch of the full time was held for a second try and is kept.
    assert_only_counted_losses(tmp_path / "run", writer, [*range(10), *range(20, 30)])
    assert len(said) == 1
    assert os.strerror(errno.ENOSPC) in said[0]
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.info["dropped"]["disk"] == writer.counts.dropped["disk"]
        assert [w["code"] for w in run.info["warnings"]] == ["disk"]


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 400 kB, if we may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("no right to mount a file system; the injected and the RLIMIT test cover it")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def _until_it_fails(action):
    while True:
        action()


def fill(ballast):
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space"):
        _until_it_fails(lambda: os.write(fd, b"x" * 4096))
    os.close(fd)


def test_a_real_full_disk_loses_only_what_is_counted(small_disk):
    path = small_disk / "run"
    ballast = small_disk / "ballast"
    with Writer(path, flush_s=60, compact=False) as writer:
        writer.sites(made.sites(N_SITES))
        hand_over(writer, range(3))
        fill(ballast)
        hand_over(writer, range(3, 8))
        assert writer.counts.dropped["disk"] > 0
        os.unlink(ballast)
        hand_over(writer, range(8, 12))
    assert_only_counted_losses(path, writer, [0, 1, 2, 8, 9, 10, 11])


def test_a_full_disk_is_refused_before_training_starts(small_disk):
    fill(small_disk / "ballast")
    with pytest.raises(sonde.RunError, match="No space"):
        Writer(small_disk / "run")


def test_a_limit_on_file_size_is_survived(tmp_path):
    """RLIMIT_FSIZE: writes beyond it fail with EFBIG, as quotas do."""
    script = f"""
import resource, signal, sys
sys.path.insert(0, {os.path.join(os.path.dirname(__file__), "..", "store")!r})
import made
from sonde.store import Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = Writer({str(tmp_path / "run")!r}, flush_s=60)
writer.sites(made.sites(4))
def hand_over(steps):
    for step in steps:
        writer.sketches(made.batch(step, 4)); writer.numbers(made.loss(step)); writer.flush()
hand_over(range(3))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
hand_over(range(3, 6))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
hand_over(range(6, 9))
writer.close()
assert writer.counts.dropped["disk"] > 0 and writer.counts.pending == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert {0, 1, 2, 6, 7, 8} <= set(run.stats(stat="count")["step"].to_pylist())
        assert run.damaged == []


def test_a_folder_deleted_inside_of_the_run_is_made_again(tmp_path):
    path = tmp_path / "run"
    with Writer(path, flush_s=60, heartbeat_s=0.05) as writer:
        writer.sites(made.sites(N_SITES))
        hand_over(writer, range(3))
        shutil.rmtree(path / "live_numbers")
        shutil.rmtree(path / "live" / "r00000")
        hand_over(writer, range(3, 6))
        assert writer.counts.dropped == {}
    run = open_run(path, frame="arrow")
    with pytest.warns(sonde.SondeWarning, match="lacks segment 0 to 2"):
        rows = run.stats(stat="count")
    assert set(rows["step"].to_pylist()) == {3, 4, 5}
    assert {d.problem for d in run.damaged} == {"lacks segment 0 to 2"}


def test_a_run_that_is_deleted_as_a_whole_stays_deleted(tmp_path):
    path = tmp_path / "runs" / "run"
    said = []
    writer = Writer(path, flush_s=60, heartbeat_s=0.05, on_problem=said.append)
    writer.sites(made.sites(N_SITES))
    hand_over(writer, range(3))
    shutil.rmtree(path)
    hand_over(writer, range(3, 6))
    writer.close()
    assert not path.exists()
    assert len(said) == 1
    assert "No such file" in said[0]
    counts = writer.counts
    assert counts.dropped["disk"] >= 3 * (N_SITES + 1)
    assert counts.handed == counts.written + sum(counts.dropped.values())


def test_rights_taken_away_and_given_back(tmp_path):
    """Root may write anywhere, so the refusal is injected."""
    for error in (errno.EACCES, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.EIO, errno.EMFILE):
        files = FailingFiles("create", 1, persistent=True, error=error)
        files.is_armed = False
        path = tmp_path / f"run{error}"
        with Writer(path, files=files, flush_s=60) as writer:
            writer.sites(made.sites(N_SITES))
            hand_over(writer, range(3))
            files.is_armed = True
            hand_over(writer, range(3, 6))
            files.is_armed = False
            hand_over(writer, range(6, 9))
        assert_only_counted_losses(path, writer, [0, 1, 2, 6, 7, 8])
        assert writer.problems == [
            (
                f"Cannot write to the run: {os.strerror(error)}. "
                "Training continues; lost records are counted."
            )
        ]


def test_a_path_that_cannot_be_written_is_refused_before_training_starts(tmp_path):
    for operation in ("create", "write", "fsync", "link"):
        files = FailingFiles(operation, 1, persistent=True, error=errno.EROFS)
        with pytest.raises(sonde.RunError, match="Read-only file system"):
            Writer(tmp_path / operation, files=files)


def test_file_descriptors_running_out_is_survived(tmp_path):
    """A real EMFILE: the limit is taken down to what is open, and given back."""
    path = tmp_path / "run"
    with Writer(path, flush_s=60, compact=False) as writer:
        writer.sites(made.sites(N_SITES))
        hand_over(writer, range(3))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            with pytest.raises(OSError, match="Too many open files"):
                _until_it_fails(lambda: taken.append(os.open("/dev/null", os.O_RDONLY)))
            hand_over(writer, range(3, 6))
            assert writer.counts.dropped["disk"] > 0
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in taken:
                os.close(fd)
        hand_over(writer, range(6, 9))
    assert_only_counted_losses(path, writer, [0, 1, 2, 6, 7, 8])


def test_a_slow_disk_is_flushed_in_the_end(tmp_path):
    with Writer(tmp_path / "run", files=SlowFiles(0.2), flush_s=0.1, compact=False) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(50):
            writer.sketches(made.batch(step, N_SITES))
    assert_only_counted_losses(tmp_path / "run", writer, range(50))
    assert writer.counts.dropped == {}


def test_a_run_can_be_read_and_not_compacted_where_nobody_may_write(tmp_path):
    path = tmp_path / "run"
    with Writer(path, flush_s=60, compact=False, files=QuickFiles()) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(66):
            writer.sketches(made.batch(step, N_SITES))
            writer.flush()
    files = FailingFiles("mkdir", 1, persistent=True, error=errno.EROFS)
    with pytest.raises(OSError, match="Read-only"):
        compact(str(path), files=files)
    assert_only_counted_losses(path, writer, range(66))


def test_a_forked_child_writes_nothing_and_never_hangs(tmp_path):
    """Children are forked while the writer is busy, again and again, as data loaders do."""
    script = f"""
import gc, os, sys, threading, time, warnings
sys.path.insert(0, {os.path.join(os.path.dirname(__file__), "..", "store")!r})
warnings.simplefilter("ignore", DeprecationWarning)
import made
from sonde.store import Writer
writer = Writer({str(tmp_path / "run")!r}, flush_s=0.01, heartbeat_s=0.01)
writer.sites(made.sites(4))
for step in range(25):
    writer.sketches(made.batch(step, 4))
    writer.numbers(made.loss(step))
    pid = os.fork()
    if pid == 0:
        for other in range(1000, 1003):
            writer.sketches(made.batch(other, 4))
            writer.numbers(made.loss(other))
        writer.set_info(child=True)
        assert writer.flush(0.1) is False
        writer.counts, writer.problems
        writer.close("in the child")
        gc.collect()
        if step % 2:
            sys.exit(0)     # runs the exit handlers that were inherited
        os._exit(0)
    done, status = os.waitpid(pid, 0)
    assert status == 0, status
writer.close()
assert writer.counts.dropped == {{}}
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats(stat="count")["step"].to_pylist() == [
            s for s in range(25) for _ in range(N_SITES)
        ]
        assert run.scalars().num_rows == 25
        assert run.info["reason"] == "finished"
        assert run.info["watch"] == {}
        assert len(run.info["attempts"]) == 1


def test_a_child_that_imports_everything_anew_is_a_writer_of_its_own(tmp_path):
    with Writer(tmp_path / "run") as writer:
        writer.sites(made.sites(N_SITES))
        script = f"""
from sonde.store import Writer
try:
    Writer({str(tmp_path / "run")!r})
except Exception as error:
    print(type(error).__name__)
"""
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == "RankTakenError"
