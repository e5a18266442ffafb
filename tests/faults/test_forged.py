"""Forged files, every checksum right: each is named as damage, and hides nothing but itself."""

import os
import shutil
import sys
from pathlib import Path

import forging
import numpy as np
import pyarrow as pa
import pytest
import whole
from forging import set_column

from sonde._errors import SondeError
from sonde.cli import main
from sonde.store import open_run
from sonde.store.writing.compaction import compact

pytestmark = pytest.mark.filterwarnings("ignore::sonde.SondeWarning")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "run"
    whole.write(path)
    return path


@pytest.fixture(scope="module")
def expected(plain):
    with open_run(plain) as run:
        return whole.answers(run)


@pytest.fixture
def path(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "run")
    return tmp_path / "run"


def one(path, folder):
    """The last segment of a table: nothing was written after it."""
    return max((path / folder / "r00000").glob("*.parquet"))


def nulls(column):
    return lambda rows: set_column(rows, column, [None] * rows.num_rows)


def constant(column, value):
    return lambda rows: set_column(rows, column, [value] * rows.num_rows)


def huge_names(rows):
    long = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(rows.num_rows, np.int32)), pa.array(["x" * (1 << 20)])
    )
    return set_column(rows, "name", long.cast(pa.string()))


FORGED_ROWS = {
    "a sketch without a step": ("live", nulls("step")),
    "a sketch without a name": ("live", nulls("name")),
    "a sketch without a phase": ("live", nulls("phase")),
    "a sketch without a kind": ("live", nulls("kind")),
    "a sketch without a call": ("live", nulls("call")),
    "a sketch without a count": ("live", nulls("count")),
    "a sketch without a sum": ("live", nulls("sum_sq")),
    "a sketch without bins": ("live", nulls("bin_ids")),
    "bins without counts": ("live", constant("bin_counts", [])),
    "bins that are null": ("live", constant("bin_ids", [None])),
    "bins below the first": ("live", constant("bin_ids", [-5])),
    "bins beyond the last": ("live", constant("bin_ids", [3000])),
    "a million bins": ("live", constant("bin_ids", list(range(32_000)) * 10)),
    "a name of a megabyte": ("live", huge_names),
    "a site without a name": ("sites", nulls("name")),
    "a site without a module": ("sites", nulls("module")),
    "a site without a call": ("sites", nulls("call")),
    "a site of no kind": ("sites", nulls("kind")),
    "a number without a step": ("live_numbers", nulls("step")),
    "a number without a name": ("live_numbers", nulls("name")),
    "an event without a code": ("events", nulls("code")),
    "a value without a name": ("live_traces", nulls("name")),
    "a value without a part": ("live_traces", nulls("part")),
    "a value without a step": ("live_traces", nulls("step")),
    "an array without a shape": ("live_traces", nulls("shape")),
    "an array without a place": ("live_traces", nulls("offset")),
    "an array without a dtype": ("live_traces", nulls("dtype")),
}
"""Rows that no writer makes, by the folder of their segment. One more is one more line."""


def ask_all(run):
    """Every question, each for itself: only our own errors may come."""
    asked = {
        "stats": lambda: run.stats(phase=None, stat=["count", "rms", "p50", "rm8"]),
        "rank": lambda: run.stats(rank=0, stat="count"),
        "attempts": lambda: run.stats(all_attempts=True),
        "merge": lambda: run.merge(phase=None),
        "merge by": lambda: run.merge(by=("name", "step")),
        "scalars": run.scalars,
        "metrics": run.metrics,
        "metrics of a module": lambda: run.metrics(module="h.*"),
        "sites": lambda: run.sites,
        "steps": lambda: run.steps,
        "info": lambda: run.info,
        "graph": lambda: run.graph,
        "level": lambda: run.graph.level(""),
        "traces": lambda: run.traces,
        "trace": lambda: list(run.trace("**").values),
        "progress": lambda: run.progress,
        "bins": lambda: run.sql("select * from bins"),
        "damaged": lambda: run.damaged,
    }
    found = {}
    for name, question in asked.items():
        try:
            found[name] = question()
        except SondeError as error:
            found[name] = error
    return found


@pytest.mark.parametrize("kind", FORGED_ROWS)
def test_forged_rows_are_named_and_hide_nothing_else(path, expected, kind, capsys):
    folder, change = FORGED_ROWS[kind]
    file = forging.rewritten(one(path, folder), change)
    with open_run(path, frame="arrow") as run:
        answers = ask_all(run)
        failed = {name: e for name, e in answers.items() if isinstance(e, SondeError)}
        assert failed == {}
        if run.examine() or run.damaged:
            assert [d.file for d in run.damaged] == [os.path.relpath(file, path)]
        found = whole.answers(run)
        for name, rows in found.items():
            if name not in {"sites", "steps", "edges", "nodes", "graph"}:
                assert set(rows) <= set(expected[name]), name
        touched = forging.table_of(file).name
        if touched != "numbers":
            assert found["scalars"] == expected["scalars"]
        if touched != "stats":
            assert found["bins"] == expected["bins"]
    assert main(["show", str(path)]) in {0, 1}
    capsys.readouterr()


def test_forged_rows_do_not_spread_when_they_are_compacted(path, expected):
    file = forging.rewritten(one(path, "live"), nulls("name"))
    report = compact(str(path))
    assert os.path.relpath(file, path) in {d.file for d in report.damages}
    with open_run(path, frame="arrow") as run:
        ask_all(run)
        assert [d.file for d in run.damaged] == [os.path.relpath(file, path)]


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]


