"""Behaviours of torch-module-monitor, on the drop-in; and its faults, which it does not have."""

import copy
import importlib
import logging
import math
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import sonde
from sonde.capture.open_watches import OPEN
from sonde.compat.torch_module_monitor import (
    HooksManager,
    ModuleMonitor,
    MonitorMixin,
    RefinedCoordinateCheck,
    StorageManager,
    monitor_scaled_dot_product_attention,
)
from sonde.compat.torch_module_monitor.monitor import default_format_module_name_fn


def always(_step):
    return True


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def monitored(model, **options):
    monitor = ModuleMonitor(monitor_step_fn=always, **options)
    monitor.set_module(model)
    return monitor


def step_of(monitor, *calls, step=0):
    """The metrics of a step in which these functions are called."""
    monitor.begin_step(step)
    for call in calls:
        call()
    monitor.end_step()
    return monitor.get_step_metrics()


def test_the_public_names_and_modules_of_the_original_are_here():
    package = "sonde.compat.torch_module_monitor"
    for name in ("monitor", "storage", "hooks", "attention", "refined_coordinate_check"):
        importlib.import_module(f"{package}.{name}")
    found = importlib.import_module(package)
    assert found.__all__ == ["ModuleMonitor", "MonitorMixin"]
    assert importlib.import_module(f"{package}.monitor").ModuleMonitor is ModuleMonitor
    assert importlib.import_module(f"{package}.monitor").MonitorMixin is MonitorMixin


# -- steps -----------------------------------------------------------------------------------------


def test_every_twentieth_step_is_monitored_by_default_and_the_logger_is_silent(model, capfd):
    monitor = ModuleMonitor()
    monitor.set_module(model)
    monitor.add_activation_metric("mean", torch.mean)
    begun = [step for step in range(41) if monitor.begin_step(step) or monitor.end_step()]
    monitor.end_step()
    assert begun == [0, 20, 40]
    assert [step for step in range(41) if monitor.is_step_monitored(step)] == [0, 20, 40]
    assert capfd.readouterr().err == ""


def test_monitoring_is_on_between_begin_and_end_and_off_inside_no_monitor(model):
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step == 1)
    monitor.set_module(model)
    found = [monitor.is_monitoring()]
    for step in range(3):
        monitor.begin_step(step)
        found.append(monitor.is_monitoring())
        with monitor.no_monitor():
            found.append(monitor.is_monitoring())
        monitor.end_step()
        found.append(monitor.is_monitoring())
    assert found == [False, *[False] * 3, True, False, False, *[False] * 3]


def test_a_smaller_step_is_refused_and_beginning_one_twice_loses_nothing(model):
    monitor = monitored(model)
    monitor.add_activation_metric("mean", torch.mean)
    monitor.begin_step(3)
    model(torch.ones(1, 3))
    monitor.begin_step(3)
    monitor.end_step()
    first = dict(monitor.get_step_metrics())
    assert "activation/0/mean" in first
    monitor.begin_step(3)
    monitor.log_scalar("more", 1)
    monitor.end_step()
    assert monitor.get_step_metrics() == {**first, "more": 1}
    with pytest.raises(ValueError, match="Step 2"):
        monitor.begin_step(2)


def test_a_monitored_step_without_a_module_is_refused():
    with pytest.raises(ValueError, match="no module"):
        ModuleMonitor().begin_step(0)


def test_metrics_of_all_monitored_steps_are_kept(model):
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step % 3 == 0)
    monitor.set_module(model)
    monitor.add_activation_metric("mean", torch.mean)
    for step in range(30):
        step_of(monitor, lambda: model(torch.ones(1, 3)), step=step)
    found = monitor.get_all_metrics()
    assert list(found) == list(range(0, 30, 3))
    assert all(len(metrics) == 4 for metrics in found.values())


def test_passes_outside_of_steps_and_inside_no_monitor_are_not_recorded(model):
    monitor = monitored(model)
    monitor.add_activation_metric("mean", torch.mean)
    model(torch.full((1, 3), 100.0))

    def passes():
        out.append(model(torch.ones(1, 3)).mean().item())
        with monitor.no_monitor():
            model(torch.full((1, 3), 100.0))

    out = []
    assert step_of(monitor, passes)["activation/2/mean"] == pytest.approx(out[0])


