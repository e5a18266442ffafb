"""Behaviours of TorchWatcher, on the drop-in; and its faults, which it does not have."""

import gc
import weakref

import pytest
import torch
from torch import nn

import sonde
from sonde.compat import torchwatcher
from sonde.compat.torchwatcher import TENSOR_STATS, TorchWatcher


class Recording:
    """A run that keeps what is logged."""

    def __init__(self):
        self.metrics, self.histograms = [], []

    def log_metrics(self, data, step):
        self.metrics.append((step, data))

    def log_histograms(self, histograms, step):
        self.histograms.append((step, histograms))


@pytest.fixture
def run():
    return Recording()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Sequential(nn.Linear(8, 2)))


def hooks(model):
    return [h for m in model.modules() for h in (m._forward_hooks, m._forward_pre_hooks) if h]


def test_all_modules_but_the_root_are_tracked_or_those_of_the_types_and_their_subclasses(run):
    class Own(nn.Linear):
        pass

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(Own(4, 4)))
    x = torch.ones(2, 4)
    with TorchWatcher(model, run) as watcher:
        model(x)
        watcher.watch(0, track_parameters=False)
    with TorchWatcher(model, run, track_layers=[nn.Linear]) as watcher:
        model(x)
        watcher.watch(0, track_parameters=False)
    (_, everything), (_, linear) = run.metrics
    front = "model_internals/activations"
    assert set(everything) == {f"{front}/{n}/mean" for n in ("0", "1", "2", "2.0")}
    assert set(linear) == {f"{front}/{n}/mean" for n in ("0", "2.0")}


def test_names_of_modules_keep_their_dots_and_those_of_parameters_have_slashes(model, run):
    with TorchWatcher(model, run) as watcher:
        model(torch.ones(2, 4))
        watcher.watch(0, prefix="train")
    keys = set(run.metrics[0][1])
    assert "train/model_internals/activations/2.0/mean" in keys
    assert "train/model_internals/parameters/2/0/weight/mean" in keys


def test_a_statistic_of_the_user_becomes_one_by_its_name(model, run, monkeypatch):
    monkeypatch.setitem(TENSOR_STATS, "median", lambda x: x.median())
    with TorchWatcher(model, run, tensor_stats=["median", "mean"]) as watcher:
        output = model(torch.randn(5, 4))
        output.retain_grad()
        output.square().sum().backward()
        watcher.watch(0)
    _, found = run.metrics[0]
    front = "model_internals"
    assert found[f"{front}/activations/2/median"] == output.median().item()
    assert found[f"{front}/gradients/2/median"] == output.grad.median().item()
    assert found[f"{front}/parameters/0/weight/median"] == model[0].weight.median().item()
    assert found[f"{front}/activations/2/mean"] == pytest.approx(output.mean().item())


def test_a_histogram_has_fifty_bins_and_counts_every_element(model, run):
    with TorchWatcher(model, run, tensor_stats=["mean", "hist"]) as watcher:
        x = torch.randn(64, 4)
        output = model(x)
        output.sum().backward()
        watcher.watch(7)
    assert len(run.metrics) == len(run.histograms) == 1
    step, found = run.histograms[0]
    assert step == 7
    assert len(found) == 4 + 4 + 4
    histogram = found["model_internals/activations/2/hist"]
    assert len(histogram.bin_edges) == 51
    assert histogram.bin_edges[0] == pytest.approx(output.min().item())
    assert histogram.bin_edges[-1] == pytest.approx(output.max().item())
    assert all(type(count) is int for count in histogram.counts)
    assert sum(histogram.counts) == output.numel()


def test_a_histogram_is_of_neptunes_type_where_neptune_is_used(model, run, monkeypatch):
    class Types:
        class Histogram:
            def __init__(self, bin_edges, counts):
                self.bin_edges, self.counts = bin_edges, counts

    monkeypatch.setitem(torchwatcher.sys.modules, "neptune_scale.types", Types)
    with TorchWatcher(model, run, tensor_stats=["hist"]) as watcher:
        model(torch.ones(2, 4))
        watcher.watch(0)
    assert run.metrics == []
    assert all(isinstance(h, Types.Histogram) for h in run.histograms[0][1].values())


