"""Behaviours of torchexplorer on the drop-in, and its faults, which the drop-in does not have."""

import copy
import inspect
import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import sonde
from sonde.compat import torchexplorer
from sonde.compat.torchexplorer.core import ModuleInvocationStructure

ALL = ["io", "io_grad", "params", "params_grad"]


@pytest.fixture
def watched():
    kept = []

    def watch(*args, **options):
        kept.append(torchexplorer.watch(*args, **{"backend": "none", "log_freq": 1, **options}))
        return kept[-1]

    yield watch
    for wrapper in kept:
        wrapper.close()


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def run_of(wrapper):
    wrapper.watch.flush()
    return sonde.open(wrapper.watch.path)


def train(model, steps=1, width=4, optimizer=None):
    for _ in range(steps):
        model(torch.randn(3, width)).square().sum().backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()


def test_te_1_setup_raises_the_limit_of_open_files():
    code = (
        "import resource\nfrom sonde.compat import torchexplorer\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))\n"
        "torchexplorer.setup(ulimit=128)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["128"]


def test_te_1_setup_takes_what_the_process_may_have(monkeypatch):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    real = resource.setrlimit

    def refusing(which, limits):
        if limits[1] > hard:
            raise ValueError("not allowed to raise maximum limit")
        real(which, limits)

    monkeypatch.setattr(resource, "setrlimit", refusing)
    try:
        torchexplorer.setup(ulimit=hard + 1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        real(resource.RLIMIT_NOFILE, (soft, hard))


def test_te_2_arguments_have_the_names_order_and_defaults_of_the_document():
    parameters = inspect.signature(torchexplorer.watch).parameters
    assert list(parameters)[:14] == [
        *("module", "log", "log_freq", "ignore_io_grad_classes", "disable_inplace", "bins"),
        *("sample_n", "reject_outlier_proportion", "time_log", "delay_log_multi_backward"),
        *("backend", "standalone_dir", "standalone_port", "verbose"),
    ]
    assert list(parameters["log"].default) == ALL
    assert parameters["sample_n"].default == 100
    assert parameters["standalone_port"].default == 5000
    assert {"delay_log_multibackward", "reject_outlier_propertion"} <= set(parameters)


@pytest.mark.parametrize(
    ("log", "kinds"),
    [
        (["io"], {"input", "output"}),
        (["io_grad"], {"input_grad", "output_grad"}),
        (["params"], {"param"}),
        (["params_grad"], {"param_grad"}),
        ([], set()),
    ],
)
def test_te_2_each_part_of_log_records_its_tensors(watched, log, kinds):
    model = mlp()
    wrapper = watched(model, log=log)
    train(model)
    assert set(run_of(wrapper).sites["kind"]) == kinds
    assert len(wrapper.structure.inner_graph.nodes) == 5


@pytest.mark.parametrize("bad", [{"log": ["weights"]}, {"backend": "tensorboard"}])
def test_te_2_what_is_no_part_and_no_backend_is_refused(bad):
    with pytest.raises(ValueError, match=r"takes|must be one of"):
        torchexplorer.watch(mlp(), **bad)


def test_te_3_log_freq_counts_backward_passes(watched):
    model = mlp()
    wrapper = watched(model, log_freq=3)
    train(model, steps=7)  # no update between: micro-batches count as steps here
    assert run_of(wrapper).steps == [0, 3, 6]


def test_te_4_time_log_is_a_scalar_of_the_run(watched):
    model = mlp()
    model.current_epoch = 0
    wrapper = watched(model, time_log=torchexplorer.LIGHTNING_EPOCHS)
    train(model, steps=2)
    model.current_epoch = 1
    train(model, steps=1)
    found = run_of(wrapper).scalars("epoch")
    assert list(found["value"]) == [0, 0, 1]


def test_te_5_attach_without_a_watch_returns_the_tensor():
    x = torch.randn(3)
    assert torchexplorer.attach(x, nn.Linear(1, 1), "x") is x


def test_te_6_structure_is_none_before_the_first_training_pass(watched):
    model = mlp().eval()
    wrapper = watched(model)
    model(torch.randn(3, 4))
    assert wrapper.structure is None
    train(model.train())
    assert isinstance(wrapper.structure, ModuleInvocationStructure)
    assert wrapper.structure.module is model


def test_te_7_ignored_classes_lose_gradients_with_all_that_is_in_them(watched):
    class Block(nn.Sequential):
        pass

    model = nn.Sequential(Block(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    wrapper = watched(model, ignore_io_grad_classes=[Block])
    train(model)
    sites = run_of(wrapper).sites
    assert set(sites[sites["kind"].isin(["input_grad", "output_grad"])]["module"]) == {"", "1"}
    assert "0.0" in set(sites[sites["kind"] == "output"]["module"])


def test_te_7_disable_inplace_turns_the_flag_off():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Sequential(nn.SiLU(inplace=True)))
    torchexplorer.watch(model, disable_inplace=True, backend="none").close()
    assert not any(m.inplace for m in model.modules() if hasattr(m, "inplace"))


def test_te_8_edges_follow_the_data(watched):
    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.sub, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            x = self.fc1(x)
            return self.fc2(torch.round(self.sub(x)).long().float() + x)

    model = Skip()
    wrapper = watched(model)
    train(model)
    graph = wrapper.structure.inner_graph
    named = {
        (a if isinstance(a, str) else a.path, b if isinstance(b, str) else b.path)
        for a, b in graph.edges
    }
    assert named == {
        ("Input 0", "fc1"),
        ("fc1", "sub"),
        ("sub", "fc2"),
        ("fc1", "fc2"),
        ("fc2", "Output 0"),
    }, "also through operations without a gradient"


def test_te_9_every_positional_input_has_its_histogram(watched):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Bilinear(4, 3, 2)

        def forward(self, x, y):
            return self.fc(x, y)

    model = Two()
    wrapper = watched(model, sample_n=None)
    model(torch.randn(5, 4), torch.randn(5, 3)).sum().backward()
    (node,) = [n for n in wrapper.structure.inner_graph.nodes if not isinstance(n, str)]
    first, second = node.module_metadata().invocation_hists[0].input_hists
    assert sum(first.history_bins[0]) == pytest.approx(20)
    assert sum(second.history_bins[0]) == pytest.approx(15)


def test_te_10_gradients_of_inputs_and_outputs_are_those_of_autograd(watched):
    model = mlp()
    wrapper = watched(model)
    x = torch.randn(3, 4, requires_grad=True)
    y = model(x)
    y.retain_grad()
    y.square().sum().backward()
    run = run_of(wrapper)
    assert run.sketch("2/output_grad/0").norm == pytest.approx(float(y.grad.norm()), rel=1e-5)
    assert run.sketch("0/input_grad/0").norm == pytest.approx(float(x.grad.norm()), rel=1e-5)


def test_te_11_parameters_and_gradients_are_those_before_the_update(watched):
    model = mlp()
    wrapper = watched(model)
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.randn(3, 4)).square().sum().backward()
    grad = model[0].weight.grad.clone()
    optimizer.step()
    optimizer.zero_grad()
    run = run_of(wrapper)
    assert run.sketch("0.weight", kind="param").norm == pytest.approx(float(before.norm()))
    assert run.sketch("0.weight", kind="param_grad").norm == pytest.approx(
        float(grad.norm()), rel=1e-5
    )


def test_te_12_sizes_are_those_of_the_first_pass(watched):
    model = mlp()
    wrapper = watched(model)
    for batch in (3, 5):
        model(torch.randn(batch, 4)).sum().backward()
    first = next(n for n in wrapper.structure.inner_graph.nodes if not isinstance(n, str))
    assert first.module_metadata().input_sizes[0] == [[3, 4]]
    assert first.module_metadata().output_sizes[0] == [[3, 8]]


def test_te_13_passes_in_evaluation_mode_leave_nothing(watched):
    model = mlp()
    wrapper = watched(model)
    y = model(torch.randn(3, 4))
    model.eval()
    model(torch.randn(100, 4))
    model.train()
    y.sum().backward()
    assert run_of(wrapper).sketch("2/output/0").count == 6


@pytest.mark.parametrize("waits", [False, True])
def test_te_14_two_backwards_are_one_step_where_they_are_asked_to_wait(watched, waits):
    model = mlp()
    wrapper = watched(model, delay_log_multi_backward=waits)
    for _ in range(2):
        one, two = model(torch.randn(3, 4)), model(torch.randn(5, 4))
        one.sum().backward()
        two.sum().backward()
    run = run_of(wrapper)
    counts = [run.sketch("2/output/0", step=step).count for step in run.steps if step % 2 == 0]
    assert run.steps == ([0, 1] if waits else [0, 1, 2, 3])
    assert counts[0] == 16


def test_te_15_the_random_numbers_of_the_run_are_its_own(watched):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 512), nn.Dropout(0.5), nn.Linear(512, 2))
    model = copy.deepcopy(plain)
    x = torch.randn(16, 4)
    watched(model)
    outputs = []
    for each in (plain, model):
        torch.manual_seed(1)
        for _ in range(3):
            y = each(x)
            y.sum().backward()
        outputs.append(y)
    assert torch.equal(*outputs)