def test_a_pass_counts_in_whichever_mode_the_module_is(model):
    monitor = monitored(model.eval())
    monitor.add_activation_metric("mean", torch.mean)
    with torch.no_grad():
        assert step_of(monitor, lambda: model(torch.ones(1, 3)))


# -- modules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "formatted"),
    [
        ("", "[root module]"),
        ("_orig_mod", "[root module]"),
        ("_forward_module", "[root module]"),
        ("_fsdp_wrapped_module.a._orig_mod.b", "a.b"),
        ("module.a", "module.a"),
    ],
)
def test_names_are_formatted_without_wrappers(name, formatted):
    assert default_format_module_name_fn(name) == formatted


def test_names_and_regular_expressions_are_those_of_the_plain_model_when_it_is_compiled(model):
    compiled = torch.compile(model, backend="eager")
    monitor = monitored(compiled)
    monitor.add_parameter_metric("norm", torch.norm, metric_regex=r"0\.")
    found = step_of(monitor, monitor.monitor_parameters)
    assert set(found) == {"parameter/0.weight/norm", "parameter/0.bias/norm"}


def test_a_function_of_the_user_formats_names(model):
    monitor = monitored(model, format_module_name_fn=lambda name: f"<{name}>")
    monitor.add_activation_metric("mean", torch.mean, metric_regex="<[02]?>")
    found = step_of(monitor, lambda: model(torch.ones(1, 3)))
    assert set(found) == {"activation/<0>/mean", "activation/<2>/mean", "activation/<>/mean"}


def test_a_module_is_set_once_and_close_leaves_no_hook(model):
    monitor = monitored(model)
    with pytest.raises(ValueError, match="already"):
        monitor.set_module(model)
    with pytest.raises(ValueError, match="None"):
        ModuleMonitor().set_module(None)
    step_of(monitor, lambda: model(torch.ones(1, 3)))
    monitor.close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    monitor.close()


def test_a_monitor_that_goes_takes_its_hooks_along(model):
    monitor = monitored(model)
    step_of(monitor, lambda: model(torch.ones(1, 3)))
    del monitor
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Dropping:
    """A sink that drops the last reference to something, in the thread that closing waits for."""

    name = "dropping"

    def __init__(self, held):
        self._held = held
        self.has_dropped = threading.Event()

    def numbers(self, _batch):
        self._held.clear()
        self.has_dropped.set()

    def sites(self, _infos):
        """Of no use here."""

    sketches = event = close = sites


def test_a_monitor_that_is_collected_in_another_thread_loses_nothing(model):
    held = []
    sink = Dropping(held)
    held.append(monitored(model, sinks=[sink], name="dropped"))
    held[0].add_activation_metric("mean", torch.mean)
    held[0].begin_step(0)
    model(torch.ones(1, 3))
    held[0].end_step()
    assert sink.has_dropped.wait(60)
    while OPEN:
        time.sleep(0.01)
    run = sonde.open("runs/dropped")
    assert run.status == "finished"
    assert len(run.metrics("mean")) == 4


def test_excluded_modules_have_no_activations_and_still_have_parameters(model):
    monitor = monitored(model, excluded_modules_regex=r"0|\[root")
    monitor.add_activation_metric("mean", torch.mean)
    monitor.add_parameter_metric("norm", torch.norm)
    found = step_of(monitor, lambda: model(torch.ones(1, 3)), monitor.monitor_parameters)
    assert {k for k in found if k.startswith("act")} == {"activation/1/mean", "activation/2/mean"}
    assert "parameter/0.weight/norm" in found


# -- metrics ---------------------------------------------------------------------------------------


def test_a_name_is_unique_within_its_kind(model):
    monitor = ModuleMonitor()
    adding = [
        monitor.add_activation_metric,
        monitor.add_activation_difference_metric,
        monitor.add_parameter_metric,
        monitor.add_parameter_difference_metric,
        monitor.add_gradient_metric,
    ]
    for add in adding:
        add("norm", torch.norm)
        with pytest.raises(ValueError, match="already"):
            add("norm", torch.norm)
    monitor.set_module(model)  # what was added before counts
    found = step_of(monitor, lambda: model(torch.ones(1, 3)), monitor.monitor_parameters)
    assert {"activation/0/norm", "parameter/0.weight/norm"} <= set(found)