@pytest.mark.parametrize("at", [5, 40, 200, 1000])
def test_a_page_that_one_reader_takes_and_another_does_not_costs_one_segment(path, expected, at):
    """The name has the right checksum for the changed bytes; those of the pages are wrong."""
    file = one(path, "live")
    bad = forging.renamed(file, flipped(file.read_bytes(), at))
    with open_run(path, frame="arrow") as run:
        answers = ask_all(run)
        assert not [e for e in answers.values() if isinstance(e, SondeError)]
        run.examine()
        assert [d.file for d in run.damaged] == [os.path.relpath(bad, path)]
        found = whole.answers(run)
        assert set(found["records"]) < set(expected["records"])
        assert found["scalars"] == expected["scalars"]


def test_a_column_of_another_shape_costs_one_segment(path, expected):
    """DuckDB takes the type of the first file for all: one list of lists would fail every other."""

    def nest(rows):
        nested = pa.array([[[1]]] * rows.num_rows, pa.list_(pa.list_(pa.int16())))
        return rows.set_column(rows.schema.get_field_index("bin_ids"), "bin_ids", nested)

    bad = forging.rewritten(one(path, "live"), nest)
    with open_run(path, frame="arrow") as run:
        assert run.stats(stat="p50").num_rows
        assert [d.file for d in run.damaged] == [os.path.relpath(bad, path)]


def test_a_query_of_a_user_that_fails_examines_nothing(path, monkeypatch):
    with open_run(path, frame="arrow") as run:
        monkeypatch.setattr(run._inquiry, "examine", lambda: pytest.fail("examined"))
        for query in (
            "select nonsense",
            "selekt",
            "select 'x'::int",
            "select * from nowhere",
            "select (name || 'x')::int from stats",
        ):
            with pytest.raises(SondeError, match="The query failed"):
                run.sql(query)


def test_traced_values_that_were_not_copied_are_named_as_damage(path, expected):
    """A copy without `tensors/`, or with a part of it: the rows are there, what they point to is
    not."""
    files = sorted((path / "tensors" / "r00001").iterdir())
    files[3].unlink()
    shutil.rmtree(path / "tensors" / "r00000")
    with open_run(path, frame="arrow") as run:
        problems = {d.file: d.problem for d in run.damaged}
        assert set(problems) == {
            "tensors/r00000/a0000",
            "tensors/r00000/a0001",
            "tensors/r00001/a0000",
        }
        assert problems["tensors/r00001/a0000"] == "lacks 1 of 9 files of traced values (3)"
        assert "lacks 9 of 9" in problems["tensors/r00000/a0000"]
        assert [d["file"] for d in run.info["damaged"]] == sorted(problems)
        assert run.scalars().num_rows == 10
    assert main(["show", str(path)]) == 1


def test_a_whole_run_with_traced_values_names_no_damage(path):
    with open_run(path) as run:
        assert run.damaged == []


# -- memory --------------------------------------------------------------------------------------


def peak_of(*command):
    """The exit code, the largest memory in bytes, and the output of a process of its own."""
    import json
    import subprocess

    code = (
        "import json, resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, *sys.argv[1:]], capture_output=True, text=True,"
        " timeout=500)\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024\n"
        "print(json.dumps([done.returncode, peak, done.stdout + done.stderr]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command], capture_output=True, text=True, check=True
    )
    return tuple(json.loads(done.stdout))


def bombed(rows, n):
    """The same rows `n` times over, in a file that hardly grows."""
    return pa.concat_tables([rows] * n).combine_chunks()


BOMBS = {
    "rows": lambda rows: bombed(rows.slice(0, 1), 1_500_000),
    "bins": lambda rows: bombed(constant("bin_ids", [7] * 2048)(rows).slice(0, 1), 30_000),
}
"""Small files that grow without end. One more is one more line."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_of_a_segment_takes_bounded_memory(path, kind):
    options = {"compression": "zstd", "write_statistics": False}
    file = forging.rewritten(one(path, "live"), BOMBS[kind], **options)
    assert file.stat().st_size < 13 << 20
    for verb in ("show", "ls"):
        where = str(path if verb == "show" else path.parent)
        code, peak, output = peak_of("-m", "sonde", verb, where)
        assert peak < 2 << 30, (verb, peak, output[-500:])
        assert code in {0, 1}
        assert "Traceback" not in output


def test_an_answer_over_its_limit_is_refused_with_a_remedy(path):
    from sonde.store.limits import Limits

    with open_run(path, frame="arrow", limits=Limits(answer_bytes=100)) as run:
        with pytest.raises(SondeError, match="Ask for fewer steps"):
            run.stats()
        assert run.damaged == []


# -- spilling ------------------------------------------------------------------------------------


def test_what_does_not_fit_in_memory_goes_to_a_private_folder(path):
    with open_run(path, frame="arrow") as run:
        where = Path(run.sql("select current_setting('temp_directory') as t")["t"][0].as_py())
        assert where.stat().st_mode & 0o777 == 0o700
        assert where.stat().st_uid == os.getuid()
        assert str(os.getpid()) not in where.name
        limit = run.sql("select current_setting('memory_limit') as t")["t"][0].as_py()
        assert limit == "1.0 GiB"


def test_the_private_folder_is_gone_when_the_process_has_ended(path):
    import subprocess

    code = (
        "import sonde\nfrom sonde.store.sql import spilling\n"
        f"run = sonde.open({str(path)!r})\nrun.steps\nprint(spilling.folder())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    where = done.stdout.strip().splitlines()[-1]
    assert where
    assert not os.path.exists(where)