def test_te_16_outliers_are_counted_and_do_not_hide_the_rest(watched):
    model = nn.Identity()
    wrapper = watched(model)
    x = torch.zeros(100, requires_grad=True)
    with torch.no_grad():
        x[:10] = 1e6
    model(x).sum().backward()
    found = run_of(wrapper).sketch("./output/0")
    assert (found.count, found.zeros, found.max) == (100, 90, 1e6)
    assert found.quantile(0.5) == 0


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("share", [0.001, 0.05, 0.2, 1.0])
@pytest.mark.parametrize("is_first", [True, False])
def test_te_17_values_that_are_not_finite_neither_hang_nor_crash(watched, odd, share, is_first):
    model = nn.Identity()
    wrapper = watched(model)
    x = torch.linspace(1, 2, 1000)
    bad = x.clone()
    bad[: int(1000 * share)] = odd
    for values in (bad, x) if is_first else (x, bad):
        model(values.requires_grad_()).sum().backward()
    metadata = wrapper.structure.module_metadata()
    (history,) = metadata.invocation_hists[0].output_hists
    n = int(1000 * share)
    expected = [n, 0] if is_first else [0, n]
    assert (history.nans if math.isnan(odd) else history.infs) == expected
    assert [sum(c) for c in history.history_bins] == pytest.approx([1000 - k for k in expected])


