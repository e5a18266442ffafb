"""Weights & Biases: an offline run of the real client holds what the run has."""

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import wandb
from wandb_file import history, records

import sonde
from sonde.kernels import reference
from sonde.sinks import WandB
from sonde.sinks.numerics import numerics

GROUPS = {"output": "activations", "param": "parameters", "param_grad": "gradients"}


def key(site, stat):
    return f"{GROUPS[site.kind]}/{site.path or '[root module]'}/{stat}"


def until(is_so):
    """Wait: the service of wandb completes the file after `finish` has returned."""
    for _ in range(6000):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("the file was not completed")


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """An active offline run, and the rows that it has when it is finished."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="tests", reinit="finish_previous")

    def finish():
        (path,) = Path(run.dir).parent.glob("*.wandb")
        run.finish()
        until(lambda: any(r.WhichOneof("record_type") == "exit" for r in records(path)))
        return path

    yield run, finish
    wandb.finish()


def check_rows(rows, run, told, *, steps):
    expected = told(run, key)
    assert len(expected.numbers) >= 50 * 4
    by_step = {}
    for row in rows:
        by_step.setdefault(row["sonde/step"], {}).update(row)
    assert sorted(by_step) == steps
    for name, values in expected.numbers.items():
        ours = [by_step[step][name] for step in steps]
        np.testing.assert_array_equal(ours, [values[step] for step in steps])
    losses = [by_step[step]["sonde/loss"] for step in steps]
    np.testing.assert_array_equal(losses, [expected.scalars["loss"][step] for step in steps])
    return by_step


def test_a_run_of_its_own_reads_back_as_the_run(trained, told, asked, offline):
    _, finish = offline
    run = trained([WandB(steps="own", **asked)])
    rows = history(finish())
    by_step = check_rows(rows, run, told, steps=list(range(100)))
    for step in (0, 9, 99):
        ours = run.sketch("aside", kind="output", step=step).histogram(64)
        theirs = by_step[step]["activations/aside"]
        assert theirs["bins"] == ours.edges.tolist()
        assert theirs["values"] == pytest.approx(ours.counts.tolist())
        assert by_step[step]["gradients/layers.0.weight"]["_type"] == "histogram"  # wandb.watch's


def test_an_active_run_that_nothing_else_logs_to_has_the_steps_of_the_training(trained, offline):
    _, finish = offline
    trained(["wandb"], steps=4, every=2)
    assert [row["_step"] for row in history(finish()) if "activations/aside/rms" in row] == [0, 2]


@pytest.mark.parametrize("is_explicit", [True, False])
def test_the_step_of_the_user_never_moves(trained, told, asked, offline, unheard, is_explicit):
    active, finish = offline

    def after(watch, step):
        for part in range(3):
            at = {"step": 3 * step + part} if is_explicit else {}
            active.log({"loss": float(step)}, **at)
        watch.flush()

    run = trained([WandB(**asked)], after=after, every=2)
    rows = history(finish())
    theirs = [row for row in rows if "loss" in row]
    assert [(row["_step"], row["loss"]) for row in theirs] == [(i, i // 3) for i in range(300)]
    assert rows == theirs or rows[:-1] == theirs
    assert any("sonde/step" in row for row in theirs)
    placed = sorted({row["sonde/step"] for row in rows if "sonde/step" in row})
    check_rows([row for row in rows if "sonde/step" in row], run, told, steps=placed)
    lost = [text for text in unheard if "recorded steps are not in the W&B run" in text]
    unheard.clear()
    missing = 50 - len(placed)
    assert [int(text.split("`: ")[1].split()[0]) for text in lost] == [missing] * (missing > 0)


def test_charts_have_the_recorded_step_as_their_x_axis(trained, offline):
    _, finish = offline
    trained([WandB(steps="own", stats="rms")], steps=2)
    kept = list(records(finish()))
    metrics = [r.metric for r in kept if r.WhichOneof("record_type") == "metric"]
    axes = {m.glob_name: m.step_metric for m in metrics if m.glob_name}
    groups = ("activations/*", "gradients/*", "parameters/*", "sonde/*")
    assert axes == dict.fromkeys(groups, "sonde/step")


def test_numerics_are_means_over_tensors_with_rates(trained, offline):
    _, finish = offline
    run = trained([WandB(steps="own", numerics=True, stats="rms", max_series=1000)], steps=6)
    row = history(finish())[2]
    weights = run.stats("*", kind="param", stat="rms", steps=2)
    assert row["Numerics.Weights/rms"] == pytest.approx(weights["rms"].mean(), rel=1e-12)
    assert row["Numerics.Activation/overflow_rate"] == 0
    assert not isinstance(row.get("gradients/aside.weight"), dict)


def test_a_logframe_is_an_artifact_of_the_run(trained, offline, tmp_path):
    active, finish = offline
    frame = trained([], steps=3).to_logframe()
    logged = sonde.logframe.to_wandb(frame)
    assert logged.type == "tandv-logframe"
    (entry,) = logged.manifest.entries.values()
    assert entry.path == "logframe.parquet"
    shutil.copy(entry.local_path, tmp_path / entry.path)
    read = sonde.read_logframe(tmp_path / entry.path)
    assert read.shape == frame.shape
    assert read["metadata"]["step"].tolist() == frame["metadata"]["step"].tolist()
    kept = [r.artifact for r in records(finish()) if r.WhichOneof("record_type") == "artifact"]
    assert [(a.name, a.type) for a in kept] == [(f"logframe-{active.id}", "tandv-logframe")]


def test_the_report_of_a_run_is_shown_in_the_wandb_run(trained, offline):
    active, finish = offline
    recorded = trained([WandB()], steps=3)
    active.log({"mine": 1.0})
    before = active.step
    report = sonde.integrations.wandb.log_report(recorded.path)
    assert active.step == before
    kept = Path(active.dir)
    (row,) = (row for row in history(finish()) if "sonde/report" in row)
    assert row["sonde/report"]["_type"] == "html-file"
    text = (kept / row["sonde/report"]["path"]).read_text()
    assert len(text.encode()) == report.size_bytes
    assert 'data-sonde="' in text


def test_a_report_needs_a_wandb_run(trained):
    recorded = trained([], steps=1)
    with pytest.raises(sonde.SondeError, match="There is no active W&B run"):
        sonde.integrations.wandb.log_report(recorded.path)


def test_rates_are_shares_of_values_that_are_not_zero():
    values = np.array([0.0, 0.0, 2.0**-18, 1.0, 2.0**-17, 2.0**16, 2.0**15, np.inf, 3.0, np.nan])
    found = numerics([("output", reference.sketch(values))], ["max_abs"])
    assert found == {
        "Numerics.Activation/max_abs": 2.0**16,
        "Numerics.Activation/underflow_rate": 1 / 7,
        "Numerics.Activation/overflow_rate": 2 / 7,
    }


def test_no_active_run_is_refused_before_anything_happens(tmp_path, trained):
    with pytest.raises(sonde.SondeError, match="There is no active W&B run"):
        trained(["wandb"], dir=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_finished_run_is_reported_once(trained, offline, unheard):
    run, finish = offline
    finish()
    trained([WandB(run)], steps=3)
    (text,) = unheard
    unheard.clear()
    assert text.startswith("The sink `WandB` failed: ")
    assert "is finished" in text
