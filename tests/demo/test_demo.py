"""The demo as a person runs it, shortened; and the ground truth that the broken one promises."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

import sonde
from sonde.cli import main
from sonde.demo.scenarios import HEALTHY
from sonde.demo.torch.training import train

STEPS = 12
EVERY = 4


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """So small a network is as fast with one, whatever else runs on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def demo(folder, *options):
    """`sonde demo` in a folder of its own, as a process; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "demo", *options],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The demo, shortened: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("healthy")
    return folder, demo(folder, "--steps", f"{STEPS}", "--every", f"{EVERY}")


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The broken demo, whole: its run, opened, and what was printed."""
    folder = tmp_path_factory.mktemp("broken")
    told = demo(folder, "--broken", "--name", "run")
    with sonde.open(folder / "runs" / "run", frame="arrow") as opened:
        yield opened, told


def test_demo_ends_by_itself_and_leaves_a_run_that_show_describes(healthy, capsys):
    folder, told = healthy
    assert main(["show", f"{folder}/runs/latest", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["info"]["status"] == "finished"
    assert shown["info"]["steps"] == {
        "first": 0,
        "last": STEPS - 1,
        "recorded": STEPS // EVERY + 1,  # validation is recorded at the last
        "known": STEPS,
    }
    assert shown["info"]["config"]["user"]["scenario"]["name"] == "healthy"
    assert shown["non_finite"]["sites"] == 0
    assert f"step {STEPS}/{STEPS}" in told
    assert "Dive 12, at dusk." in told
    assert "sonde view runs" in told
    assert "http://" not in told, "nothing is served where there is no terminal"


def test_demo_records_each_nth_step_and_validation_apart(healthy):
    folder, _ = healthy
    with sonde.open(folder / "runs" / "latest", frame="arrow") as opened:
        train = opened.stats("blocks.0", kind="output", stat="rms")
        validation = opened.stats("blocks.0", kind="output", stat="rms", phase="validation")
        loss = opened.scalars("loss", phase="validation")
    assert train["step"].to_pylist() == [0, 4, 8]
    assert validation["step"].to_pylist() == [STEPS - 1]
    assert loss["step"].to_pylist() == [STEPS - 1]


def test_python_that_the_demo_prints_runs(healthy, monkeypatch):
    folder, told = healthy
    monkeypatch.chdir(folder)
    lines = told[told.index("\nimport sonde\n") :].splitlines()
    snippet = [line for line in lines if re.match(r"import |run", line)]
    assert len(snippet) == 9
    exec("\n".join(snippet), {})


def test_same_seed_gives_the_same_training_and_another_seed_another(tmp_path):
    losses = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        told = losses[name] = []
        train(
            HEALTHY,
            steps=3,
            every=10,
            seed=seed,
            dir=tmp_path,
            name=name,
            tell=lambda _, loss, __, told=told: told.append(loss),
        )
    assert losses["a"] == losses["b"]
    assert losses["a"] != losses["c"]


def test_demo_without_recording_says_so(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SONDE", "off")
    assert main(["demo", "--broken", "--steps", "2", "--dir", f"{tmp_path}"]) == 0
    assert "nothing was recorded" in capsys.readouterr().out
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["--steps", "--every"])
def test_numbers_below_one_are_refused(option, tmp_path, capsys):
    assert main(["demo", option, "0", "--dir", f"{tmp_path}"]) == 2
    assert "must be at least 1" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_taken_is_refused(tmp_path, capsys):
    command = ["demo", "--broken", "--steps", "1", "--dir", f"{tmp_path}", "--name", "a"]
    assert main(command) == 0
    assert main(command) == 2


def test_broken_demo_learns_until_its_gradients_explode(broken):
    opened, _ = broken
    loss = opened.scalars("loss", phase="train")["value"].to_pylist()
    norms = opened.sql(
        "select step, sqrt(sum(sum_sq)) as norm, sum(nans + infs) as bad from stats "
        "where kind = 'param_grad' group by step order by step"
    ).to_pylist()
    first_bad = next(row["step"] for row in norms if row["bad"])
    calm = [row["norm"] for row in norms if row["step"] < 30]
    assert len(loss) == 80
    assert min(loss[:first_bad]) < 0.8 * loss[0]
    assert 40 <= first_bad <= 65
    assert norms[first_bad - 1]["norm"] > 30 * max(calm)


def test_broken_demo_names_the_first_place_and_the_weights_follow(broken):
    opened, _ = broken
    bad = opened.sql(
        "select name, kind, min(step) as step from stats where nans + infs > 0 group by name, kind"
    ).to_pylist()
    first = min(row["step"] for row in bad)
    at_first = {row["name"] for row in bad if row["step"] == first}
    outputs = opened.stats(kind="output", stat="nonfinite", steps=first).to_pylist()
    where = next(row for row in outputs if row["nonfinite"])
    assert where["name"].startswith(("blocks.", "head/"))
    assert where["name"] in at_first
    assert not any(row["kind"] == "param" and row["step"] < first for row in bad)
    weights = [row["step"] for row in bad if row["kind"] == "param"]
    assert len(weights) > 30
    assert max(weights) <= first + 1


def test_broken_demo_shows_what_went_wrong(broken):
    _, told = broken
    assert "loss nan" in told
    assert "first at step" in told


def test_the_demo_trains_in_jax_too(tmp_path, capsys):
    pytest.importorskip("flax")
    asked = ["demo", "--jax", "--steps", "2", "--every", "1", "--no-view", "--name", "it"]
    assert main([*asked, "--dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out.partition("import sonde\n")[2].partition("\n\n")[2]
    run = sonde.open(tmp_path / "it")
    for line in printed.splitlines()[:6]:
        if line.startswith("run."):
            assert len(eval(line)) > 0, line
    names = set(run.sites["name"])
    assert {"blocks.3/output/0", "blocks.0.qkv/param_grad/kernel/before_clip"} <= names
    assert run.graph.level("blocks.0").edges


def test_the_broken_demo_is_not_there_in_jax(tmp_path, capsys):
    assert main(["demo", "--jax", "--broken", "--dir", str(tmp_path)]) != 0
    assert "Leave out `--jax`" in capsys.readouterr().err
