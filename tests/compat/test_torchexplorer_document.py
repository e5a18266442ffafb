"""The calls of torchexplorer's document, section by section, on the drop-in."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde
from sonde.compat import torchexplorer


class Residual(nn.Module):
    """A block that adds its input in place, as residual networks often do."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        out = self.conv(x)
        out += x
        return self.relu(out)


def small_resnet():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), Residual(), nn.Flatten()
    )


@pytest.fixture
def watched():
    """Wrappers that are closed at the end."""
    kept = []
    yield lambda *args, **options: kept.append(torchexplorer.watch(*args, **options)) or kept[-1]
    for wrapper in kept:
        wrapper.close()


def answer(wrapper, path):
    with urllib.request.urlopen(f"{wrapper.address}{path}", timeout=30) as found:
        return found.read()


def kinds_of(wrapper):
    wrapper.watch.flush()
    return set(sonde.open(wrapper.watch.path).sites["kind"])


def test_torchexplorer_introduction_setup_then_init_then_watch_with_wandb(tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    torchexplorer.setup()
    logged = []
    wandb.init(mode="offline", dir=str(tmp_path), project="tests", reinit="finish_previous")
    try:
        log = wandb.run.log
        monkeypatch.setattr(
            wandb.run, "log", lambda row, **o: (logged.append(row), log(row, **o))[1]
        )
        model = nn.Linear(3, 2)
        wrapper = torchexplorer.watch(model, log_freq=1, backend="wandb")
        for _ in range(2):
            model(torch.randn(4, 3)).sum().backward()
        with pytest.raises(ValueError, match=r"before `wandb\.init"):
            torchexplorer.setup()
        wrapper.close()
        media = list(Path(wandb.run.dir).rglob("explorer_chart_*.html"))
    finally:
        wandb.finish()
    assert sonde.open(wrapper.watch.path).steps == [0, 1]
    counted = [row["gradients/weight"] for row in logged if "gradients/weight" in row]
    assert [sum(found.histogram) for found in counted] == [6, 6]
    assert len(media) == 1
    assert b"sonde" in media[0].read_bytes()


def test_torchexplorer_usage_examine_model_structure(watched):
    model = small_resnet()
    dummy = torch.randn(5, 3, 8, 8)
    wrapper = watched(
        model, log_freq=1, log=["io", "params"], backend="standalone", standalone_port=0
    )
    assert wrapper.structure is None
    model(dummy).sum().backward()
    names = [str(node) for node in wrapper.structure.inner_graph.nodes]
    assert len(names) == len(model) + 2
    assert len(wrapper.structure.inner_graph.edges) == len(model) + 1
    assert kinds_of(wrapper) == {"input", "output", "param"}
    assert b"<html" in answer(wrapper, "/")[:2000].lower()
    assert Path("torchexplorer_standalone", wrapper.watch.path.name, "run.json").exists()


class AttachModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 10)
        self.fc2 = nn.Linear(10, 10)

    def forward(self, x):
        x = self.fc1(x)
        x = torchexplorer.attach(x, self, "intermediate")
        return self.fc2(x)


def test_torchexplorer_usage_visualize_intermediate_tensors(watched):
    model = AttachModule()
    dummy = torch.randn(5, 10)
    wrapper = watched(model, log_freq=1, backend="standalone", standalone_port=0)
    model(dummy).sum().backward()
    graph = wrapper.structure.inner_graph
    (attached,) = [node for node in graph.nodes if str(node).startswith("intermediate")]
    before, after = list(graph.predecessors(attached)), list(graph.successors(attached))
    assert [node.module for node in (*before, *after)] == [model.fc1, model.fc2]
    run = sonde.open(wrapper.watch.path)
    assert run.sketch("./attach/intermediate").mean == pytest.approx(
        float(model.fc1(dummy).mean()), rel=1e-4, abs=1e-6
    )
    assert run.sketch("./attach_grad/intermediate").count == 50
    assert set(model.state_dict()) == set(AttachModule().state_dict())