def test_tracking_fills_metrics_and_logs_nothing(model, run):
    with TorchWatcher(model, run) as watcher:
        model(torch.ones(2, 4)).sum().backward()
        watcher.track_parameters("own")
        assert run.metrics == []
        assert watcher.debug_metrics["own/parameters/0/bias/mean"] == pytest.approx(
            model[0].bias.mean().item()
        )
        watcher.track_activations()
        watcher.track_gradients()
        families = {key.split("/")[1] for key in watcher.debug_metrics}
        assert families == {"activations", "gradients", "parameters"}
        watcher.watch(0)
        assert watcher.debug_metrics == {}
    assert len(run.metrics) == 1


def test_the_end_of_the_block_takes_every_hook_off_and_so_does_letting_go(model, run):
    with TorchWatcher(model, run) as watcher:
        assert hooks(model)
        model(torch.ones(1, 4))
        watcher.watch(0)
    assert not hooks(model)
    watcher = TorchWatcher(model, run)
    assert hooks(model)
    del watcher
    gc.collect()
    assert not hooks(model)


def test_parameters_are_those_after_the_update(model, run):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with TorchWatcher(model, run, tensor_stats=["norm"]) as watcher:
        model(torch.randn(3, 4)).square().sum().backward()
        optimizer.step()
        watcher.watch(1)
    found = run.metrics[0][1]["model_internals/parameters/0/weight/norm"]
    assert found == pytest.approx(model[0].weight.norm().item())


def test_the_gradient_of_an_output_is_what_retain_grad_gives(model, run):
    outputs = []
    handle = model[0].register_forward_hook(lambda m, a, y: (y.retain_grad(), outputs.append(y))[1])
    with TorchWatcher(model, run, tensor_stats=["norm"]) as watcher:
        model(torch.randn(3, 4)).square().sum().backward()
        watcher.watch(0)
    handle.remove()
    expected = outputs[0].grad.norm().item()
    assert run.metrics[0][1]["model_internals/gradients/0/norm"] == pytest.approx(expected)


def test_nothing_of_a_pass_is_kept_alive(model, run):
    with TorchWatcher(model, run) as watcher:
        output = model(torch.ones(2, 4))
        output.sum().backward()
        known = weakref.ref(output)
        del output
        gc.collect()
        assert known() is None
        watcher.watch(0)


def test_a_step_may_be_a_float_and_the_same_for_training_and_validation(model, run):
    with TorchWatcher(model, run) as watcher:
        for step, prefix in [(0.5, "train"), (0.5, "validation"), (1.5, "train")]:
            model(torch.ones(2, 4))
            watcher.watch(step, prefix=prefix)
    assert [step for step, _ in run.metrics] == [0.5, 0.5, 1.5]
    assert all(len(data) == 4 + 4 for _, data in run.metrics)


def test_wrong_arguments_are_refused_and_leave_no_hook(model, run, capfd):
    with pytest.raises(TypeError, match="must be a PyTorch model"):
        TorchWatcher("model", run)
    with pytest.raises(ValueError, match="Invalid layer type"):
        TorchWatcher(model, run, track_layers=["Linear"])
    with pytest.raises(ValueError, match="Invalid statistics requested"):
        TorchWatcher(model, run, tensor_stats=["mean", "nothing"])
    gc.collect()
    assert not hooks(model)
    assert "ignored" not in capfd.readouterr().err


def test_outputs_that_are_no_tensor_are_tracked_too(run):
    class Block(nn.Module):
        def forward(self, x):
            return {"logits": 2 * x, "aux": (x, 3 * x)}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()
            self.pair = nn.Identity()

        def forward(self, x):
            return self.pair((self.block(x)["logits"], x))

    model = Model()
    with TorchWatcher(model, run) as watcher:
        model(torch.ones(2))
        watcher.watch(0)
    found = {
        k.removeprefix("model_internals/activations/"): v for k, v in run.metrics[0][1].items()
    }
    assert found["block/logits/mean"] == 2
    assert found["pair/mean"] == 2
    assert found["pair/1/mean"] == 1


