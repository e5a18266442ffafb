"""The code blocks of torch-module-monitor's README, on the drop-in: same calls, checked results."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from sonde.compat.torch_module_monitor import (
    ModuleMonitor,
    MonitorMixin,
    RefinedCoordinateCheck,
    StorageManager,
    monitor_scaled_dot_product_attention,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 2))


def criterion(outputs, targets):
    return functional.mse_loss(outputs, targets)


@pytest.fixture
def dataloader():
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 10, generator=generator), torch.randn(4, 2, generator=generator))
        for _ in range(12)
    ]


def test_torch_module_monitor_quick_start(model, dataloader):
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 10 == 0)
    monitor.set_module(model)
    monitor.add_activation_metric("mean", lambda x: x.mean())
    monitor.add_activation_metric("std", lambda x: x.std())
    monitor.add_parameter_metric("norm", lambda x: x.norm())
    monitor.add_gradient_metric("norm", lambda x: x.norm())
    optimizer = torch.optim.Adam(model.parameters())
    logged = {}
    for step, (inputs, targets) in enumerate(dataloader):
        monitor.begin_step(step)
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        monitor.monitor_parameters()
        monitor.monitor_gradients()
        expected = {
            "activation/[root module]/mean": outputs.mean().item(),
            "activation/2/std": outputs.std().item(),
            "parameter/0.weight/norm": model[0].weight.norm().item(),
            "gradient/2.bias/norm": model[2].bias.grad.norm().item(),
        }
        optimizer.step()
        optimizer.zero_grad()
        monitor.end_step()
        if monitor.is_step_monitored(step):
            metrics = monitor.get_step_metrics()
            logged[step] = metrics
            assert {key: metrics[key] for key in expected} == pytest.approx(expected)
    assert list(logged) == [0, 10]
    modules, parameters = ["0", "1", "2", "[root module]"], ["0.weight", "0.bias"]
    parameters += ["2.weight", "2.bias"]
    assert set(logged[10]) == {
        *(f"activation/{m}/{metric}" for m in modules for metric in ("mean", "std")),
        *(f"{kind}/{p}/norm" for p in parameters for kind in ("parameter", "gradient")),
    }


def test_torch_module_monitor_core_concepts_activation_monitoring():
    model = nn.ModuleDict({"attention": nn.Linear(3, 3), "mlp": nn.Linear(3, 2)})
    monitor = ModuleMonitor()
    monitor.set_module(model)
    monitor.add_activation_metric("l2_norm", lambda x: x.norm(dim=-1).mean())
    monitor.add_activation_metric(
        "attention_mean", lambda x: x.mean(), metric_regex=r".*attention.*"
    )
    monitor.begin_step(0)
    hidden = model["attention"](torch.ones(5, 3))
    model["mlp"](hidden)
    monitor.end_step()
    metrics = monitor.get_step_metrics()
    assert set(metrics) == {
        *("activation/attention/l2_norm", "activation/attention/attention_mean"),
        "activation/mlp/l2_norm",
    }
    assert metrics["activation/attention/attention_mean"] == pytest.approx(hidden.mean().item())


def compared(model):
    monitor = ModuleMonitor()
    monitor.set_module(model)
    reference_model = copy.deepcopy(model)
    monitor.set_reference_module(reference_model)
    monitor.add_activation_difference_metric(
        "l2_distance", lambda act, ref_act: (act - ref_act).norm(dim=-1).mean()
    )
    monitor.add_parameter_difference_metric(
        "l2_distance", lambda param, ref_param: (param - ref_param).norm()
    )
    return monitor, reference_model


def moved(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)


def test_torch_module_monitor_core_concepts_reference_module_comparison(model, dataloader):
    monitor, reference_model = compared(model)
    moved(model)
    inputs = dataloader[0][0]
    monitor.begin_step(0)
    with monitor.no_monitor():
        was = reference_model(inputs)
    outputs = model(inputs)
    monitor.monitor_parameters()
    monitor.end_step()
    metrics = monitor.get_step_metrics()
    distance = (outputs - was).norm(dim=-1).mean().item()
    assert metrics["activation_difference/2/l2_distance"] == pytest.approx(distance)
    found = metrics["parameter_difference/2.weight/l2_distance"]
    assert found == pytest.approx((model[2].weight - reference_model[2].weight).norm().item())
    assert not [key for key in metrics if key.startswith("activation/")]


def test_torch_module_monitor_core_concepts_refined_coordinate_check(model, dataloader):
    monitor, reference_model = compared(model)
    rcc = RefinedCoordinateCheck(monitor)
    moved(model)
    inputs = dataloader[0][0]
    monitor.begin_step(0)
    with monitor.no_monitor():
        first = reference_model(inputs)
    outputs = model(inputs)
    rcc.refined_coordinate_check()
    monitor.end_step()
    metrics = monitor.get_step_metrics()
    hidden = model[1](model[0](inputs))
    again = reference_model[2](hidden)
    effective = (outputs - again).norm(dim=-1).mean().item()
    propagating = (again - first).norm(dim=-1).mean().item()
    assert metrics["RCC (W_t-W_0)x_t/2/l2norm"] == pytest.approx(effective, rel=1e-5)
    assert metrics["RCC W_0(x_t-x_0)/2/l2norm"] == pytest.approx(propagating, rel=1e-5)
    assert metrics["RCC W_0(x_t-x_0)/0/l2norm"] == 0


def test_torch_module_monitor_core_concepts_micro_batch_support(model, dataloader):
    monitor = ModuleMonitor()
    monitor.set_module(model)
    monitor.add_activation_metric("row_norm", lambda x: x.norm(dim=-1))
    monitor.add_gradient_metric("norm", torch.norm)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [dataloader[0], (dataloader[1][0][:1], dataloader[1][1][:1])]
    monitor.begin_step(0)
    rows = []
    for micro_batch, targets in batches:
        outputs = model(micro_batch)
        rows.append(outputs.norm(dim=-1))
        criterion(outputs, targets).backward()
        monitor.after_micro_batch()
    monitor.monitor_gradients()
    norm = model[0].weight.grad.norm().item()
    optimizer.step()
    monitor.end_step()
    metrics = monitor.get_step_metrics()
    assert metrics["activation/2/row_norm"] == pytest.approx(torch.cat(rows).mean().item())
    assert metrics["gradient/0.weight/norm"] == pytest.approx(norm)


class MyAttention(nn.Module, MonitorMixin):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def get_qkv(self, x):
        return (y.unflatten(-1, (2, 4)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))

    def forward(self, x):
        q, k, v = self.get_qkv(x)
        output = functional.scaled_dot_product_attention(q, k, v)
        if self.is_monitoring:
            monitor_scaled_dot_product_attention(
                self.get_module_monitor(), module=self, query=q, key=k, value=v, activation=output
            )
        return output


def test_torch_module_monitor_advanced_usage_attention_monitoring():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), MyAttention())
    x = torch.randn(3, 5, 8)
    model(x)  # without a monitor
    monitor, _ = compared(model)
    monitor.add_activation_metric("norm", torch.norm)
    with torch.no_grad():
        model[1].qkv.weight[:16] = 0  # logits are the same for all keys: attention is even
        model[1].qkv.bias[:16] = 0
    monitor.begin_step(0)
    output = model(x)
    monitor.end_step()
    metrics = monitor.get_step_metrics()
    even = torch.log(torch.tensor(5.0)).item()
    for head in range(2):
        assert metrics[f"attention_entropy/1.head_{head}"] == pytest.approx(even, rel=1e-5)
        norm = output[:, head].norm().item()
        assert metrics[f"activation/1.head_{head}.activation/norm"] == pytest.approx(norm)
        assert metrics[f"activation/1.head_{head}.query/norm"] == 0
        assert metrics[f"activation_difference/1.head_{head}.query/l2_distance"] > 0
        assert metrics[f"activation_difference/1.head_{head}.value/l2_distance"] == 0


def test_torch_module_monitor_advanced_usage_custom_metrics_in_modules():
    class CustomLayer(nn.Module, MonitorMixin):
        def __init__(self):
            super().__init__()
            self.transform = nn.Linear(3, 3)

        def forward(self, x):
            output = self.transform(x)
            if self.is_monitoring:
                self.get_module_monitor().log_tensor(
                    "custom_metric/my_layer/intermediate", output * 2
                )
            return output

    model = nn.Sequential(CustomLayer())
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step == 1)
    monitor.set_module(model)
    for step in range(3):
        monitor.begin_step(step)
        output = model(torch.ones(2, 3))
        monitor.end_step()
    assert list(monitor.get_all_metrics()) == [1]
    found = monitor.get_all_metrics()[1]
    expected = {"custom_metric/my_layer/intermediate": 2 * output.mean().item()}
    assert found == pytest.approx(expected)


def test_torch_module_monitor_advanced_usage_export_to_hdf5(model, dataloader):
    pytest.importorskip("h5py")
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 2 == 0)
    monitor.set_module(model)
    monitor.add_activation_metric("mean", torch.mean)
    for step, (inputs, _) in enumerate(dataloader[:4]):
        monitor.begin_step(step)
        model(inputs)
        monitor.end_step()
    all_metrics = monitor.get_all_metrics()
    monitor.storage.save_hdf5("training_metrics.h5")
    metrics = StorageManager.load_hdf5("training_metrics.h5")
    assert metrics == monitor.storage.condensed_log_dict()
    assert metrics["activation/2/mean"] == {
        s: m["activation/2/mean"] for s, m in all_metrics.items()
    }
