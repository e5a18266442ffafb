"""Neptune: an offline file of the real client has what the run has."""

import sqlite3

import numpy as np
import pytest

import sonde
from sonde.sinks import Neptune

neptune_scale = pytest.importorskip(
    "neptune_scale", reason="neptune-scale asks for an older protobuf than ours"
)

GROUPS = {"output": "activations", "param": "parameters", "param_grad": "gradients"}


def key(site, stat):
    path = site.module or "[root module]"
    if site.kind != "output":
        path = f"{path}/{site.slot}"
    return f"train/debug/{GROUPS[site.kind]}/{path}/{stat}"


@pytest.fixture
def offline(tmp_path):
    """An offline run, and the updates that it has when it is closed, by step."""
    run = neptune_scale.Run(
        project="w/p",
        run_id="one",
        mode="offline",
        log_directory=tmp_path / "neptune",
        enable_console_log_capture=False,
    )

    def finish():
        run.close()
        (path,) = (tmp_path / "neptune").glob("*/*.sqlite3")
        return path

    return run, finish


def values(path):
    """Series and histograms by key and step, read with the messages of the client."""
    from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot

    found = {}
    with sqlite3.connect(path) as database:
        rows = database.execute("select operation from run_operations where operation_type = 0")
        for (blob,) in rows:
            update = UpdateRunSnapshot.FromString(blob)
            step = update.step.whole
            for name, value in update.append.items():
                kind = value.WhichOneof("value")
                found.setdefault(name, {})[step] = getattr(value, kind)
    return found


def test_an_offline_file_has_what_the_run_has(trained, told, asked, offline):
    active, finish = offline
    sink = Neptune(active, base_namespace="debug", prefix="train", timeout_s=60.0, **asked)
    run = trained([sink], close_timeout_s=60.0)
    found = values(finish())
    expected = told(run, key)
    assert len(expected.numbers) >= 50 * 4
    for name, by_step in expected.numbers.items():
        ours = [found[name][step] for step in by_step]
        np.testing.assert_array_equal(ours, list(by_step.values()))
    assert found["train/debug/sonde/loss"] == expected.scalars["loss"]
    sketch = run.sketch("aside", kind="output", step=9)
    theirs = found["train/debug/activations/aside/hist"][9]
    assert list(theirs.bin_edges) == sketch.histogram(50).edges.tolist()
    assert sum(theirs.counts.values) == sketch.finite


def test_a_run_has_to_be_given(tmp_path, trained):
    with pytest.raises(sonde.SondeError, match="Neptune has no active run"):
        trained(["neptune"], dir=tmp_path / "none")