def test_te_17_one_spike_costs_later_steps_no_resolution(watched):
    model = nn.Identity()
    wrapper = watched(model)
    for scale in (1e6, 1.0):
        model((torch.linspace(1, 2, 64) * scale).requires_grad_()).sum().backward()
    counts = run_of(wrapper).histogram("./output/0", step=1, edges=8).counts
    assert counts.sum() == pytest.approx(64)
    assert (counts > 4).all()


def test_te_18_all_times_are_kept(watched):
    model = nn.Identity()
    wrapper = watched(model)
    for _ in range(25):
        model(torch.randn(8, requires_grad=True)).sum().backward()
    (history,) = wrapper.structure.module_metadata().invocation_hists[0].output_hists
    assert history.history_times == list(range(25))
    assert {len(counts) for counts in history.history_bins} == {20}


def test_te_21_wandb_needs_a_run():
    with pytest.raises(ValueError, match=r"Call `wandb.init\(\)` before"):
        torchexplorer.watch(mlp())


def test_te_22_without_a_backend_nothing_is_left_in_the_working_directory(watched):
    model = mlp()
    wrapper = watched(model)
    train(model)
    assert wrapper.structure is not None
    assert list(Path().iterdir()) == []
    assert wrapper.address is None


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, mask=None, y=None, *, flag=2):
        assert mask is None
        return {"out": self.fc(x + (0 if y is None else y)) * flag, "extra": None}


def test_fault_arguments_and_outputs_of_all_kinds_reach_the_module_as_they_are(watched):
    """torchexplorer drops None, and raises for numbers, keywords and dicts."""
    model = Odd()
    wrapper = watched(model)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    model(x, None, y, flag=3)["out"].sum().backward()
    run = run_of(wrapper)
    assert run.sketch("./input/2").mean == pytest.approx(float(y.mean()), abs=1e-6)
    assert run.sketch("./output/out").count == 12


def test_fault_long_chains_of_operations_are_no_recursion(watched):
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x):
            x = self.fc(x)
            for _ in range(3000):
                x = x + 1
            return x

    model = Chain()
    wrapper = watched(model)
    train(model, width=2)
    assert len(wrapper.structure.inner_graph.edges) == 2


def test_fault_a_watch_can_be_ended_and_begun_again(watched):
    model = mlp()
    torchexplorer.watch(model, backend="none", log_freq=1).close()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    wrapper = watched(model)
    train(model, steps=2)
    assert run_of(wrapper).steps == [0, 1]


def test_losses_are_the_same_to_the_bit(watched):
    torch.manual_seed(0)
    plain = mlp()
    model = copy.deepcopy(plain)
    watched(model)
    for each in (plain, model):
        torch.manual_seed(2)
        train(each, 5, optimizer=torch.optim.Adam(each.parameters()))
    assert all(
        torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True)
    )
