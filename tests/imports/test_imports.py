"""Runs of other trackers, written by their own clients, open as runs."""

import json
import struct
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import wandb
from torch.utils.tensorboard import SummaryWriter

import sonde
from sonde.cli import main
from sonde.imports import import_runs, neptune
from sonde.views.answers import ANSWERS
from sonde.views.questions import parse
from sonde.views.routes import ROUTES
from sonde.views.runs.opened_run import OpenedRun

VALUES = np.random.default_rng(0).normal(size=5000)


def counted(run, name="./attach/w"):
    return run.sql("select step, count, mean, rms, min, max from stats where name = ?", [name])


def notes(run):
    found = run.sql("select message from events where code = 'imported' order by message")
    return found["message"].tolist()


@pytest.fixture
def board(tmp_path):
    """Event files as people write them, with odd values among them."""
    with SummaryWriter(tmp_path / "board") as writer:
        for step in range(5):
            writer.add_scalar("loss", [1.5, float("nan"), float("inf"), 3e38, -0.25][step], step)
            writer.add_histogram("w", VALUES * (step + 1), step)
            writer.add_histogram("gradients/fc.weight", VALUES, step)
        writer.add_text("words", "hello")
        writer.add_scalar("new", 2.5, 3, new_style=True)
    return tmp_path / "board"


def test_event_files_of_torch_open_as_a_run(board, tmp_path):
    (path,) = import_runs(board, dir=tmp_path / "runs")
    assert path == tmp_path / "runs" / "board"
    run = sonde.open(path)
    expected = np.float32([1.5, np.nan, np.inf, 3e38, -0.25]).astype(float)
    np.testing.assert_array_equal(run.scalars("loss")["value"], expected)
    assert run.scalars("new")[["step", "value"]].values.tolist() == [[3, 2.5]]
    found = counted(run)
    assert found["count"].tolist() == [5000] * 5
    np.testing.assert_allclose(found["mean"], VALUES.mean() * np.arange(1, 6), rtol=1e-12)
    rms = np.sqrt((VALUES**2).mean())
    np.testing.assert_allclose(found["rms"], rms * np.arange(1, 6), rtol=1e-12)
    np.testing.assert_array_equal(found["max"], VALUES.max() * np.arange(1, 6))
    median = run.sketch("fc.weight", kind="param_grad", step=2).quantile(0.9)
    assert median == pytest.approx(np.quantile(VALUES, 0.9), rel=0.15)
    lacks, left_out = notes(run)
    assert lacks.startswith("Imported from TensorBoard. It has what was logged there: 2 series of ")
    assert "zeros, NaN and infinities are not known" in lacks
    assert left_out == (
        "Left out, because they are no numbers and no histograms: words/text_summary."
    )


def test_histograms_of_the_new_style_are_read(tmp_path):
    from tensorboard.compat.proto import event_pb2
    from tensorboard.plugins.histogram.summary_v2 import histogram_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(tmp_path / "new"))
    writer.add_event(event_pb2.Event(step=4, summary=histogram_pb("w", VALUES, buckets=30)))
    writer.close()
    (path,) = import_runs(tmp_path / "new", dir=tmp_path / "runs")
    found = counted(sonde.open(path), "./attach/w")
    assert found[["step", "count"]].values.tolist() == [[4, 5000]]
    assert found["mean"].tolist() == pytest.approx([VALUES.mean()], abs=0.05)


def test_what_was_sent_to_tensorboard_comes_back(tmp_path):
    model = torch.nn.Linear(4, 4)
    sink = sonde.sinks.TensorBoard(tmp_path / "sent", histograms="*")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, every=1, dir=tmp_path, name="one", sinks=[sink]):
        for _ in range(3):
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
    (path,) = import_runs(tmp_path / "sent", dir=tmp_path / "runs")
    asked = {"kind": ["output", "param", "param_grad"], "stat": ["count", "mean", "rms", "max"]}
    before, after = sonde.open(tmp_path / "one"), sonde.open(path)
    ours = before.stats("*", phase="train", **asked).sort_values(["step", "module", "kind", "slot"])
    back = after.stats("*", phase="train", **asked).sort_values(["step", "module", "kind", "slot"])
    columns = ["step", "module", "kind", "slot", "count"]
    assert back[columns].values.tolist() == ours[columns].values.tolist()
    np.testing.assert_allclose(back[["mean", "rms", "max"]], ours[["mean", "rms", "max"]])


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The file of an offline run of W&B."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(mode="offline", dir=str(tmp_path), project="tests", config={"lr": 0.1})
    run.define_metric("gradients/*", step_metric="sonde/step")
    for step in range(4):
        counts, edges = np.histogram(VALUES, 64)
        row = {"loss": [0.5, float("nan"), float("inf"), 1e300][step], "deep": {"x": step}}
        row["gradients/fc.weight"] = wandb.Histogram(np_histogram=(counts, edges))
        run.log(row | {"sonde/step": 10 * step, "word": "hello"})
    folder = Path(run.dir).parent
    run.finish()
    (path,) = folder.glob("*.wandb")
    size = -1
    while size != path.stat().st_size or size < 5000:  # completed after `finish` has returned
        size = path.stat().st_size
        time.sleep(0.2)
    return path