def test_keys_are_those_of_the_original(model):
    monitor = monitored(model)
    monitor.set_reference_module(copy.deepcopy(model))
    monitor.add_activation_metric("a", torch.mean, metric_regex="0")
    monitor.add_activation_difference_metric("d", lambda x, y: (x - y).norm(), metric_regex="0")
    monitor.add_parameter_metric("p", torch.mean, metric_regex="0.bias")
    monitor.add_parameter_difference_metric("q", torch.dist, metric_regex="0.bias")
    monitor.add_gradient_metric("g", torch.mean, metric_regex="0.bias")
    found = step_of(
        monitor,
        lambda: model(torch.ones(1, 3)).sum().backward(),
        monitor.monitor_parameters,
        lambda: monitor.monitor_gradients(before_clip=True),
        monitor.monitor_gradients,
    )
    assert set(found) == {
        "activation/0/a",
        "activation_difference/0/d",
        "parameter/0.bias/p",
        "parameter_difference/0.bias/q",
        "gradient/0.bias/g",
        "gradient_before_clip/0.bias/g",
    }


def test_parameters_are_those_of_the_moment_and_equal_the_reference_at_first(model):
    monitor = monitored(model)
    monitor.set_reference_module(copy.deepcopy(model))
    monitor.add_parameter_metric("norm", torch.norm)
    monitor.add_parameter_difference_metric("distance", torch.dist)
    norm = model[0].weight.norm().item()

    def update():
        with torch.no_grad():
            model[0].weight.mul_(3)

    found = step_of(monitor, monitor.monitor_parameters, update)
    assert found["parameter/0.weight/norm"] == pytest.approx(norm)
    assert found["parameter_difference/0.weight/distance"] == 0
    assert step_of(monitor, update, step=1) == {}


