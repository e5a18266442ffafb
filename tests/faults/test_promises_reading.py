"""Promises of `docs/reliability.md` about reading: clocks, copies, tensor files, installations."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import made
import numpy as np
import pytest
import safetensors.numpy

from sonde.cli import main
from sonde.present.worker import OpenRuns, answer
from sonde.store import Writer, open_run
from sonde.store import safetensors as ours
from sonde.store.documents import DamagedError
from sonde.store.packing import PackedArray
from sonde.store.tensors import TensorReader

HOUR_NS = 3600 * 10**9


# -- clocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift_ns", [-HOUR_NS, HOUR_NS, -30 * 365 * 24 * HOUR_NS])
def test_a_clock_that_is_wrong_or_steps_back_changes_no_number(tmp_path, monkeypatch, shift_ns):
    path, now = tmp_path / "run", time.time_ns
    with Writer(path, compact=False) as writer:
        writer.sites(made.sites(2))
        for step in range(6):
            writer.sketches(made.batch(step, 2))
            writer.numbers(made.loss(step))
            writer.flush()
    monkeypatch.setattr(time, "time_ns", lambda: now() + shift_ns)
    with Writer(path, compact=False, resume_from_step=3) as writer:
        writer.sites(made.sites(2))
        for step in range(3, 8):
            writer.sketches(made.batch(step, 2))
            writer.numbers(made.loss(step, value=100.0 + step))
    monkeypatch.undo()
    for file in path.rglob("a0001-*"):  # what the file system says is no better
        os.utime(file, ns=(now() - 9 * HOUR_NS, now() - 9 * HOUR_NS))
    with open_run(path, frame="arrow") as run:
        assert run.steps == list(range(8))
        losses = run.scalars("loss")["value"].to_pylist()
        assert losses == [1.0, 1 / 2, 1 / 3, *(100.0 + step for step in range(3, 8))]
        assert run.stats(stat="count").num_rows == 16
        assert run.status == "finished"


@pytest.mark.parametrize("shift_ns", [-HOUR_NS, HOUR_NS])
def test_no_age_is_negative_whatever_the_clock_said(tmp_path, monkeypatch, capsys, shift_ns):
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + shift_ns)
    _write(tmp_path / "run", 2)
    monkeypatch.undo()
    assert main(["ls", str(tmp_path)]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "finished" in line]
    assert not re.search(r"-\d", row), row


# -- copies ---------------------------------------------------------------------------------------


def _write(path: Path, steps: int, value: float = 1.0) -> Path:
    with Writer(path, compact=False) as writer:
        for step in range(steps):
            writer.numbers(made.loss(step, value=value))
            writer.flush()
    return path


def test_a_copy_that_stopped_half_way_is_readable_and_says_what_it_lacks(tmp_path):
    whole = _write(tmp_path / "whole", 6)
    for stop in range(1, 7):
        part = tmp_path / f"part{stop}"
        shutil.copytree(whole, part)
        segments = sorted(part.glob("live_numbers/*/*.parquet"))
        assert len(segments) == 6
        for segment in segments[stop:]:
            segment.unlink()
        with open_run(part, frame="arrow") as run:
            with pytest.warns() if stop < 6 else contextlib.nullcontext():
                assert run.steps == list(range(stop))
            said = " ".join(f"{d.file} {d.problem}" for d in run.damaged)
            assert ("lacks segment" in said) == (stop < 6)


def test_a_file_that_is_still_being_copied_is_no_segment(tmp_path):
    path = _write(tmp_path / "run", 3)
    segment = next(path.glob("live_numbers/*/*.parquet"))
    partial = segment.with_name(f".{segment.name}.Xy12Zw")  # as rsync names it
    partial.write_bytes(segment.read_bytes()[:100])
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        assert run.steps == [0, 1, 2]


def test_a_run_that_takes_the_place_of_another_is_not_mistaken_for_it(tmp_path):
    desk = OpenRuns(str(tmp_path))

    def ask():
        (run,) = desk.shelf.runs()
        question = [("run", run.id), ("name", "loss")]
        answer(desk, {"view": "lines", "run": run.id, "question": question})
        return run.id, desk.subject(run.id).run.scalars("loss")["value"].to_pylist()

    _write(tmp_path / "run", 3, value=1.0)
    first = ask()
    shutil.rmtree(tmp_path / "run")
    _write(tmp_path / "run", 3, value=2.0)
    second = ask()
    assert first[1] == [1.0] * 3
    assert second[1] == [2.0] * 3
    assert first[0] != second[0]
    os.rename(tmp_path / "run", tmp_path / "moved")
    assert ask()[1] == [2.0] * 3
    for one in list(desk._open):
        desk._close(one)


# -- tensor files ---------------------------------------------------------------------------------


def _file(header: object, body: bytes = b"\0" * 16, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def _entry(begin: int, end: int, shape: object = None, dtype: str = "U8") -> dict:
    return {"dtype": dtype, "shape": shape or [end - begin], "data_offsets": [begin, end]}


HOSTILE_TENSORS = {
    "overlapping": _file({"a": _entry(0, 10), "b": _entry(8, 16)}),
    "out of range": _file({"a": _entry(0, 17)}),
    "far out of range": _file({"a": _entry(0, 1 << 62)}),
    "negative": _file({"a": _entry(-8, 8)}),
    "a gap": _file({"a": _entry(0, 4), "b": _entry(8, 16)}),
    "a shape that does not fit": _file({"a": _entry(0, 16, [1 << 40, 1 << 40])}),
    "too many entries": _file({f"{i}": _entry(0, 0, [0]) for i in range(150_000)}, b""),
    "a header over the limit": _file(b"{}", b"", ours.MAX_HEADER_BYTES + 1),
    "a header of 2**63 bytes": _file(b"{}", b"", 1 << 63),
    "a header longer than the file": _file(b"{}", b"", 1000),
    "the same name twice": _file(b'{"a": 1, "a": 2}'),
    "deep": _file(b"[" * 100_000),
    "no entry": _file({"a": [1, 2]}),
    "an unknown dtype": _file({"a": _entry(0, 16, None, "PICKLE")}),
    "metadata that is no text": _file({"__metadata__": {"a": 1}, "a": _entry(0, 16)}),
    "a list": _file([1, 2, 3]),
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE_TENSORS)
def test_a_hostile_tensor_file_is_refused_by_name(tmp_path, kind):
    with pytest.raises(DamagedError):
        ours.decode(HOSTILE_TENSORS[kind])
    folder = tmp_path / "tensors" / "r00000"
    folder.mkdir(parents=True)
    (folder / "a0000-abcdef01-00000000.safetensors").write_bytes(HOSTILE_TENSORS[kind])
    row = {"rank": 0, "attempt": 0, "file": 0, "nbytes": 16, "offset": 8, "crc": 0}
    row |= {"name": "x", "dtype": "uint8", "shape": [16]}
    with pytest.raises(DamagedError, match=r"tensors/r00000"):
        TensorReader(str(tmp_path)).read(row)


def test_what_is_refused_is_not_what_others_write():
    data = safetensors.numpy.save({"a": np.arange(4, dtype=np.float32)})
    arrays, _ = ours.decode(data)
    assert arrays["a"].numpy().tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        {"file": "../../secret"},
        {"file": -1},
        {"rank": "../.."},
        {"attempt": 1 << 70},
        {"offset": 1 << 62},
        {"offset": -8},
        {"nbytes": 1 << 62, "shape": [1 << 62]},
        {"shape": [1 << 33, 1 << 33]},
        {"dtype": "object"},
        {"offset": 9},
    ],
    ids=str,
)
def test_a_row_that_points_elsewhere_reads_nothing(tmp_path, change):
    folder = tmp_path / "run" / "tensors" / "r00000"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(b"s" * 64)
    data, (begin,) = ours.encode([("a", PackedArray("uint8", (16,), b"\1" * 16))])
    (folder / "a0000-abcdef01-00000000.safetensors").write_bytes(data)
    row = {"rank": 0, "attempt": 0, "file": 0, "nbytes": 16, "offset": begin, "crc": 0}
    row |= {"name": "x", "dtype": "uint8", "shape": [16], **change}
    with pytest.raises((DamagedError, ValueError)):
        TensorReader(str(tmp_path / "run")).read(row)


# -- installations --------------------------------------------------------------------------------

MISSING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from sonde.cli import main
sys.exit(main({arguments!r}))
"""


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ({"uvicorn"}, ["view", "--no-browser"], "sonde[view]"),
        ({"starlette"}, ["view", "--no-browser"], "sonde[view]"),
        ({"h5py"}, ["export", "run", "--hdf5", "x.h5"], "sonde[hdf5]"),
    ],
    ids=str,
)
def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(
    tmp_path, missing, arguments, extra
):
    _write(tmp_path / "run", 1)
    script = MISSING.format(names=missing, arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert extra in done.stderr
    assert "Traceback" not in done.stderr
