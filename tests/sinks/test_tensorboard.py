"""TensorBoard: its own reader reads back what the run has."""

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from sonde.sinks import Callback, TensorBoard


def read(path):
    found = EventAccumulator(str(path), {"scalars": 0, "histograms": 0, "graph": 1})
    return found.Reload()


def scalars(found, tag):
    return {event.step: event.value for event in found.Scalars(tag)}


def check_numbers(found, run, told):
    expected = told(run)
    assert len(expected.numbers) >= 50 * 4
    for key, by_step in {**expected.numbers, **expected.scalars}.items():
        ours = scalars(found, key)
        assert list(ours) == list(by_step)
        rounded = np.array(list(by_step.values())).astype(np.float32)
        np.testing.assert_array_equal(np.array(list(ours.values()), np.float32), rounded)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_event_files_read_back_as_the_run(trained, told, asked):
    run = trained([TensorBoard(**asked)])
    found = read(f"{run.path}/tensorboard")
    check_numbers(found, run, told)
    nonfinite = scalars(found, "activation/odd/nonfinite")
    assert [step for step, share in nonfinite.items() if share] == [3, 5, 7]
    assert scalars(found, "activation/odd/max_abs")[9] == np.float32(3e38)
    for step in (0, 3, 9, 99):
        event = next(e for e in found.Histograms("activation/aside") if e.step == step)
        sketch = run.sketch("aside", kind="output", step=step)
        theirs, ours = event.histogram_value, sketch.histogram(64)
        assert theirs.bucket_limit == ours.edges[1:].tolist()
        assert theirs.bucket == pytest.approx(ours.counts.tolist())
        exact = (sketch.min, sketch.max, sketch.finite, sketch.sum, sketch.sum_sq)
        assert (theirs.min, theirs.max, theirs.num, theirs.sum, theirs.sum_squares) == exact


def test_the_graph_joins_the_calls_of_the_model(trained, tmp_path):
    run = trained([TensorBoard(tmp_path / "there")], steps=2)
    nodes = {n.name: n for n in read(tmp_path / "there").Graph().node}
    assert nodes["Deep/layers/1"].op == "Linear"
    assert list(nodes["Deep/layers/1"].input) == ["Deep/layers/0"]
    assert list(nodes["Deep/aside"].input) == ["Deep/odd"]
    shapes = nodes["Deep/aside"].attr["_output_shapes"].list.shape
    assert [d.size for d in shapes[0].dim] == [8, 4]
    assert run.status == "finished"


def test_a_summary_writer_of_yours_is_written_to_and_left_open(trained, told, tmp_path):
    with SummaryWriter(tmp_path / "mine") as writer:
        run = trained([TensorBoard(writer, histograms="aside")], steps=3)
        writer.add_scalar("own", 1.0, 7)
    found = read(tmp_path / "mine")
    rms = run.stats("aside", kind="output", stat="rms")["rms"].to_numpy(np.float32)
    np.testing.assert_array_equal(
        list(scalars(found, "activation/aside/rms").values()), rms.tolist()
    )
    assert len(found.Histograms("activation/aside")) == 3
    assert scalars(found, "own") == {7: 1.0}


def test_a_resumed_run_replaces_what_was_written_from_there_on(trained):
    run = trained([TensorBoard()], steps=4, name="one")
    trained([TensorBoard()], steps=4, name="one", resume=True, step=2)
    found = read(f"{run.path}/tensorboard")
    assert list(scalars(found, "loss")) == [0, 1, 2, 3, 4, 5]


def test_readings_go_to_any_function(trained):
    seen = []
    trained([Callback(seen.append, include="aside", stats="rms")], steps=3)
    assert [r.step for r in seen if "activation/aside/rms" in r.numbers] == [0, 1, 2]
    assert torch.is_grad_enabled()