def test_an_offline_run_of_wandb_opens_as_a_run(offline, tmp_path):
    (path,) = import_runs(offline, dir=tmp_path / "runs", name="mine")
    run = sonde.open(path)
    np.testing.assert_array_equal(run.scalars("loss")["value"], [0.5, np.nan, np.inf, 1e300])
    assert run.scalars("deep.x")["step"].tolist() == [0, 1, 2, 3]
    found = counted(run, "fc/param_grad/weight")
    assert found[["step", "count"]].values.tolist() == [[10 * i, 5000] for i in range(4)]
    assert found["rms"].tolist() == pytest.approx([np.sqrt((VALUES**2).mean())] * 4, rel=0.01)
    assert run.info["config"]["user"]["lr"] == 0.1
    lacks, left_out = notes(run)
    assert "means and norms are estimates" in lacks
    assert left_out.endswith("word.")


def test_show_and_the_page_name_what_an_import_lacks(board, tmp_path, capsys):
    assert main(["import", str(board), "--dir", str(tmp_path / "runs"), "--json"]) == 0
    (path,) = json.loads(capsys.readouterr().out)["runs"]
    assert main(["show", path]) == 0
    shown = capsys.readouterr().out
    assert "loss" in shown
    assert "Imported from TensorBoard" in shown
    with sonde.open(path, frame="arrow") as run:
        opened = OpenedRun(run, "id")
        header = ANSWERS["run"](opened, parse(ROUTES["run"].question, [("run", "id")]))
    said = header.notices[0]
    assert said.message.startswith("Imported from TensorBoard. It has what was logged there")


def test_a_file_that_is_cut_short_is_read_up_to_there(board, offline, tmp_path):
    (events,) = board.glob("*tfevents*")
    for file in (events, offline):
        file.write_bytes(file.read_bytes()[:-300])
    (first,) = import_runs(events, dir=tmp_path / "runs", name="first")
    (second,) = import_runs(offline, dir=tmp_path / "runs", name="second")
    assert any("is damaged" in note for note in notes(sonde.open(first)))
    assert any("is cut short" in note for note in notes(sonde.open(second)))
    assert len(sonde.open(first).scalars("loss")) >= 4


@pytest.mark.parametrize("seed", range(8))
def test_damaged_bytes_are_an_error_of_ours_or_fewer_numbers(board, tmp_path, seed):
    (events,) = board.glob("*tfevents*")
    data = bytearray(events.read_bytes())
    places = np.random.default_rng(seed)
    for at in places.integers(0, len(data), 20):
        data[at] = places.integers(256)
    events.write_bytes(data)
    with suppress(sonde.SondeError):
        (path,) = import_runs(events, dir=tmp_path / "runs", name="one")
        assert sonde.open(path).status == "finished"


def test_what_is_no_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(sonde.SondeError, match="Found no run to import"):
        import_runs(tmp_path / "empty")
    with pytest.raises(sonde.SondeError, match="There is no file or folder"):
        import_runs(tmp_path / "none")
    (tmp_path / "events.out.tfevents.1").write_bytes(struct.pack("<Q", 5))
    with pytest.raises(sonde.SondeError, match="neither numbers nor histograms"):
        import_runs(tmp_path / "events.out.tfevents.1", dir=tmp_path / "runs")


def test_an_offline_file_of_neptune_opens_as_a_run(tmp_path):
    neptune_scale = pytest.importorskip(
        "neptune_scale", reason="neptune-scale asks for an older protobuf than ours"
    )
    from neptune_scale.types import Histogram

    run = neptune_scale.Run(
        project="w/p", run_id="one", mode="offline", log_directory=tmp_path / "neptune"
    )
    counts, edges = np.histogram(VALUES, 50)
    for step in range(3):
        run.log_metrics({"loss": step / 2, "huge": 1e300}, step=step)
        run.log_histograms({"debug/gradients/fc/weight/hist": Histogram(edges, counts)}, step=step)
    run.log_configs({"lr": 0.1})
    run.close()
    (path,) = import_runs(tmp_path / "neptune", dir=tmp_path / "runs", name="one")
    found = sonde.open(path)
    assert found.scalars("loss")["value"].tolist() == [0.0, 0.5, 1.0]
    assert counted(found, "fc/param_grad/weight")["count"].tolist() == [5000] * 3
    assert found.info["config"]["user"]["lr"] == 0.1
    assert neptune.read("x", tmp_path / "none").notes
