"""Promises of `docs/reliability.md` about writing: power cuts, odd disks, crowds, children."""

import contextlib
import errno
import gc
import os
import subprocess
import sys
import threading
import weakref

import made
import numpy as np
import psutil
import pytest
import torch
from faulty import FailingFiles, QuickFiles
from torch import nn

import sonde
from sonde.record import NumberBatch
from sonde.store import Writer, open_run
from sonde.store.files import LocalFiles

N_SITES = 3


# -- a power cut ----------------------------------------------------------------------------------


class LoggedFiles:
    """The real file system, and a log of all that was asked of it."""

    def __init__(self):
        self.real, self.log, self.lock = LocalFiles(), [], threading.RLock()

    def __getattr__(self, name):
        method = getattr(self.real, name)

        def call(*arguments):
            with self.lock:
                result = method(*arguments)
                kept = [bytes(a) if isinstance(a, memoryview) else a for a in arguments]
                self.log.append((name, kept, result))
                return result

        return call


def disk_after(log, *, are_names_kept):
    """What a disk may hold when the power fails: files by path, folders.

    Bytes that were not synced are gone. Names are kept at once or, at the other extreme, only if
    their folder was synced: a file system may do either.
    """
    data, synced, names, durable, folders = {}, {}, {}, {}, set()
    open_files = {}
    for name, arguments, result in log:
        if name == "create":
            inode = object()
            open_files[result], names[arguments[0]] = inode, inode
            data[inode], synced[inode] = b"", b""
        elif name == "write":
            data[open_files[arguments[0]]] += arguments[1][:result]
        elif name == "fsync":
            synced[open_files[arguments[0]]] = data[open_files[arguments[0]]]
        elif name in {"link", "rename"}:
            names[arguments[1]] = names[arguments[0]]
            if name == "rename":
                del names[arguments[0]]
        elif name == "unlink":
            del names[arguments[0]]
        elif name == "mkdir":
            folders.add(arguments[0])
        elif name == "sync_folder":
            durable = {p: i for p, i in durable.items() if os.path.dirname(p) != arguments[0]}
            durable |= {p: i for p, i in names.items() if os.path.dirname(p) == arguments[0]}
    kept = names if are_names_kept else durable
    return {path: synced[inode] for path, inode in kept.items()}, folders


@pytest.mark.parametrize("are_names_kept", [True, False])
def test_after_a_power_cut_every_segment_is_whole_and_nothing_acknowledged_is_lost(
    tmp_path, are_names_kept
):
    files, acknowledged = LoggedFiles(), []
    path = tmp_path / "run"
    with Writer(path, files=files, flush_s=60, heartbeat_s=3600, compact=False) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(3):
            writer.sketches(made.batch(step, N_SITES))
            writer.numbers(made.loss(step))
            assert writer.flush()
            acknowledged.append(len(files.log))
    for at in range(acknowledged[0] - 6, len(files.log)):
        found, folders = disk_after(files.log[:at], are_names_kept=are_names_kept)
        disk = tmp_path / f"disk{at}"
        for folder in sorted({str(path), *folders}):
            (disk / os.path.relpath(folder, path)).mkdir(parents=True, exist_ok=True)
        for file, data in found.items():
            (disk / os.path.relpath(file, path)).write_bytes(data)
        (disk / "run.json").write_bytes((path / "run.json").read_bytes())
        n = sum(at >= end for end in acknowledged)
        with open_run(disk, frame="arrow") as run:
            segments = [d for d in run.damaged if d.file.endswith(".parquet")]
            assert segments == []
            assert run.steps[:n] == list(range(n))
            counts = run.stats(stat="count")
            assert counts["count"].to_pylist() == [
                1000 * s + 10 * (i % N_SITES) + 1 for i, s in enumerate(counts["step"].to_pylist())
            ]


# -- file systems ---------------------------------------------------------------------------------