def test_gradients_before_and_after_clipping_and_none_of_a_frozen_parameter(model, caplog):
    model[0].bias.requires_grad_(requires_grad=False)
    monitor = monitored(model)
    monitor.add_gradient_metric("sq", lambda g: g.square().sum())

    def train():
        (1000 * model(torch.ones(2, 3)).sum()).backward()
        monitor.monitor_gradients(before_clip=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        monitor.monitor_gradients()

    with caplog.at_level(logging.WARNING, logger="ModuleMonitor"):
        found = step_of(monitor, train)
    before = sum(v for k, v in found.items() if k.startswith("gradient_before_clip/"))
    after = sum(v for k, v in found.items() if k.startswith("gradient/"))
    assert before > 1
    assert after == pytest.approx(1, rel=1e-3)
    assert "gradient/0.bias/sq" not in found
    assert "`0.bias` has no gradient" in caplog.text


def test_gradients_without_a_metric_of_them_are_no_error(model):
    monitor = monitored(model)
    assert step_of(monitor, monitor.monitor_gradients) == {}


def test_elements_count_the_same_and_numbers_count_as_one(model):
    monitor = monitored(model)
    monitor.add_activation_metric("token", lambda x: x[:, 0], metric_regex="0")
    monitor.add_activation_metric("number", lambda x: x[:, 0].mean(), metric_regex="0")
    monitor.add_activation_metric("plain", lambda x: float(len(x)), metric_regex="0")
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[0].bias.zero_()
    sizes = [torch.zeros(1, 3), torch.full((3, 3), 1 / 3)]
    found = step_of(monitor, *(lambda x=x: model(x) for x in sizes))
    assert found["activation/0/token"] == pytest.approx(0.75)
    assert found["activation/0/number"] == pytest.approx(0.5)
    assert found["activation/0/plain"] == 2


def test_an_aggregation_gets_all_values_and_may_return_several_numbers(model):
    monitor = monitored(model)
    monitor.add_activation_metric("least", lambda x: x, "0", torch.min)
    monitor.add_activation_metric(
        "both", lambda x: x, "0", lambda v: {"[min]": v.min(), "[max]": v.max().item()}
    )
    monitor.add_activation_metric("kept", lambda x: x, "0", lambda v: {"": v.sum(), "_n": len(v)})
    xs = [torch.randn(2, 3), torch.randn(5, 3)]
    values = torch.cat([model[0](x).flatten() for x in xs])
    found = step_of(monitor, *(lambda x=x: model(x) for x in xs))
    assert {k.removeprefix("activation/0/"): v for k, v in found.items()} == pytest.approx(
        {
            "least": values.min().item(),
            "both[min]": values.min().item(),
            "both[max]": values.max().item(),
            "kept": values.sum().item(),
            "kept_n": 28,
        }
    )
    assert all(type(value) is float for value in found.values())


def test_a_metric_sees_what_the_module_returned_whatever_is_written_into_it_later():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    monitor = monitored(model)
    monitor.add_activation_metric("min", lambda x: x.min())
    found = step_of(monitor, lambda: model(torch.randn(50, 3)).sum().backward())
    assert found["activation/0/min"] < 0
    assert found["activation/1/min"] == 0


def test_modules_that_return_several_tensors_are_monitored_too():
    class Pair(nn.Module):
        def forward(self, x):
            return x, 2 * x

    monitor = monitored(nn.Sequential(Pair()))
    monitor.add_activation_metric("mean", torch.mean, metric_regex="0")
    found = step_of(monitor, lambda: monitor.module(torch.ones(1)))
    assert found == {"activation/0/mean": 1, "activation/0/1/mean": 2}


def test_a_metric_that_raises_is_told_of_and_training_goes_on(model, unheard):
    monitor = monitored(model)
    monitor.add_activation_metric("broken", lambda x: x.no_such_method())
    monitor.add_activation_metric("mean", torch.mean)
    found = step_of(monitor, lambda: model(torch.ones(1, 3)).sum().backward())
    monitor.close()
    assert set(found) == {f"activation/{m}/mean" for m in ("0", "1", "2", "[root module]")}
    assert "no_such_method" in unheard.pop()


def test_with_strict_a_metric_that_raises_stops_the_training(model):
    monitor = monitored(model, strict=True)
    monitor.add_activation_metric("broken", lambda x: x.no_such_method())
    monitor.begin_step(0)
    with pytest.raises(AttributeError, match="no_such_method"):
        model(torch.ones(1, 3))


# -- numbers of the loop ---------------------------------------------------------------------------


def test_numbers_are_logged_by_hand(model):
    monitor = ModuleMonitor(monitor_step_fn=lambda step: step == 0)
    monitor.set_module(model)

    def log():
        monitor.log_scalar("loss", 1.0)
        monitor.log_scalar("loss", torch.tensor(3.0))
        monitor.log_scalar("largest", 1.0, aggregation_fn=torch.max)
        monitor.log_scalar("largest", 5.0, aggregation_fn=torch.max)
        monitor.log_scalars({"lr": 0.1, "epoch": 2})
        monitor.log_tensor("tokens", torch.tensor([[1.0, 2.0], [3.0, 6.0]]))

    found = step_of(monitor, log)
    assert found == pytest.approx({"loss": 2, "largest": 5, "lr": 0.1, "epoch": 2, "tokens": 3})
    monitor.begin_step(1)
    monitor.log_scalar("loss", 7.0)
    monitor.log_scalar("forced", 8.0, force=True)
    monitor.log_scalars({"also": 9}, force=True)
    monitor.end_step()
    assert monitor.get_step_metrics() == {"forced": 8, "also": 9}
    with pytest.raises(ValueError, match="must be a number"):
        monitor.log_scalar("text", "no")


def test_a_tensor_of_any_name_is_asked_about_like_an_activation(model):
    monitor = monitored(model)
    monitor.set_reference_module(copy.deepcopy(model))
    monitor.add_activation_metric("mean", torch.mean)
    monitor.add_activation_metric("other", torch.mean, metric_regex="0")
    monitor.add_activation_difference_metric("distance", torch.dist)

    def show():
        monitor.monitor_activations("foo", torch.zeros(2), is_reference=True)
        monitor.monitor_activations("foo", torch.tensor([3.0, 4.0]))
        monitor.monitor_activations("foo", "no tensor")
        monitor.monitor_activations(model[0], torch.ones(2))

    found = step_of(monitor, show)
    assert found == {
        "activation/foo/mean": 3.5,
        "activation_difference/foo/distance": 5,
        "activation/0/mean": 1,
        "activation/0/other": 1,
    }
    monitor.begin_step(1)
    with pytest.raises(ValueError, match="no part"):
        monitor.monitor_activations(nn.ReLU(), torch.ones(1))


# -- the reference ---------------------------------------------------------------------------------


def test_a_reference_must_have_the_same_modules(model):
    with pytest.raises(ValueError, match="Set the monitored module"):
        ModuleMonitor().set_reference_module(model)
    reference = copy.deepcopy(model)
    monitor = monitored(model)
    with pytest.raises(ValueError, match="same modules"):
        monitor.set_reference_module(nn.Sequential(nn.Linear(3, 4)))
    assert not monitor.has_reference_module()
    monitor.set_reference_module(reference)
    assert monitor.has_reference_module()
    monitor.remove_reference_module()
    assert not monitor.has_reference_module()
    assert not any(m._forward_hooks for m in reference.modules())


@pytest.mark.parametrize("block", ["no_monitor", "no_grad", "left out"])
def test_the_reference_runs_before_the_model_or_not_at_all(model, block):
    reference = copy.deepcopy(model)
    monitor = monitored(model, cpu_offload=True)
    monitor.set_reference_module(reference)
    monitor.add_activation_difference_metric("distance", torch.dist)
    with torch.no_grad():
        model[2].bias.add_(1.0)
    blocks = {"no_monitor": monitor.no_monitor, "no_grad": torch.no_grad}

    def passes():
        for x in (torch.ones(2, 3), torch.zeros(3, 3)):
            if block in blocks:
                with blocks[block]():
                    reference(x)
            model(x).sum().backward()
            monitor.after_micro_batch()

    found = step_of(monitor, passes)
    assert found["activation_difference/2/distance"] == pytest.approx((2 + math.sqrt(6)) / 2)
    assert found["activation_difference/0/distance"] == 0


def test_a_module_that_is_called_twice_is_compared_call_by_call():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x):
            return self.layer(self.layer(x))

    model = Twice()
    reference = copy.deepcopy(model)
    monitor = monitored(model)
    monitor.set_reference_module(reference)
    monitor.add_activation_difference_metric("distance", torch.dist, metric_regex="layer")
    with torch.no_grad():
        model.layer.bias.add_(1.0)
    x = torch.randn(2, 3)
    first = torch.dist(model.layer(x), reference.layer(x))
    second = torch.dist(model(x), reference(x))
    found = step_of(monitor, lambda: (reference(x), model(x)))
    expected = ((first + second) / 2).item()
    assert found["activation_difference/layer/distance"] == pytest.approx(expected)


