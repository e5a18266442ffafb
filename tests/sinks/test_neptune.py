"""Neptune: an offline file of the real client has what the run has."""

import sqlite3
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

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


def test_the_document_of_torchwatcher_holds_section_by_section(offline, tmp_path):
    """All statistics of the three kinds, layers by type, namespaces, training and validation."""
    torch.manual_seed(0)
    layers = {"fc1": nn.Linear(6, 8), "act": nn.ReLU(), "fc2": nn.Linear(8, 2)}
    model = nn.Sequential(OrderedDict(layers))
    seen = {}
    for name in ("fc1", "fc2"):
        layers[name].register_forward_hook(lambda _m, _i, y, name=name: keep(seen, name, y))
    active, finish = offline
    kinds = ["output", "output_grad", "param"]
    sink = Neptune(active, prefix="run", stats=list(STATISTICS), kinds=kinds, histograms="fc1")
    options = {"every": 1, "log": kinds, "include": nn.Linear, "dir": tmp_path, "sinks": [sink]}
    expected = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with sonde.watch(model, optimizer, **options) as watch:
        for step in range(3):
            model(torch.randn(16, 6)).square().mean().backward()
            for name in ("fc1", "fc2"):
                tensors = {f"activations/{name}": seen[name], f"gradients/{name}": seen[name].grad}
                for parameter, value in layers[name].named_parameters():
                    tensors[f"parameters/{name}/{parameter}"] = value
                for key, x in tensors.items():
                    for stat, of in STATISTICS.items():
                        expected[f"run/model_internals/{key}/{stat}", step] = of(
                            x.detach().double()
                        )
            optimizer.step()
        with watch.phase("validation"), torch.no_grad():
            model(torch.randn(16, 6))
    found = values(finish())
    ours = {at: found[at[0]][at[1]] for at in expected}
    assert len(expected) == 3 * 7 * 8
    np.testing.assert_allclose(
        list(ours.values()), [float(x) for x in expected.values()], rtol=1e-6, atol=1e-12
    )
    assert "run/validation/model_internals/activations/fc1/mean" in found
    assert not any("/act/" in key for key in found)
    hist = found["run/model_internals/activations/fc1/hist"][2]
    assert (len(hist.bin_edges), sum(hist.counts.values)) == (51, 16 * 8)


STATISTICS = {
    "mean": torch.mean,
    "std": torch.std,
    "norm": torch.norm,
    "min": torch.min,
    "max": torch.max,
    "var": torch.var,
    "abs_mean": lambda x: x.abs().mean(),
}


def keep(seen, name, y):
    if y.requires_grad:
        y.retain_grad()
        seen[name] = y