ERRORS = ("ENAMETOOLONG", "EROFS", "EIO", "ESTALE", "EDQUOT", "ENOSPC", "EACCES", "ENOTCONN")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("operation", ["create", "write", "fsync", "link"])
def test_an_error_of_any_kind_costs_what_is_counted_and_no_more(tmp_path, error, operation):
    number = getattr(errno, error)
    files = FailingFiles(operation, 1, persistent=True, error=number)
    files.is_armed = False
    said = []
    writer = Writer(
        tmp_path / "run", files=files, flush_s=60, compact=False, on_problem=said.append
    )
    writer.sites(made.sites(N_SITES))
    writer.sketches(made.batch(0, N_SITES))
    assert writer.flush()
    files.calls.clear()
    files.is_armed = True
    for step in range(1, 4):
        writer.sketches(made.batch(step, N_SITES))
        writer.flush()
    files.is_armed = False
    writer.sketches(made.batch(4, N_SITES))
    assert writer.flush()
    writer.close()
    counts = writer.counts
    assert counts.handed == counts.written + sum(counts.dropped.values())
    assert len(said) <= 3, "said once, not at every flush"
    with open_run(tmp_path / "run", frame="arrow") as run:
        assert run.damaged == []
        assert {0, 4} <= set(run.steps)


def test_names_of_files_do_not_differ_by_case_alone(tmp_path):
    with Writer(tmp_path / "run", files=QuickFiles(), compact=False) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(20):
            writer.sketches(made.batch(step, N_SITES))
            writer.flush()
    names = [str(p.relative_to(tmp_path / "run")) for p in (tmp_path / "run").rglob("*")]
    assert len(names) > 20
    assert len({name.lower() for name in names}) == len(names)


# -- crowds ---------------------------------------------------------------------------------------


def test_a_hundred_thousand_names_are_kept_or_counted_in_bounded_memory(tmp_path):
    def hand_over(writer, first, n):
        names = [f"name/{i}" for i in range(first, first + n)]
        writer.numbers(NumberBatch(0, "train", names, [None] * n, np.arange(n, dtype=float)))

    with Writer(tmp_path / "run", files=QuickFiles(), compact=False) as writer:
        hand_over(writer, 0, 1000)
        writer.flush()
        before = psutil.Process().memory_info().rss
        for first in range(1000, 101_000, 10_000):
            hand_over(writer, first, 10_000)
            writer.flush()
        grown = psutil.Process().memory_info().rss - before
    counts = writer.counts
    assert counts.handed == counts.written + sum(counts.dropped.values())
    assert grown < 256 << 20
    with open_run(tmp_path / "run", frame="arrow") as run:
        n = run.sql("select count(distinct name) as n from scalars")["n"][0].as_py()
    assert n == 101_000 - sum(counts.dropped.values())


# -- children and memory --------------------------------------------------------------------------

SPAWNED = """
import sys
import torch
import torch.multiprocessing as mp
from torch import nn
import sonde


def child(index, folder):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, dir=folder, name=f"child{index}"):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        raise ValueError("of the child")


if __name__ == "__main__":
    model = nn.Linear(4, 4)
    with sonde.watch(model, dir=sys.argv[1], name="parent"):
        mp.start_processes(child, (sys.argv[1],), nprocs=1, start_method=sys.argv[2])
"""


@pytest.mark.parametrize("how", ["spawn", "forkserver"])
def test_an_error_in_a_spawned_child_ends_the_program_and_is_shown(tmp_path, how):
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "runs"), how],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "ValueError: of the child" in done.stderr
    with open_run(tmp_path / "runs" / "child0", frame="arrow") as run:
        assert run.steps == [0]
        assert run.status == "failed"


class Hungry(nn.Module):
    """Runs out of memory at the second call, after it has computed something large."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.calls, self.large = 0, None

    def forward(self, x):
        self.calls += 1
        y = self.first(x)
        if self.calls == 2:
            self.large = weakref.ref(y)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return self.second(y)


def test_after_running_out_of_memory_nothing_is_kept_alive_and_recording_goes_on(tmp_path):
    model = Hungry()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, name="run"):
        for batch in (8, 8, 4, 4):
            loss = None
            with contextlib.suppress(torch.OutOfMemoryError):
                loss = model(torch.ones(batch, 64)).sum()
            if loss is None:
                gc.collect()
                assert model.large() is None, "what the failed pass computed is freed"
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    with open_run(tmp_path / "run", frame="arrow") as run:
        found = run.stats("second", kind="output", stat="count")
        assert found["step"].to_pylist() == [0, 1, 2]
        assert found["count"].to_pylist() == [8 * 64, 4 * 64, 4 * 64]