def test_a_reference_of_which_only_parameters_are_compared_is_not_called(model):
    reference = copy.deepcopy(model)
    calls = []
    reference.register_forward_hook(lambda *_: calls.append(1))
    monitor = monitored(model)
    monitor.set_reference_module(reference)
    monitor.add_parameter_difference_metric("distance", torch.dist)
    found = step_of(monitor, lambda: model(torch.ones(1, 3)), monitor.monitor_parameters)
    assert found["parameter_difference/0.weight/distance"] == 0
    assert calls == []


def test_a_copy_made_after_set_module_does_not_mix_its_activations_in(model):
    monitor = monitored(model)
    monitor.add_activation_metric("mean", torch.mean)
    reference = copy.deepcopy(model)
    monitor.set_reference_module(reference)
    with torch.no_grad():
        reference[2].bias.add_(100.0)
    x = torch.ones(2, 3)
    found = step_of(monitor, lambda: (reference(x), model(x)))
    assert found["activation/2/mean"] == pytest.approx(model(x).mean().item())


# -- the refined coordinate check ------------------------------------------------------------------


def norm(x):
    return x.norm(dim=-1).mean().item()


def test_the_coordinate_check_needs_a_module_a_reference_and_a_forward(model):
    with pytest.raises(ValueError, match="Set the module"):
        RefinedCoordinateCheck(ModuleMonitor())
    monitor = monitored(model)
    with pytest.raises(ValueError, match="Set the reference"):
        RefinedCoordinateCheck(monitor)
    monitor.set_reference_module(copy.deepcopy(model))
    rcc = RefinedCoordinateCheck(monitor)
    rcc.refined_coordinate_check()  # not monitoring: nothing
    monitor.begin_step(0)
    with pytest.raises(ValueError, match="has not been called"):
        rcc.refined_coordinate_check()
    model(torch.ones(1, 3))
    monitor.end_step()
    assert monitor.get_step_metrics() == {}  # it was not asked for