class Activated(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(20, 20)
        self.activation = nn.ReLU()

    def forward(self, x):
        return self.activation(self.fc(x))


def test_torchexplorer_histograms_of_a_module_with_an_activation(watched):
    model, x = Activated(), torch.randn(8, 20, requires_grad=True)
    wrapper = watched(model, log_freq=1, backend="none")
    model(x).square().sum().backward()
    wrapper.watch.flush()
    run = sonde.open(wrapper.watch.path)
    x1 = model.fc(x)
    assert run.sketch("fc/input/0").rms == pytest.approx(float(x.square().mean().sqrt()), rel=1e-5)
    assert run.sketch("fc/output/0").rms == pytest.approx(
        float(x1.square().mean().sqrt()), rel=1e-5
    )
    assert run.sketch("activation/input/0").rms == run.sketch("fc/output/0").rms
    assert run.sketch("fc/input_grad/0").norm == pytest.approx(float(x.grad.norm()), rel=1e-5)
    hists = {
        node.path: node.module_metadata()
        for node in wrapper.structure.inner_graph.nodes
        if not isinstance(node, str)
    }
    assert set(hists["fc"].shared_hists.param_hists) == {"weight", "bias"}
    assert set(hists["fc"].shared_hists.param_grad_hists) == {"weight", "bias"}
    assert hists["activation"].shared_hists.param_hists == {}
    grad = run.sketch("fc.weight", kind="param_grad")
    assert grad.norm == pytest.approx(float(model.fc.weight.grad.norm()), rel=1e-5)


class Reused(Activated):
    def forward(self, x):
        return self.activation(self.fc(self.activation(x)))


def test_torchexplorer_supported_one_several_invocations_of_one_module(watched):
    model = Reused()
    wrapper = watched(model, log_freq=1, backend="none")
    model(torch.randn(8, 20)).sum().backward()
    calls = [node for node in wrapper.structure.inner_graph.nodes if not isinstance(node, str)]
    relus = [node for node in calls if node.module is model.activation]
    assert sorted(node.invocation_id for node in relus) == [0, 1]
    assert set(relus[0].module_metadata().invocation_hists) == {0, 1}


def test_torchexplorer_supported_four_several_forwards_before_backward(watched):
    module = nn.Linear(4, 2)
    wrapper = watched(module, log_freq=1, delay_log_multibackward=True, backend="none")
    for _ in range(3):
        y_hat1, y_hat2 = module(torch.randn(3, 4)), module(torch.randn(5, 4))
        loss = (y_hat1 - 1).abs().sum() + (y_hat2 - 1).abs().sum()
        loss.backward()
    wrapper.watch.flush()
    run = sonde.open(wrapper.watch.path)
    assert run.steps == [0, 1, 2], "the last step is there, too"
    assert [run.sketch("./output/0", step=step).count for step in range(3)] == [16, 16, 16]


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.module1, self.module2 = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.module1(x) if x.sum() > 0 else self.module2(x)


def test_torchexplorer_unsupported_two_control_flow_that_changes_is_recorded_all_the_same(watched):
    model = Branching()
    wrapper = watched(model, log_freq=1, backend="none")
    for sign in (1.0, -1.0, -1.0):
        model(torch.full((3, 2), sign)).sum().backward()
    calls = {node.path for node in wrapper.structure.inner_graph.nodes if not isinstance(node, str)}
    assert calls == {"module1", "module2"}
    run = sonde.open(wrapper.watch.path)
    assert list(run.stats("module2", kind="output", stat="rms")["step"]) == [1, 2]


@pytest.mark.parametrize("helped", [True, False])
def test_torchexplorer_common_errors_one_in_place_operations(watched, helped):
    """With the two arguments of the document, and without: neither raises."""
    model = small_resnet()
    options = {"disable_inplace": True, "ignore_io_grad_classes": [Residual]} if helped else {}
    wrapper = watched(model, log_freq=1, backend="none", **options)
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    wrapper.watch.flush()
    found = sonde.open(wrapper.watch.path).sites
    with_grads = set(found[found["kind"] == "output_grad"]["module"])
    assert with_grads == (
        {"", "0", "1", "3"} if helped else {"", "0", "1", "2", "2.conv", "2.relu", "3"}
    )
    assert model[1].inplace is not helped


SCRIPT = """
import torch, sys
from torch import nn
import torchexplorer

model = nn.Linear(3, 2)
torchexplorer.watch(model, log_freq=1, backend="standalone", standalone_port=int(sys.argv[1]))
model(torch.randn(4, 3)).sum().backward()
print("trained", flush=True)
"""


def test_torchexplorer_usage_the_page_stays_after_the_program_has_ended(tmp_path):
    """`python -m sonde.compat` with the original's own import."""
    Path("train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "sonde.compat", "train.py", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        address = None
        for line in process.stdout:
            if "http://localhost:" in line:
                address = line.split("http://")[1].split()[0].rstrip(".")
            if line.startswith("Still serving"):
                break
        run = sonde.open("torchexplorer_standalone/latest")
        for _ in range(600):
            if run.status != "live":
                break
            time.sleep(0.05)
        assert run.status == "finished"
        with urllib.request.urlopen(f"http://{address}/api/runs", timeout=30) as found:
            assert found.status == 200
            assert found.read()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