def test_activations_in_place_train_and_are_tracked_as_they_were(run):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    with TorchWatcher(model, run, tensor_stats=["min"]) as watcher:
        model(torch.randn(32, 4)).sum().backward()
        watcher.watch(0)
    _, found = run.metrics[0]
    assert found["model_internals/activations/0/min"] < 0
    assert found["model_internals/activations/1/min"] == 0
    assert "model_internals/gradients/0/min" in found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_and_values_that_are_not_finite_keep_their_histogram(run, dtype):
    model = nn.Sequential(nn.Identity())
    x = torch.tensor([1.0, 2.0, torch.nan, torch.inf, 3.0], dtype=dtype)
    with TorchWatcher(model, run, tensor_stats=["hist", "max"]) as watcher:
        model(x)
        watcher.watch(0)
    histogram = run.histograms[0][1]["model_internals/activations/0/hist"]
    assert sum(histogram.counts) == 3
    assert (histogram.bin_edges[0], histogram.bin_edges[-1]) == (1, 3)


def test_micro_batches_and_calls_all_count(run):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Identity()

        def forward(self, x):
            return self.layer(self.layer(x) + 1)

    model = Twice()
    with TorchWatcher(model, run, tensor_stats=["mean", "max"]) as watcher:
        for value in (1.0, 5.0):
            model(torch.full((2,), value))
        watcher.watch(0)
    found = {
        k.removeprefix("model_internals/activations/"): v for k, v in run.metrics[0][1].items()
    }
    assert found == {"layer/mean": 3, "layer/max": 5, "layer#1/mean": 4, "layer#1/max": 6}


def test_many_passes_between_two_calls_are_no_mistake(run):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with TorchWatcher(nn.Sequential(model), run) as watcher:
        for step in range(30):
            watcher.model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            if step % 15 == 14:
                watcher.watch(step)
    assert [step for step, _ in run.metrics] == [14, 29]


def test_a_function_that_fails_is_told_of_and_the_others_are_logged(
    model, run, monkeypatch, unheard
):
    monkeypatch.setitem(TENSOR_STATS, "broken", lambda x: x.no_such_method())
    with TorchWatcher(model, run, tensor_stats=["broken", "mean"]) as watcher:
        model(torch.ones(2, 4)).sum().backward()
        watcher.watch(0)
    assert len(run.metrics[0][1]) == 4 + 4 + 4
    assert any("no_such_method" in text for text in unheard)
    unheard.clear()


def test_all_of_it_is_in_a_run_of_sonde_too(model, run):
    with TorchWatcher(model, run, name="watched") as watcher:
        for step in range(3):
            model(torch.randn(2, 4)).sum().backward()
            watcher.watch(step)
    found = sonde.open("runs/watched").stats("0", kind="output", stat=["mean", "p99"])
    assert found["step"].tolist() == [0, 1, 2]
    assert found["mean"].tolist() == pytest.approx(
        [data["model_internals/activations/0/mean"] for _, data in run.metrics]
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_statistics_on_a_gpu_are_those_of_the_same_model_on_the_cpu(model, run):
    x = torch.randn(8, 4)
    stats = ["mean", "std", "norm", "min", "max", "var", "abs_mean"]
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        with TorchWatcher(model, run, tensor_stats=stats) as watcher:
            model(x.to(device)).square().sum().backward()
            watcher.watch(0)
    (_, cpu), (_, gpu) = run.metrics
    assert gpu == pytest.approx(cpu, rel=1e-4, abs=1e-6)


def test_switched_off_it_logs_nothing_and_leaves_the_model_alone(model, run, monkeypatch):
    monkeypatch.setenv("SONDE", "off")
    with TorchWatcher(model, run, tensor_stats=["mean", "hist"]) as watcher:
        assert not hooks(model)
        model(torch.ones(2, 4)).sum().backward()
        watcher.watch(0)
    assert run.metrics == run.histograms == []