def test_the_terms_of_the_coordinate_check_are_those_worked_out_by_hand():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3), nn.ReLU())
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    monitor = monitored(model)
    monitor.set_reference_module(reference)
    rcc = RefinedCoordinateCheck(monitor)
    tokens = torch.randint(7, (2, 5))
    found = step_of(monitor, lambda: model(tokens), rcc.refined_coordinate_check)
    x, y = model[0](tokens), reference[0](tokens)  # inputs of the LayerNorm
    u, v = model[1](x), reference[1](y)  # inputs of the Linear
    hat_x, hat_y = (functional.layer_norm(z, (4,)) for z in (x, y))
    w, w0, b, b0 = model[2].weight, reference[2].weight, model[2].bias, reference[2].bias
    again = reference[2](u)
    expected = {
        "RCC (W_t-W_0)x_t/0/l2norm": norm(x - y),
        "RCC (W_t-W_0)x_t/2/l2norm": norm(model[2](u) - again),
        "RCC W_0(x_t-x_0)/2/l2norm": norm(again - reference[2](v)),
        "RCC x_t/2/l2norm": norm(u),
        "RCC (x_t-x_0)/2/l2norm": norm(u - v),
        "RCC (W_t-W_0)x_t/2.weight/l2norm": norm(u @ (w - w0).T),
        "RCC W_0(x_t-x_0)/2.weight/l2norm": norm((u - v) @ w0.T),
        "RCC (W_t-W_0)x_t/2.weight/W_t x_t/l2norm": norm(model[2](u) - b),
        "RCC W_0(x_t-x_0)/2.weight/W_0 x_0/l2norm": norm(reference[2](v) - b0),
        "RCC (W_t-W_0)x_t/1.weight/x_t/l2norm": norm(hat_x),
        "RCC W_0(x_t-x_0)/1.weight/x_t-x_0/l2norm": norm(hat_x - hat_y),
        "RCC W_0(x_t-x_0)/3/l2norm": norm(model[2](u).relu() - reference[2](v).relu()),
    }
    assert {key: found[key] for key in expected} == pytest.approx(expected, rel=1e-4)
    assert [key for key in found if "/0/" in key] == ["RCC (W_t-W_0)x_t/0/l2norm"]


def test_the_coordinate_check_leaves_batch_norm_and_random_numbers_alone():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    reference = copy.deepcopy(model)
    monitor = monitored(model)
    monitor.set_reference_module(reference)
    rcc = RefinedCoordinateCheck(monitor)
    torch.manual_seed(0)
    with torch.no_grad():
        reference(torch.ones(4, 3))
    before = torch.get_rng_state()
    step_of(monitor, lambda: model(torch.randn(4, 3)), rcc.refined_coordinate_check)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    plain = copy.deepcopy(reference)
    plain(torch.randn(4, 3))
    assert torch.equal(torch.get_rng_state(), after)
    assert reference[1].num_batches_tracked == 1


# -- attention and modules of the user -------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, math.log(6)),
        ({"is_causal": True}, sum(math.log(i + 1) for i in range(6)) / 6),
        ({"attn_mask": torch.eye(6, dtype=torch.bool)}, 0.0),
        ({"attn_mask": torch.eye(6, dtype=torch.bool)[None, None].expand(2, 1, 6, 6)}, 0.0),
        ({"dropout_p": 0.9}, math.log(6)),
    ],
)
def test_the_entropy_of_attention_per_head(model, options, expected):
    monitor = monitored(model)
    monitor.add_activation_metric("mean", torch.mean)
    q, k, v = torch.zeros(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)

    def show():
        monitor_scaled_dot_product_attention(
            monitor, "attn", q, k, v, enable_gqa=True, activation=q + 1, **options
        )

    found = step_of(monitor, show)
    assert {k for k in found if k.startswith("attention_entropy/")} == {
        f"attention_entropy/attn.head_{i}" for i in range(4)
    }
    assert found["attention_entropy/attn.head_3"] == pytest.approx(expected, abs=1e-5)
    assert found["activation/attn.head_3.activation/mean"] == 1
    assert found["activation/attn.head_3.key/mean"] == pytest.approx(k[:, 1].mean().item())


