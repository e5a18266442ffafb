"""An I/O error at the k-th call of any kind, for every k: what is read was acknowledged."""

import os
import shutil

import made
import pytest
from faulty import FailingFiles, LinklessFiles, QuickFiles

from sonde.store import Writer, open_run
from sonde.store.writing.compaction import compact

N_SITES = 3
N_FLUSHES = 3
WRITING = ("create", "write", "fsync", "close", "link", "unlink", "sync_folder", "rename", "mkdir")
SOFT = {"unlink", "sync_folder", "rename", "mkdir"}
"""Operations whose failure costs nothing: `rename` is used by heartbeats only."""


def write_with_fault(path, files):
    """Three flushes; returns the writer and the steps that a flush has acknowledged."""
    files.is_armed = False
    writer = Writer(path, files=files, flush_s=60, heartbeat_s=3600, compact=False)
    writer.flush()
    files.calls.clear()
    files.is_armed = True
    acknowledged = []
    writer.sites(made.sites(N_SITES))
    for step in range(N_FLUSHES):
        writer.sketches(made.batch(step, N_SITES))
        writer.numbers(made.loss(step))
        if writer.flush():
            acknowledged = list(range(step + 1))
    writer.close()
    return writer, acknowledged


def assert_view_equals_acknowledged(path, writer, acknowledged, *, complete):
    counts = writer.counts
    assert counts.pending == 0
    assert counts.handed == counts.written + sum(counts.dropped.values())
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        rows = run.stats(stat=["count", "max"])
        steps = rows["step"].to_pylist()
        assert steps == sorted(steps)
        pairs = list(zip(steps, rows["name"].to_pylist(), strict=True))
        assert len(pairs) == len(set(pairs))
        assert rows["count"].to_pylist() == [
            1000 * s + 10 * (i % N_SITES) + 1 for i, s in enumerate(steps)
        ]
        losses = run.scalars("loss")
        assert losses["value"].to_pylist() == [1.0 / (s + 1) for s in losses["step"].to_pylist()]
        events = run.sql("select * from events").num_rows
        assert rows.num_rows + losses.num_rows + events == counts.written
        if complete:
            assert steps == [s for s in range(N_FLUSHES) for _ in range(N_SITES)]
            assert losses["step"].to_pylist() == list(range(N_FLUSHES))
        assert run.sites.num_rows in ({N_SITES} if steps else {0, N_SITES})


@pytest.mark.parametrize("operation", WRITING)
def test_a_transient_error_at_the_kth_call_loses_nothing(tmp_path, operation):
    for k in range(1, 100):
        path = tmp_path / f"run{k}"
        files = FailingFiles(operation, k)
        writer, acknowledged = write_with_fault(path, files)
        # The k-th close may be of the last file of all, written when nobody tries again.
        assert_view_equals_acknowledged(path, writer, acknowledged, complete=True)
        if files.failures == 0:
            assert k > 1 or operation in SOFT
            return
        assert writer.counts.errors > 0 or operation in SOFT
    raise AssertionError("the operation never succeeded")


@pytest.mark.parametrize("operation", WRITING)
def test_a_persistent_error_from_the_kth_call_on_loses_only_what_is_counted(tmp_path, operation):
    for k in range(1, 100):
        path = tmp_path / f"run{k}"
        files = FailingFiles(operation, k, persistent=True)
        writer, acknowledged = write_with_fault(path, files)
        complete = operation in SOFT - {"mkdir"} or files.failures == 0
        assert_view_equals_acknowledged(path, writer, acknowledged, complete=complete)
        if files.failures == 0:
            return
        if not complete:
            is_data = k <= 1 + 2 * N_FLUSHES  # what comes after says only how the run ended
            assert writer.counts.dropped.get("disk", 0) > 0 or not is_data
            assert any("Cannot write to the run" in p for p in writer.problems)
    raise AssertionError("the operation never succeeded")


@pytest.mark.parametrize("operation", ["link", "fsync", "write", "unlink"])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_error_that_comes_after_the_work_was_done_makes_no_duplicates(
    tmp_path, operation, persistent
):
    for k in range(1, 100):
        path = tmp_path / f"run{k}"
        files = FailingFiles(operation, k, after=True, persistent=persistent)
        writer, acknowledged = write_with_fault(path, files)
        complete = operation in {"link", "unlink"} or not persistent
        assert_view_equals_acknowledged(path, writer, acknowledged, complete=complete)
        if files.failures == 0:
            return
    raise AssertionError("the operation never succeeded")


def test_a_name_that_may_be_taken_is_not_used_again(tmp_path):
    """link() fails and nobody can tell whether it worked: the number is spent, the loss counted."""

    class Blind(FailingFiles):
        def perform(self, name, n, method, args):
            if name == "exists" and self.failures == 1:
                self.failures = 2
                raise OSError(116, "Stale file handle")
            return super().perform(name, n, method, args)

    files = Blind("link", 2, after=True)  # the 2nd link publishes the first sketches
    writer, _ = write_with_fault(tmp_path / "run", files)
    assert writer.counts.dropped == {"disk": N_SITES}
    with open_run(tmp_path / "run", frame="arrow") as run:
        steps = run.stats(stat="count")["step"].to_pylist()
        assert steps == [s for s in range(N_FLUSHES) for _ in range(N_SITES)], "it had worked"


def test_a_file_system_without_hard_links_serves_as_well(tmp_path):
    files = LinklessFiles()
    files.is_armed = True
    with Writer(tmp_path / "run", files=files, flush_s=60, compact=False) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(70):
            writer.sketches(made.batch(step, N_SITES))
            assert writer.flush()
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
    assert compact(str(tmp_path / "run"), files=files).segments_after == 3
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        assert run.damaged == []


@pytest.fixture(scope="module")
def many_segments(tmp_path_factory):
    """A finished run of 66 live segments: a full block, a rest, and then the two as one."""
    path = tmp_path_factory.mktemp("many") / "run"
    with Writer(path, flush_s=60, compact=False, files=QuickFiles()) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(66):
            writer.sketches(made.batch(step, N_SITES))
            writer.flush()
    return path


def visible(folder):
    """What stock readers see. A temporary file may stay behind; an hour later it is removed."""
    return [name for name in os.listdir(folder) if not name.startswith(".")]


def assert_all_there(path):
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        rows = run.stats(stat="count")
        assert rows["step"].to_pylist() == [s for s in range(66) for _ in range(N_SITES)]
        assert rows["count"].to_pylist() == [
            1000 * s + 10 * i + 1 for s in range(66) for i in range(N_SITES)
        ]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "operation", ["create", "write", "fsync", "close", "link", "unlink", "sync_folder", "mkdir"]
)
def test_a_compactor_that_meets_an_error_anywhere_changes_no_answer(
    tmp_path, many_segments, operation, persistent
):
    stride = 15 if operation == "unlink" else 1  # 71 of them, all alike
    for k in range(1, 200, stride):
        path = tmp_path / f"run{k}"
        shutil.copytree(many_segments, path)
        files = FailingFiles(operation, k, persistent=persistent)
        try:
            compact(str(path), files=files)
        except OSError:
            assert files.failures
        assert_all_there(path)
        compact(str(path), files=QuickFiles())
        assert_all_there(path)
        assert len(visible(path / "stats" / "r00000")) == 1
        assert visible(path / "live" / "r00000") == []
        shutil.rmtree(path)
        if files.failures == 0:
            return
    raise AssertionError("the operation never succeeded")
