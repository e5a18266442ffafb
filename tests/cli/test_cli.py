"""The command line: for people it reads well, for programs it is JSON; never a traceback."""

import csv
import json
import os
import subprocess
import sys

import made
import numpy as np
import pytest

from sonde.cli import _text, main, verbs
from sonde.kernels.reference import sketch
from sonde.record import Event, NumberBatch, Site, SiteInfo, SketchBatch
from sonde.store import Writer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two runs: `quiet` is fine, `loud` has everything that can be said about a run."""
    folder = tmp_path_factory.mktemp("runs")
    with Writer(folder / "quiet", config={"every": 10}) as writer:
        writer.sites(made.sites(8))
        for step in range(20):
            writer.sketches(made.batch(step, 8))
            writer.numbers(made.loss(step))
    evil = Site("=cmd|' /C calc'!A0", "attach", 0, "\x1b[31mred[bold]")
    with Writer(folder / "loud", config={"a": "[red]x[/red]"}, max_pending_bytes=100_000) as writer:
        writer.sites([*made.sites(3), SiteInfo(3, evil, "float32", (2, 3), "Odd")])
        writer.flush()
        for step in range(5):
            bad = [
                sketch([1.0, np.nan if step > 2 else 2.0, np.inf]),
                *made.real_sketches(np.random.default_rng(step), 3),
            ]
            writer.sketches(
                SketchBatch(step, "train", np.arange(4, dtype=np.int32), made.columns(bad))
            )
            writer.numbers(made.loss(step, value=float("nan") if step == 4 else 1.0))
            writer.numbers(NumberBatch(step, "eval", ["+acc"], [None], np.array([0.5])))
        writer.event(Event("skipped", "a meta tensor", where="h.9", count=7))
        writer.event(Event("metric_failed", "it raised\x07", where="h.1", level="warning"))
        writer.set_info(overhead={"median": 1.04, "steps": 100})
        writer.flush()
        for step in range(5, 2000):
            writer.sketches(made.batch(step, 4))
        writer.close("failed: ValueError: boom")
        assert writer.counts.dropped["queue_full"] > 0
    return folder


def run_cli(capsys, *arguments):
    code = main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_verb_has_a_line_of_help_and_a_module_of_its_own(capsys):
    assert {"compact", "export", "ls", "query", "show"} <= set(verbs())
    for name, module in verbs().items():
        assert module.HELP, name
        assert callable(module.run)
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    assert "show" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["show", "--nonsense"], ["export", "x"]])
def test_bad_usage_is_exit_code_two(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_ls_lists_runs_newest_first(folder, capsys):
    code, out, _ = run_cli(capsys, "ls", folder)
    assert code == 0
    assert out.index("loud") < out.index("quiet")
    assert "failed" in out
    assert "finished" in out
    assert "dropped" in out
    code, out, _ = run_cli(capsys, "ls", folder, "--json")
    rows = json.loads(out)
    assert [(r["name"], r["status"]) for r in rows] == [("loud", "failed"), ("quiet", "finished")]
    assert rows[1]["step"] == 19
    assert rows[1]["records"] == 180


def test_ls_of_nothing_says_so(tmp_path, capsys):
    assert run_cli(capsys, "ls", tmp_path)[:2] == (0, f"There is no run in `{tmp_path}` yet.\n")
    code, _, err = run_cli(capsys, "ls", tmp_path / "nowhere")
    assert code == 2
    assert "no folder" in err


def test_show_says_what_matters(folder, capsys):
    code, out, _ = run_cli(capsys, "show", folder / "quiet")
    assert code == 0
    for text in (
        "finished",
        "steps 0 to 19",
        "every=10",
        "output_grad",
        "loss",
        "sonde query",
        "h.0/output/0",
    ):
        assert text in out, text
    code, out, _ = run_cli(capsys, "show", folder / "loud")
    assert code == 1, "records were dropped"
    for text in (
        *(
            "failed: ValueError: boom",
            "NaN",
            "dropped",
            "a meta tensor at h.9 (7 times)",
            "it raised",
        ),
        *("eval +acc", "median 1.04", "[red]x[/red]", "records dropped (queue_full)"),
    ):
        assert text in out, text
    assert out.index("non-finite values") < out.index("kinds of sites")


def test_nothing_of_a_run_can_steer_the_terminal(folder, capsys):
    for arguments in (
        ("show", folder / "loud", "--sites"),
        ("query", folder / "loud", "select name, slot from sites"),
        ("ls", folder),
    ):
        _, out, err = run_cli(capsys, *arguments)
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
    assert "\\x1b[31mred[bold]" in run_cli(capsys, "show", folder / "loud", "--sites")[1]


def test_show_as_json_is_valid_and_whole(folder, capsys):
    code, out, _ = run_cli(capsys, "show", folder / "loud", "--json")
    assert code == 1
    found = json.loads(out, parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))
    assert found["info"]["status"] == "failed"
    assert found["non_finite"]["sites"] >= 1
    assert found["non_finite"]["first"][0]["name"] == "h.0/output/0", "the first in the model"
    loss = next(s for s in found["scalars"] if s["name"] == "loss")
    assert loss["last"] is None
    assert loss["min"] == 1.0
    assert len(found["sites"]) == 4
    assert {k["kind"] for k in found["kinds"]} == {"output", "output_grad", "param", "attach"}


def test_show_of_an_empty_and_of_a_live_run(tmp_path, capsys):
    with Writer(tmp_path / "run") as writer:
        code, out, _ = run_cli(capsys, "show", tmp_path / "run")
        assert code == 0
        assert "live" in out
        assert "no step recorded yet" in out
        writer.sites(made.sites(100))
        writer.sketches(made.batch(0, 100))
        writer.flush()
        assert "100 sites; `--sites` lists them" in run_cli(capsys, "show", tmp_path / "run")[1]
        assert "h.24/param_grad" in run_cli(capsys, "show", tmp_path / "run", "--sites")[1]


def test_query_prints_a_table_json_or_csv(folder, capsys):
    query = "select step, name, value from scalars where phase = 'eval' order by step"
    code, out, _ = run_cli(capsys, "query", folder / "loud", query, "--limit", "2")
    assert code == 0
    assert "3 more rows" in out
    code, out, _ = run_cli(capsys, "query", folder / "loud", query, "--json")
    assert json.loads(out)[0] == {"step": 0, "name": "+acc", "value": 0.5}
    nan = run_cli(capsys, "query", folder / "loud", "select value from scalars", "--json")[1]
    assert None in [r["value"] for r in json.loads(nan)]
    run = subprocess.run(
        [sys.executable, "-m", "sonde", "query", folder / "loud", query, "--csv"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.splitlines()[1] == '0,"\'+acc",0.5'


def test_a_wrong_query_is_one_clear_message(folder, capsys):
    code, out, err = run_cli(capsys, "query", folder / "quiet", "select nope from stats")
    assert code == 2
    assert out == ""
    assert "nope" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("verb", ["show", "query", "export", "compact"])
def test_a_run_that_is_none_is_one_clear_message(tmp_path, capsys, verb):
    more = {"query": ["select 1"], "export": ["--to", str(tmp_path / "x.csv")]}.get(verb, [])
    code, out, err = run_cli(capsys, verb, tmp_path / "nowhere", *more)
    assert code == 2
    assert out == ""
    assert err.startswith("sonde: There is no run at")
    assert err.count("\n") == 1


@pytest.mark.parametrize("table", ["stats", "bins", "scalars", "metrics", "sites", "events"])
def test_export_to_every_format_holds_the_same_rows(folder, tmp_path, capsys, table):
    import h5py
    import pyarrow.parquet as pq

    for ending in ("parquet", "csv", "h5"):
        target = tmp_path / f"x.{ending}"
        code, out, _ = run_cli(
            capsys, "export", folder / "quiet", "--to", target, "--table", table, "--json"
        )
        assert code == 0
        assert json.loads(out)["rows"] == pq.read_table(tmp_path / "x.parquet").num_rows
    rows = pq.read_table(tmp_path / "x.parquet")
    with open(tmp_path / "x.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == rows.num_rows
    with h5py.File(tmp_path / "x.h5") as file:
        assert set(file[table]) == set(rows.schema.names)
        assert all(len(file[table][name]) == rows.num_rows for name in rows.schema.names)
        if table == "stats":
            assert file[table]["name"].asstr()[:].tolist() == rows["name"].to_pylist()
            np.testing.assert_array_equal(file[table]["rms"][:], rows["rms"].to_numpy())
            assert [float(line["rms"]) for line in lines] == rows["rms"].to_pylist()
            assert rows.num_rows == 160


def test_exported_text_never_runs_as_a_formula(folder, tmp_path, capsys):
    target = tmp_path / "sites.csv"
    run_cli(capsys, "export", folder / "loud", "--to", target, "--table", "sites")
    with open(target, newline="") as file:
        cells = [cell for line in list(csv.reader(file))[1:] for cell in line]
    assert any("cmd" in cell for cell in cells)
    assert not any(cell[:1] in set("=+-@\t\r") for cell in cells if not cell.isdigit())
    target = tmp_path / "scalars.csv"
    run_cli(capsys, "export", folder / "loud", "--to", target, "--table", "scalars")
    assert "'+acc" in target.read_text()


def test_export_overwrites_nothing_unasked_and_leaves_nothing_half_done(folder, tmp_path, capsys):
    target = tmp_path / "x.csv"
    target.write_text("mine")
    assert run_cli(capsys, "export", folder / "quiet", "--to", target)[0] == 2
    assert target.read_text() == "mine"
    assert run_cli(capsys, "export", folder / "quiet", "--to", target, "--force")[0] == 0
    assert target.read_text() != "mine"
    for path, said in (
        (tmp_path / "x.xlsx", "must end in"),
        (tmp_path / "no" / "x.csv", "no folder"),
        (folder / "quiet" / "x.csv", "inside the run"),
    ):
        code, _, err = run_cli(capsys, "export", folder / "quiet", "--to", path)
        assert code == 2
        assert said in err
    assert sorted(os.listdir(tmp_path)) == ["x.csv"]


def test_export_in_parts_equals_export_at_once(folder, tmp_path, capsys, monkeypatch):
    from sonde.cli import export

    for name, at_once in (("a.csv", 10**6), ("b.csv", 13)):
        monkeypatch.setattr(export, "_ROWS_AT_ONCE", at_once)
        run_cli(capsys, "export", folder / "quiet", "--to", tmp_path / name, "--table", "scalars")
    assert (tmp_path / "a.csv").read_text() == (tmp_path / "b.csv").read_text()


def test_compact_says_what_it_did(tmp_path, capsys):
    with Writer(tmp_path / "run", compact=False, flush_s=60) as writer:
        writer.sites(made.sites(2))
        for step in range(3):
            writer.sketches(made.batch(step, 2))
            writer.flush()
    assert run_cli(capsys, "compact", tmp_path / "run")[1] == "3 segments became 1.\n"
    assert run_cli(capsys, "compact", tmp_path / "run")[1] == "Nothing to compact.\n"
    found = json.loads(run_cli(capsys, "compact", tmp_path / "run", "--json")[1])
    assert found["segments_before"] == 0


def test_damage_is_named_and_makes_exit_code_one(tmp_path, capsys):
    with Writer(tmp_path / "run", compact=False, flush_s=60) as writer:
        writer.sites(made.sites(2))
        for step in range(3):
            writer.sketches(made.batch(step, 2))
            writer.flush()
    live = tmp_path / "run" / "live" / "r00000"
    with open(live / sorted(os.listdir(live))[1], "r+b") as file:
        file.seek(50)
        file.write(b"!!!!")
    code, out, err = run_cli(capsys, "query", tmp_path / "run", "select distinct step from stats")
    assert code == 1
    assert "not read: live/r00000/a0000-" in err
    assert "wrong checksum" in err
    code, out, _ = run_cli(capsys, "show", tmp_path / "run")
    assert code == 1
    assert "wrong checksum" in out
    assert run_cli(capsys, "compact", tmp_path / "run")[0] == 1
    assert run_cli(capsys, "export", tmp_path / "run", "--to", tmp_path / "x.csv")[0] == 1


def test_python_dash_m_sonde_and_a_reader_that_goes_away(folder):
    command = (
        f"{sys.executable} -m sonde query {folder / 'quiet'} 'select * from bins' --csv | head -1"
    )
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('"step"')
    assert done.stderr == ""
    version = subprocess.run(
        [sys.executable, "-m", "sonde", "--version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("sonde ")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((None, "–"), (float("nan"), "–"), (3, "3"), (1234567, "1,234,567"), (0.5, "0.5")),
        *((1e-9, "1.00e-09"), (123456.7, "1.23e+05"), (float("inf"), "inf"), (2.0, "2")),
    ],
)
def test_numbers_are_short(value, shown):
    assert _text.number(value) == shown


def test_sparks_show_shape_and_gaps():
    assert _text.spark([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert _text.spark([1.0, float("nan"), 1.0]) == "▄·▄"
    assert _text.spark([]) == ""
    assert len(_text.spark(list(range(1000)), 24)) == 24
    assert _text.spark([1e-8, 1e-4, 1.0], log=True)[0::2] == "▁█"


def test_a_long_list_of_runs_is_plain_and_says_the_same(tmp_path, capsys, monkeypatch):
    from sonde.cli import ls, main
    from sonde.store import Writer

    for name in ("a", "b"):
        Writer(tmp_path / name).close()
    said = []
    for most in (200, 1):
        monkeypatch.setattr(ls, "_LAID_OUT", most)
        assert main(["ls", str(tmp_path)]) == 0
        said.append([line.split() for line in capsys.readouterr().out.splitlines()])
    laid_out, plain = said
    assert [line for line in laid_out if "─" not in "".join(line) and line] == plain