def test_the_entropy_of_the_model_is_not_mixed_with_that_of_its_reference(model):
    monitor = monitored(model)
    monitor.set_reference_module(copy.deepcopy(model))
    q = torch.zeros(1, 1, 4, 8)
    peaked = torch.eye(4, 8)[None, None] * 1000

    def show():
        monitor_scaled_dot_product_attention(monitor, "0", peaked, peaked, q, is_reference=True)
        monitor_scaled_dot_product_attention(monitor, "0", q, q, q)

    found = step_of(monitor, show)
    assert found["attention_entropy/0.head_0"] == pytest.approx(math.log(4))


class Layer(nn.Module, MonitorMixin):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x):
        y = self.fc(x)
        if self.is_monitoring:
            self.get_module_monitor().log_tensor("custom/layer", y)
        return y


def test_modules_of_the_user_work_without_a_monitor_when_excluded_and_when_copied():
    model = nn.Sequential(Layer())
    x = torch.ones(2, 3)
    model(x)
    assert not model[0].is_monitoring
    assert model[0].get_module_monitor() is None
    monitor = monitored(model, excluded_modules_regex="0")
    assert step_of(monitor, lambda: model(x)) == {}
    monitor.close()
    monitor = monitored(model)
    copied = copy.deepcopy(model)
    found = step_of(monitor, lambda: (model(x), copied(100 * x)))
    assert found == pytest.approx({"custom/layer": model(x).mean().item()})
    assert copied[0].get_module_monitor() is None
    monitor.close()
    model(x)


def test_what_a_module_of_the_reference_logs_is_not_mixed_in():
    model = nn.Sequential(Layer())
    reference = copy.deepcopy(model)
    monitor = monitored(model)
    monitor.set_reference_module(reference)
    assert reference[0].is_reference_module
    x = torch.ones(2, 3)
    with torch.no_grad():
        reference[0].fc.bias.add_(100.0)
    found = step_of(monitor, lambda: (reference(x), model(x)))
    assert found["custom/layer"] == pytest.approx(model(x).mean().item())
    monitor.remove_reference_module()
    assert reference[0].get_module_monitor() is None


# -- storage ---------------------------------------------------------------------------------------


def test_storage_keeps_aggregates_and_condenses():
    storage = StorageManager()
    storage.create_step_entry(0)
    assert storage.has_step(0)
    assert not storage.has_step(1)
    storage.log_scalar(0, "loss", 1)
    assert storage.get_step_metrics(0) == {"loss": 1}
    storage.log_scalar(0, "loss", torch.tensor(2.0))
    storage.log_tensor(0, "x", torch.tensor([[1.0, 2.0]]))
    storage.log_tensor(0, "x", torch.tensor([6.0]))
    storage.log_tensor(0, "y", torch.ones(2), lambda v: {"[n]": len(v)})
    storage.aggregate_step(0)
    storage.aggregate_step(7)
    assert storage.get_all_metrics() == {0: {"loss": 1.5, "x": 3, "y[n]": 2}}
    assert storage.condensed_log_dict()["x"] == {0: 3}
    assert storage.get_step_metrics(5) == {}
    with pytest.raises(ValueError, match="already"):
        storage.load_metrics({})
    storage.clear()
    storage.load_metrics({3: {"a": 1.0}})
    assert storage.get_all_metrics() == {3: {"a": 1.0}}
    with pytest.raises(ValueError, match="must be a number"):
        storage.log_scalar(0, "z", "text")


def test_storage_survives_hdf5_with_names_that_have_slashes():
    h5py = pytest.importorskip("h5py")
    storage = StorageManager()
    storage.load_metrics({0: {"activation/0/m": 1.0, "loss": 2.0}, 20: {"activation/0/m": 3.0}})
    storage.save_hdf5("a.h5")
    with h5py.File("a.h5") as file:
        assert file["activation/0/m/keys"][:].tolist() == [0, 20]
        assert file["activation/0/m/values"].dtype == "float64"
    assert set(StorageManager.read_hdf5_entry_keys("a.h5")) == {"activation/0/m", "loss"}
    keys, values = StorageManager.read_hdf5_entry("a.h5", "activation/0/m")
    assert (keys.tolist(), values.tolist()) == ([0, 20], [1, 3])
    assert StorageManager.read_hdf5_entry("a.h5", "nothing") is None
    assert StorageManager.load_hdf5("a.h5") == storage.condensed_log_dict()
    storage.save_hdf5("b.h5", condensed=False)
    assert StorageManager.load_hdf5("b.h5") == {str(s): m for s, m in storage.log_dict.items()}


