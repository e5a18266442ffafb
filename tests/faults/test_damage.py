"""Whatever happens to a file: it is named, all that is sound is read, no number is wrong."""

import json
import os
import random
import shutil
import warnings
from pathlib import Path

import made
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faulty import QuickFiles

import sonde
from sonde.record import Event
from sonde.store import Writer, documents, open_run, segments
from sonde.store.schemas import SKETCHES
from sonde.store.segments import Attempt, Contents
from sonde.store.writing.compaction import compact

N_SITES = 4
pytestmark = pytest.mark.filterwarnings("ignore::sonde.SondeWarning")


def write(path, *, steps=range(70), resume=None):
    with Writer(
        path, flush_s=60, compact=False, resume_from_step=resume, files=QuickFiles()
    ) as writer:
        writer.sites(made.sites(N_SITES))
        for step in steps:
            writer.sketches(made.batch(step, N_SITES))
            writer.numbers(made.loss(step))
            writer.flush()
        writer.event(Event("skipped", "something"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """70 steps in 70 segments, of which 64 are compacted."""
    path = tmp_path_factory.mktemp("whole") / "run"
    with Writer(path, flush_s=60, compact=False, files=QuickFiles()) as writer:
        writer.sites(made.sites(N_SITES))
        for step in range(70):
            writer.sketches(made.batch(step, N_SITES))
            writer.numbers(made.loss(step))
            writer.flush()
        writer.event(Event("skipped", "something"))
        writer.flush()
        compact(str(path))
    return path


@pytest.fixture
def path(whole, tmp_path):
    target = tmp_path / "run"
    shutil.copytree(whole, target)
    return target


def files_of(path, *folders):
    return sorted(
        os.path.join(d, n)
        for folder in folders
        for d, _, names in os.walk(path / folder)
        for n in names
        if not n.startswith(".")
    )


def answers(run):
    """Every value that the run gives, as sets of rows."""
    rows = run.stats(stat=["count", "sum", "max", "p50"], phase=None)
    bins = run.sql("select step, name, bin, count from bins")
    return {
        "stats": {tuple(r.items()) for r in rows.to_pylist()},
        "scalars": {tuple(r.items()) for r in run.scalars().to_pylist()},
        "bins": {tuple(r.items()) for r in bins.to_pylist()},
        "sites": {str(r) for r in run.sites.to_pylist()},
        "events": {str(r) for r in run.sql("select * from events").to_pylist()},
    }


def flip(file, position, bit):
    with open(file, "r+b") as f:
        f.seek(position)
        byte = f.read(1)[0]
        f.seek(position)
        f.write(bytes([byte ^ (1 << bit)]))


def positions(file, n, rng):
    """Places of every kind: the head, the pages, the footer, its length and the closing mark."""
    size = os.path.getsize(file)
    with open(file, "rb") as f:
        f.seek(-8, 2)
        footer = int.from_bytes(f.read(4), "little")
    places = [0, 3, 4, 20, size - 1, size - 4, size - 5, size - 8, size - 9, size - 8 - footer]
    places += [rng.randrange(size - 8 - footer, size - 8) for _ in range(n // 3)]
    places += [rng.randrange(4, size - 8 - footer) for _ in range(n)]
    return places


@pytest.mark.parametrize("folder", ["live", "stats", "live_numbers", "numbers", "sites", "events"])
def test_one_flipped_bit_anywhere_is_named_and_never_gives_a_wrong_number(path, folder):
    rng = random.Random(folder)
    with open_run(path, frame="arrow") as run:
        right = answers(run)
    file = rng.choice(files_of(path, folder))
    where = os.path.relpath(file, path)
    flips = [(p, rng.randrange(8)) for p in positions(file, 30, rng)]
    with open_run(path, frame="arrow") as run:
        for position, bit in flips:
            flip(file, position, bit)
            found = answers(run)
            assert [d.file for d in run.damaged] == [where], (position, bit)
            for table, rows in found.items():
                assert rows <= right[table], (table, position, bit)
            gone = {"live": "stats", "stats": "stats"}.get(folder, folder)
            gone = {"live_numbers": "scalars", "numbers": "scalars"}.get(gone, gone)
            untouched = set(right) - {gone, "bins" if gone == "stats" else gone}
            assert all(found[table] == right[table] for table in untouched)
            flip(file, position, bit)
    with open_run(path, frame="arrow") as run:
        assert answers(run) == right


@pytest.mark.parametrize("ending", [".json", ".hb.json", ".end.json", "run.json"])
def test_one_flipped_bit_in_a_json_file_is_named_and_hides_nothing(path, ending):
    rng = random.Random(ending)
    with open_run(path, frame="arrow") as run:
        right = answers(run)
    if ending == "run.json":
        file = str(path / "run.json")
    else:
        file = next(
            f
            for f in files_of(path, "ranks")
            if f.endswith(ending) and f.count(".") == 1 + ending.count(".")
        )
    for _ in range(25):
        place = (rng.randrange(os.path.getsize(file)), rng.randrange(8))
        before = json.loads(Path(file).read_bytes())
        flip(file, *place)
        with open_run(path, frame="arrow") as run:
            assert answers(run) == right
            try:
                is_same = json.loads(Path(file).read_bytes()) == before
            except ValueError:
                is_same = False
            named = [d["file"] for d in run.info["damaged"]]
            assert named == (
                [] if is_same else [os.path.relpath(file, path)]
            )  # white space may change
        flip(file, *place)


def test_a_damaged_start_file_does_not_bring_replaced_rows_back(tmp_path):
    path = tmp_path / "run"
    write(path, steps=range(10))
    write(path, steps=range(5, 8), resume=5)
    start = next(f for f in files_of(path, "ranks") if "a0001" in f and f.count(".") == 2)
    flip(start, 40, 1)
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count")["step"].to_pylist() == [
            s for s in range(8) for _ in range(N_SITES)
        ]


def replace_with_folder(file):
    os.unlink(file)
    os.mkdir(file)


def replace_with_link(file):
    os.rename(file, file + ".moved")
    os.symlink(file + ".moved", file)


def replace_with_pipe(file):
    os.unlink(file)
    os.mkfifo(file)


def truncate(file):
    os.truncate(file, os.path.getsize(file) // 2)


def empty(file):
    os.truncate(file, 0)


def append(file):
    with open(file, "ab") as f:
        f.write(b"x")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (os.unlink, "lacks segment 66"),
        (truncate, "wrong checksum"),
        (append, "wrong checksum"),
        (empty, "is empty"),
        (replace_with_folder, "is a folder"),
        (replace_with_link, "is a symbolic link"),
        (replace_with_pipe, "is a pipe"),
    ],
)
def test_a_segment_that_is_no_longer_one_is_named_and_the_rest_is_read(path, harm, said):
    file = files_of(path, "live")[2]
    harm(file)
    with open_run(path, frame="arrow") as run:
        steps = set(run.stats(stat="count")["step"].to_pylist())
        assert steps == set(range(70)) - {66}
        assert len(run.damaged) == 1
        assert said in run.damaged[0].problem
        assert run.scalars().num_rows == 70
        assert run.info["damaged"][0]["file"].startswith("live/r00000/a0000-")


def test_a_missing_last_segment_is_noticed_through_the_end_file(path):
    os.unlink(files_of(path, "live")[-1])
    with open_run(path, frame="arrow") as run:
        assert [d.problem for d in run.damaged] == ["lacks segment 69"]


def test_a_damaged_compacted_segment_is_replaced_by_its_parts_if_they_are_there(whole, tmp_path):
    path = tmp_path / "run"
    write(path)
    parts = tmp_path / "parts"
    shutil.copytree(path / "live", parts)
    compact(str(path))
    flip(files_of(path, "stats")[0], 1000, 3)
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 0
        assert len(run.damaged) == 1
    shutil.copytree(parts, path / "live", dirs_exist_ok=True)
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        assert len(run.damaged) == 1
        report = compact(str(path))
        assert report.removed == 0, "nothing may be removed on the word of a damaged segment"
        assert run.stats(stat="count").num_rows == 70 * N_SITES


def test_a_block_with_a_damaged_segment_stays_as_it_is(tmp_path):
    path = tmp_path / "run"
    write(path)
    file = files_of(path, "live")[10]
    flip(file, 500, 0)
    report = compact(str(path))
    assert [d.file for d in report.damages] == [os.path.relpath(file, path)]
    with open_run(path, frame="arrow") as run:
        assert set(run.stats(stat="count")["step"].to_pylist()) == set(range(70)) - {10}
        assert run.scalars().num_rows == 70


def test_damage_is_warned_of_once_per_run(path):
    flip(files_of(path, "live")[0], 100, 0)
    with open_run(path) as run, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run.stats()
        run.stats()
        assert [w.category for w in caught] == [sonde.SondeWarning]
        assert "live/r00000" in str(caught[0].message)


def test_damaged_sites_are_known_from_the_rows_that_name_them(path):
    flip(files_of(path, "sites")[0], 100, 0)
    with open_run(path, frame="arrow") as run:
        assert run.stats("h.0", kind="output", stat="count").num_rows == 70
        assert run.sketch("h.0.weight", kind="param", step=3).count == 3021
        assert run.sites.num_rows == 0


def test_a_file_that_cannot_be_read_just_now_is_looked_at_again(path, monkeypatch):
    """Out of file descriptors is no damage: the next question finds everything."""

    def refuse(file, *_):
        raise OSError(24, "Too many open files")

    with open_run(path, frame="arrow") as run:
        with monkeypatch.context() as patch:
            patch.setattr(segments, "check", refuse)
            assert {d.problem for d in run.damaged} >= {"cannot be read (Too many open files)"}
        assert run.damaged == []
        assert run.stats(stat="count").num_rows == 70 * N_SITES


def test_strange_files_are_left_alone_or_named(path):
    folder = path / "live" / "r00000"
    (folder / "notes.txt").write_text("mine")
    (folder / ".tmp-abc").write_bytes(b"half")
    (folder / "a0000-zzzz.parquet").write_bytes(b"x")
    (path / "live" / "rank1").mkdir()
    (path / "graph").mkdir()
    (path / "ranks" / "r00000.notes.json").write_text("{}")
    os.symlink("/etc", path / "live" / "r00007")
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        assert {d.file for d in run.damaged} == {"live/r00000/a0000-zzzz.parquet", "live/r00007"}


def test_a_segment_of_another_run_rank_or_place_is_not_read(path, tmp_path):
    other = tmp_path / "other"
    write(other, steps=range(1))
    folder = path / "live" / "r00000"
    own = files_of(path, "live")[0]
    stranger = files_of(other, "live")[0]
    shutil.copy(stranger, folder)
    os.makedirs(path / "live" / "r00003")
    shutil.copy(own, path / "live" / "r00003")
    wrong_number = os.path.basename(own).replace("-00000064-00000064-", "-00000090-00000090-")
    shutil.copy(own, folder / wrong_number)
    shutil.copy(
        files_of(path, "live_numbers")[0], folder / os.path.basename(own).replace("a0000", "a0001")
    )
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        problems = " ".join(d.problem for d in run.damaged)
        for text in ("belongs to another run", "another segment in its contents", "lacks segment"):
            assert text in problems


def segment_bytes(rows, contents, **changes):
    """A segment with a right checksum but wrong insides."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_table(rows)
        footer = {
            "format_version": "1.0",
            "run_id": contents.run_id,
            "table": "stats",
            "rank": 0,
            "attempt": 0,
            "token": contents.attempt.token,
            "first_seq": 70,
            "last_seq": 70,
            "resume_from_step": None,
            "steps": [0, 0],
            "repeats": False,
            **changes,
        }
        writer.add_key_value_metadata({"sonde": json.dumps(footer)})
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "change",
    ["wrong type", "missing key", "no footer", "footer of lists", "not parquet", "huge steps"],
)
def test_a_crafted_segment_with_a_right_checksum_is_named_or_read_but_never_breaks(path, change):
    import zlib

    own = files_of(path, "live")[0]
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    attempt = Attempt(0, 0, os.path.basename(own).split("-")[1])
    contents = Contents(run_id, attempt, 70, 70, None, repeats=False)
    rows = pq.read_table(own).cast(SKETCHES.schema)
    data = segment_bytes(rows, contents)
    if change == "wrong type":
        data = segment_bytes(rows.set_column(2, "step", rows["step"].cast(pa.string())), contents)
    elif change == "missing key":
        data = segment_bytes(rows.drop_columns(["name"]), contents)
    elif change == "no footer":
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        data = sink.getvalue().to_pybytes()
    elif change == "footer of lists":
        data = segment_bytes(rows, contents, steps={"a": 1}, repeats=[])
    elif change == "not parquet":
        data = b"PAR1" + os.urandom(200) + b"PAR1"
    elif change == "huge steps":
        data = segment_bytes(rows, contents, steps=[-(2**70), 2**70], resume_from_step=2**65)
    name = segments.SegmentName(attempt, 70, 70, f"{zlib.crc32(data):08x}")
    (path / "live" / "r00000" / str(name)).write_bytes(data)
    with open_run(path, frame="arrow") as run:
        assert set(run.stats(stat="count")["step"].to_pylist()) >= set(range(70))
        assert run.damaged or change == "huge steps"


HOSTILE = {
    "huge": b'{"x": "' + b"a" * (documents.MAX_BYTES + 1) + b'"}',
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "nan": b'{"crc32": "00000000", "pid": NaN, "wall_ns": Infinity}',
    "not an object": b"[1, 2]",
    "not utf-8": b"\xff\xfe\x00",
    "empty": b"",
    "duplicate keys": b'{"pid": 1, "pid": 2}',
    "big integer": b'{"pid": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("kind", sorted(HOSTILE))
@pytest.mark.parametrize("target", ["run.json", ".hb.json", ".end.json", "start"])
def test_hostile_json_is_named_and_does_no_harm(path, kind, target):
    files = files_of(path, "ranks")
    file = {
        "run.json": str(path / "run.json"),
        "start": next(f for f in files if f.count(".") == 2),
        ".hb.json": next(f for f in files if f.endswith(".hb.json")),
        ".end.json": next(f for f in files if f.endswith(".end.json")),
    }[target]
    with open(file, "wb") as f:
        f.write(HOSTILE[kind])
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        assert [d.file for d in run.damaged] == [os.path.relpath(file, path)]
        json.dumps(run.info)
        assert run.status in {"live", "finished", "crashed"}


WRONG_TYPES = [
    {
        "last_seq": "many",
        "step": {"a": 1},
        "dropped": [1],
        "info": 7,
        "problems": "x",
        "written": None,
    },
    {"last_seq": {"stats": "x", "numbers": -5}, "dropped": {"a": "b"}, "info": {"overhead": [1]}},
    {"wall_ns": "now", "monotonic_ns": None, "reason": 5, "errors": "none"},
]


@pytest.mark.parametrize("fields", WRONG_TYPES)
@pytest.mark.parametrize("ending", [".hb.json", ".end.json"])
def test_fields_of_wrong_types_with_a_right_checksum_do_no_harm(path, fields, ending):
    file = next(f for f in files_of(path, "ranks") if f.endswith(ending))
    document = documents.load(file)
    with open(file, "wb") as f:
        f.write(documents.dump({**document, **fields}))
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        json.dumps(run.info)


@pytest.mark.parametrize(
    "fields",
    [
        {"config": [1, 2], "versions": "x", "command": 7, "git": [], "host": None, "created": 5},
        {"config": None, "versions": None, "host": [], "git": {"commit": 7}, "created_ns": "x"},
    ],
)
def test_a_run_file_with_fields_of_wrong_types_is_shown_all_the_same(path, fields, capsys):
    from sonde.cli import main

    document = documents.load(str(path / "run.json"))
    (path / "run.json").write_bytes(documents.dump({**document, **fields}))
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
        json.dumps(run.info)
    assert main(["show", str(path)]) == 0
    assert main(["ls", str(path.parent)]) == 0
    assert "finished" in capsys.readouterr().out


def test_a_run_without_a_usable_version_is_read_and_named(path):
    document = documents.load(str(path / "run.json"))
    for version in (None, 7, "x.y", ""):
        (path / "run.json").write_bytes(documents.dump({**document, "format_version": version}))
        with open_run(path, frame="arrow") as run:
            assert run.stats(stat="count").num_rows == 70 * N_SITES
            assert [d.file for d in run.damaged] == ["run.json"]
    newer_minor = {**document, "format_version": "1.9", "something": "new"}
    (path / "run.json").write_bytes(documents.dump(newer_minor))
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="count").num_rows == 70 * N_SITES
    (path / "run.json").write_bytes(documents.dump({**document, "format_version": "2.0"}))
    with pytest.raises(sonde.RunError, match=r"format version 2\.0"):
        open_run(path)


def test_a_segment_of_a_newer_minor_version_with_more_columns_is_read(path):
    own = files_of(path, "live")[0]
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    attempt = Attempt(0, 0, os.path.basename(own).split("-")[1])
    rows = pq.read_table(own).cast(SKETCHES.schema)
    more = rows.append_column("colour", pa.array(["red"] * rows.num_rows))
    less = rows.drop_columns(["t_ns", "dtype"])  # as an older version might have written
    import zlib

    for seq, table in ((70, more), (71, less)):
        data = segment_bytes(
            table.set_column(2, "step", pa.array([100 + seq] * rows.num_rows, pa.int64())),
            Contents(run_id, attempt, seq, seq, None, repeats=False),
            first_seq=seq,
            last_seq=seq,
            steps=[100 + seq, 100 + seq],
        )
        name = segments.SegmentName(attempt, seq, seq, f"{zlib.crc32(data):08x}")
        (path / "live" / "r00000" / str(name)).write_bytes(data)
    with open_run(path, frame="arrow") as run:
        assert run.damaged == []
        assert run.stats(stat="rms")["step"].to_pylist()[-8:] == [170] * 4 + [171] * 4
        nulls = run.sql("select distinct dtype from stats where step = 171")["dtype"].to_pylist()
        assert nulls == [None]
        before = run.stats(stat=["rms", "p50"])
    compact(str(path))
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat=["rms", "p50"]).equals(before)


def test_bins_that_no_writer_makes_are_left_out_and_named(path):
    import zlib

    own = files_of(path, "live")[0]
    run_id = json.loads((path / "run.json").read_text())["run_id"]
    attempt = Attempt(0, 0, os.path.basename(own).split("-")[1])
    rows = pq.read_table(own).cast(SKETCHES.schema)
    bad = pa.array([[-5, 3000]] * rows.num_rows, pa.list_(pa.int16()))
    at = rows.schema.get_field_index("bin_ids")
    data = segment_bytes(
        rows.set_column(at, "bin_ids", bad), Contents(run_id, attempt, 70, 70, None, repeats=False)
    )
    name = segments.SegmentName(attempt, 70, 70, f"{zlib.crc32(data):08x}")
    (path / "live" / "r00000" / str(name)).write_bytes(data)
    with open_run(path, frame="arrow") as run:
        assert run.merge(kind="output").count
        assert len(run.damaged) == 1
        assert "holds" in run.damaged[0].problem


def test_opening_a_run_imports_and_executes_nothing_of_it(path):
    """No code, no pickle: an audit hook watches what opening a run does."""
    import subprocess
    import sys

    (path / "live" / "r00000" / "evil.py").write_text("raise SystemExit('ran')")
    (path / "sonde.py").write_text("raise SystemExit('ran')")
    script = f"""
import sys
from sonde.store import open_run
import pandas, pyarrow.pandas_compat
open_run({str(path)!r}).stats()
seen = []
def hook(event, args):
    never = event.startswith(('pickle', 'marshal', 'ctypes', 'subprocess', 'os.system'))
    if never or {str(path)!r} in str(args):
        seen.append((event, str(args)))
sys.addaudithook(hook)
run = open_run({str(path)!r})
run.stats(); run.info; run.merge(); run.sql('select * from bins')
bad = [s for s in seen if s[0] not in ('open', 'os.listdir', 'os.scandir')]
assert not bad, bad
assert not any("'w" in a or "'a'" in a for e, a in seen if e == 'open'), seen
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_random_mutations_of_parquet_never_give_wrong_numbers(path):
    """Not one bit but many bytes, anywhere, in any segment."""
    rng = np.random.default_rng(0)
    with open_run(path, frame="arrow") as run:
        right = answers(run)
        for file in files_of(path, "live", "stats", "sites", "numbers")[:12]:
            data = Path(file).read_bytes()
            for _ in range(3):
                changed = bytearray(data)
                for at in rng.integers(0, len(data), rng.integers(1, 40)):
                    changed[at] = rng.integers(0, 256)
                with open(file, "wb") as f:
                    f.write(changed)
                found = answers(run)
                assert all(found[table] <= right[table] for table in right)
            with open(file, "wb") as f:
                f.write(data)
