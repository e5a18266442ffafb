"""Hostile runs beside a good one: every listing still shows the good one, in bounded memory, and
nothing of a run steers the terminal."""

import json
import os
import re
import shutil

import forging
import pytest
import whole
from test_forged import peak_of

from sonde.cli import main
from sonde.record import Event, NumberBatch, Site, SiteInfo
from sonde.store import Writer, locations, open_run
from sonde.views import envelope
from sonde.views.runs.run_list import RunList

pytestmark = pytest.mark.filterwarnings("ignore::sonde.SondeWarning")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good"
    whole.write(path, steps=3)
    return path


def part(path, ending):
    """One of the files of the first attempt: `json`, `hb.json` or `end.json`."""
    return next(
        f
        for f in sorted((path / "ranks").glob("r00000.a0000-????.*"))
        if f.name.split(".", 2)[2] == ending
    )


def loop(path):
    shutil.rmtree(path / "ranks")
    os.symlink("ranks", path / "ranks")


def pipe(path):
    (path / "run.json").unlink()
    os.mkfifo(path / "run.json")


def about(**changes):
    return lambda path: forging.document(path / "run.json", **changes)


def told(ending, **changes):
    return lambda path: forging.document(part(path, ending), **changes)


HUGE = 10**400

HOSTILE_RUNS = {
    "a run.json that is a pipe": pipe,
    "a run.json that is a folder": lambda p: ((p / "run.json").unlink(), (p / "run.json").mkdir()),
    "an empty run.json": lambda p: (p / "run.json").write_bytes(b""),
    "a newer format": about(format_version="99.0"),
    "a version that is no text": about(format_version=[1]),
    "a version of digits without end": about(format_version="9" * 5000),
    "a time beyond all numbers": about(created_ns=HUGE),
    "a time before all times": about(created_ns=-HUGE),
    "a time that is a list": about(created_ns=[1]),
    "half a character in the name of the model": about(config={"watch": {"model": "\ud800"}}),
    "a config that is a number": about(config=7, versions=7, git=7, host=7, command=7),
    "ranks in a circle": loop,
    "steps beyond all numbers": told("end.json", step=HUGE, written=HUGE, dropped={"x": HUGE}),
    "a step that is text": told("end.json", step="7", written="7", dropped="7", last_seq="7"),
    "sequence numbers beyond all numbers": told("end.json", last_seq={"stats": HUGE}),
    "a heartbeat beyond all times": told("hb.json", wall_ns=HUGE),
    "a process beyond all numbers": told("json", pid=HUGE, world_size=HUGE, resume_from_step=HUGE),
    "a process that is text": told("json", pid="1", world_size=[], resume_from_step={}),
    "a start that is nested": told("json", host=[[[[[[]]]]]]),
    "a reason that is a list": told("end.json", reason=["failed"]),
}
"""What makes a run hostile, by what it is. One more is one more line."""


@pytest.mark.parametrize("kind", HOSTILE_RUNS)
def test_one_bad_run_hides_no_other_in_any_listing(good, tmp_path, kind, capsys):
    folder = tmp_path / "runs"
    shutil.copytree(good, folder / "good")
    shutil.copytree(good, folder / "bad")
    HOSTILE_RUNS[kind](folder / "bad")
    assert "good" in {run.name for run in locations.find_runs(str(folder))}
    assert main(["ls", str(folder)]) in {0, 1}
    assert "good" in capsys.readouterr().out
    assert main(["ls", str(folder), "--json"]) in {0, 1}
    assert {row["name"] for row in json.loads(capsys.readouterr().out)} >= {"good"}
    shelf = RunList(str(folder))
    assert {row.name for row in shelf.table().runs} >= {"good"}
    envelope.pack("runs", shelf.table())
    shelf.version()
    assert main(["show", str(folder / "bad")]) in {0, 1, 2}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"a\x1b[31mb", b"new\nline", b"\xe2\x80\xae", b"it's", b"-rf", b"x" * 200]
)
def test_a_run_of_any_name_is_listed_and_steers_nothing(good, tmp_path, name, capsysbinary):
    folder = os.fsencode(tmp_path / "runs")
    shutil.copytree(os.fsencode(good), os.path.join(folder, name))
    shutil.copytree(os.fsencode(good), os.path.join(folder, b"good"))
    for more in ([], ["--json"]):
        assert main(["ls", str(tmp_path / "runs"), *more]) == 0
        out = capsysbinary.readouterr().out.decode("utf-8")
        assert "good" in out
        assert all(c == "\n" or c.isprintable() for c in out), out
    shelf = RunList(str(tmp_path / "runs"))
    assert len(shelf.table().runs) == 2
    envelope.pack("runs", shelf.table())[1].decode("utf-8", "strict")


STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r\b\x00"


def test_nothing_of_a_run_steers_the_terminal(tmp_path, capsys):
    """Every name and text of it holds escape sequences, and every verb prints them as text."""
    import numpy as np
    from made import batch

    bad = f"x{STEERING}y".replace("\x00", "")
    path = tmp_path / "runs" / f"r{STEERING}".replace("\x00", "").replace("/", "")
    with Writer(path, flush_s=60, compact=False, config={bad: bad, "watch": {bad: bad}}) as writer:
        writer.sites([SiteInfo(0, Site(bad, "output", 0, bad), bad, (2,), bad)])
        writer.sketches(batch(0, 1, phase=bad))
        writer.numbers(NumberBatch(0, bad, [bad, bad], [None, bad], np.arange(2.0)))
        writer.tensors([whole.traced(0, {bad: bad}, name=f"h.0.forward.{bad}"), whole.source()])
        writer.event(Event("skipped", bad, where=bad))
        writer.event(Event(bad, bad, where=bad, level="error"))
    next((path / "live" / "r00000").glob("*.parquet")).write_bytes(b"damaged")
    run = str(path)
    commands = [
        ["ls", str(path.parent)],
        ["ls", str(path.parent), "--json"],
        ["show", run],
        ["show", run, "--sites"],
        ["show", run, "--json"],
        ["query", run, "select * from sites"],
        ["query", run, "select * from sites", "--json"],
        ["query", run, f'select 1 as "{bad}"'],
        ["query", run, f"select '{bad}' from nowhere"],
        ["export", run, "--to", str(tmp_path / "x.csv"), "--table", "sites"],
        ["compact", run],
        ["trace", "ls", run],
        ["trace", "show", run],
        ["show", str(path.parent / f"no{bad}")],
        ["show", str(path.parent)],
    ]
    for command in commands:
        assert main(command) in {0, 1, 2}
        found = capsys.readouterr()
        for text in (found.out, found.err):
            steering = re.findall(r"[^\n]", "".join(c for c in text if not c.isprintable()))
            assert not steering, (command, text)


def test_csv_on_a_terminal_is_cleaned_and_in_a_file_is_not():
    import pyarrow as pa

    from sonde.cli import _cells

    table = pa.table({"a": ["\x1b[2J", "plain"], "n": [1, 2]})
    assert _cells.for_terminal(table)["a"].to_pylist() == ["\\x1b[2J", "plain"]
    assert _cells.for_csv(table)["a"].to_pylist() == ["\x1b[2J", "plain"]


DENSE = b'{"crc32": "00000000", "x": [' + b"[]," * ((14 << 20) // 3) + b"[]]}"


def test_twelve_dense_json_files_take_bounded_memory_and_hide_nothing(good, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(good, folder / "good")
    shutil.copytree(good, folder / "bad")
    for n in range(12):
        (folder / "bad" / "ranks" / f"r{n:05d}.a0007-abcd.json").write_bytes(DENSE)
    for n in range(3):
        (folder / f"about-{n}").mkdir()
        (folder / f"about-{n}" / "run.json").write_bytes(DENSE)
    code, peak, output = peak_of("-m", "sonde", "ls", str(folder))
    assert peak < 600 << 20
    assert code == 1
    assert "good" in output
    assert len(RunList(str(folder)).table().runs) == 5
    with open_run(folder / "bad") as run:
        assert len(run.damaged) == 12
        assert run.steps


def test_a_config_that_is_too_large_to_be_read_is_left_out_when_it_is_written(tmp_path):
    deep = {f"k{i}": list(range(5000)) for i in range(100)}
    with Writer(tmp_path / "run", compact=False, config={"deep": deep}) as writer:
        writer.numbers(NumberBatch(0, "train", ["x"], [None], [1.0]))
    with open_run(tmp_path / "run") as run:
        assert run.damaged == []
        assert "left out" in json.dumps(run._about["config"])