def test_a_step_says_how_many_keys_it_has_and_what_they_take(model, caplog):
    monitor = monitored(model, logger=logging.getLogger("mine"))
    monitor.add_activation_metric("mean", torch.mean)
    with caplog.at_level(logging.INFO, logger="mine"):
        step_of(monitor, lambda: model(torch.ones(1, 3)))
    assert "Logged 4 keys at step 0. Values take 32 bytes." in caplog.text


def test_metrics_go_to_any_logger_and_to_the_run(model):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    monitor = monitored(model, name="monitored")
    monitor.add_activation_metric("mean", torch.mean)
    found = step_of(monitor, lambda: model(torch.ones(1, 3)))
    with tensorboard.SummaryWriter("events") as writer:
        for key, value in found.items():
            writer.add_scalar(key, value, 0)
    monitor.close()
    run = sonde.open("runs/monitored")
    assert run.metrics("mean", module="2")["value"].tolist() == [found["activation/2/mean"]]


def test_hooks_of_a_manager_go_together(model):
    with HooksManager() as hooks:
        hooks.register_forward_hook(model[0], lambda *_: None)
        hooks.register_forward_hook(model[0], lambda *_: None)
        hooks.register_forward_hook(model[1], lambda *_: None)
        assert len(hooks) == 2
        hooks.remove_hook(model[1])
        assert len(hooks) == len(model[0]._forward_hooks) == 1
    assert not model[0]._forward_hooks


def test_training_is_the_same_to_the_bit_with_a_monitor(model):
    def trained(monitor=None):
        torch.manual_seed(3)
        net = nn.Sequential(
            nn.Linear(3, 8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 1)
        )
        optimizer = torch.optim.Adam(net.parameters())
        if monitor is not None:
            monitor.set_module(net)
            monitor.set_reference_module(copy.deepcopy(net))
            monitor.add_activation_metric("noisy", lambda x: x + torch.rand_like(x))
            monitor.add_activation_difference_metric("distance", torch.dist)
            RefinedCoordinateCheck(monitor)
        for step in range(4):
            if monitor is not None:
                monitor.begin_step(step)
            net(torch.randn(5, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor is not None:
                monitor.end_step()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    with ModuleMonitor(monitor_step_fn=always) as monitor:
        assert torch.equal(trained(monitor), trained())


def test_switched_off_it_records_nothing_and_every_call_works(model, monkeypatch):
    monkeypatch.setenv("SONDE", "off")
    monitor = monitored(model)
    monitor.set_reference_module(copy.deepcopy(model))
    monitor.add_activation_metric("mean", torch.mean)
    check = RefinedCoordinateCheck(monitor)
    monitor.begin_step(0)
    with monitor.no_monitor():
        model(torch.ones(1, 3))
    model(torch.ones(1, 3)).sum().backward()
    check.refined_coordinate_check()
    monitor.monitor_parameters()
    monitor.monitor_gradients()
    monitor.log_scalar("loss", 1.0)
    monitor.end_step()
    assert monitor.get_all_metrics() == {0: {}}
    assert not any(m._forward_hooks for m in model.modules())
    assert not Path("runs").exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_metrics_on_a_gpu_are_those_of_the_same_model_on_the_cpu(model):
    x, found = torch.randn(8, 3), []
    for device in ("cpu", "cuda"):
        net = copy.deepcopy(model).to(device)
        reference = copy.deepcopy(net)
        with torch.no_grad():
            net[0].weight.mul_(1.5)
        with monitored(net, cpu_offload=True) as monitor:
            monitor.set_reference_module(reference)
            monitor.add_activation_metric("row_norm", lambda y: y.norm(dim=-1))
            monitor.add_activation_difference_metric("distance", torch.dist)
            monitor.add_gradient_metric("norm", torch.norm)
            for step in range(3):
                monitor.begin_step(step)
                net(x.to(device)).square().sum().backward()
                monitor.monitor_gradients()
                net.zero_grad()
                monitor.end_step()
            found.append(monitor.get_all_metrics())
    for step, metrics in found[0].items():
        assert found[1][step] == pytest.approx(metrics, rel=1e-4)
