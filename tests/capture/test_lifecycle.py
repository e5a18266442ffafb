"""A watched model is still a model: copied, saved, moved, converted, changed, and let go of."""

import copy
import gc
import io
import itertools
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import Counter
from itertools import pairwise

import psutil
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad
from witness import Witness

import sonde
from sonde.capture import active
from sonde.capture.drain import Drain
from sonde.capture.plan import Plan, kinds_of, schedule_of
from sonde.capture.torch.session import TorchSession


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(sonde.attach(self.act(self.first(x)), "hidden"))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def step(model, optimizer, n=1):
    for _ in range(n):
        model(torch.ones(3, 4, dtype=model.last.weight.dtype)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def hooks_on(model):
    return sum(
        len(held)
        for m in model.modules()
        for name, held in vars(m).items()
        if "hooks" in name and hasattr(held, "__len__")
    )


# -- copies ------------------------------------------------------------------------------------


def saved_and_loaded(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "torch.save": saved_and_loaded,
    "twice": lambda m: copy.deepcopy(saved_and_loaded(copy.deepcopy(m))),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_works_and_is_not_recorded(watching, model, optimizer, how):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    twin = COPIES[how](model)
    x = torch.ones(50, 4)
    assert torch.equal(twin(x), model(x))
    twin(x).sum().backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    optimizer.step()
    watch.close()
    assert memory.steps == [(0, "train"), (1, "train")]
    assert memory.at(1)["./output/0"].count == 100
    assert all(torch.equal(a, b) for a, b in zip(twin(x), twin(x), strict=True))


def test_a_shallow_copy_is_not_recorded_but_the_modules_it_shares_are(
    watching, model, optimizer, unheard
):
    watch, memory = watching(model, optimizer)
    twin = copy.copy(model)
    twin(torch.ones(5, 4))
    optimizer.step()
    watch.close()
    assert "./output/0" not in memory.at(0)
    assert memory.at(0)["last/output/0"].count == 10
    assert "no watched module was being called" in unheard.pop()


def test_a_copy_can_be_watched_by_itself(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    twin = copy.deepcopy(model)
    other = torch.optim.SGD(twin.parameters(), lr=0.1)
    watch2, memory2 = watching(twin, other)
    step(model, optimizer)
    step(twin, other, 2)
    watch.close()
    watch2.close()
    assert (len(memory.steps), len(memory2.steps)) == (1, 2)
    assert memory.at(0).keys() == memory2.at(0).keys()


def test_an_average_of_weights_is_not_recorded(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    average = torch.optim.swa_utils.AveragedModel(model)
    step(model, optimizer)
    average.update_parameters(model)
    average(torch.ones(50, 4))
    step(model, optimizer)
    watch.close()
    assert memory.at(1)["./output/0"].count == 6


def test_a_saved_model_loads_where_sonde_is_not_installed(watching, model, optimizer, tmp_path):
    _watch, _ = watching(model, optimizer)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    _watch2, _ = watching(plain)
    torch.save(plain, tmp_path / "model.pt")
    torch.save(plain.state_dict(), tmp_path / "state.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    (tmp_path / "pickled").write_bytes(pickle.dumps((plain, optimizer)[0]))
    expected = plain(torch.ones(3, 4)).sum().item()
    code = f"""
        import sys
        sys.modules["sonde"] = None  # importing it is an error from here on
        import pickle, torch
        model = torch.load("model.pt", weights_only=False)
        assert abs(model(torch.ones(3, 4)).sum().item() - {expected!r}) < 1e-6
        model(torch.ones(3, 4)).sum().backward()
        model.load_state_dict(torch.load("state.pt"))
        torch.load("optimizer.pt")
        pickle.load(open("pickled", "rb"))(torch.ones(3, 4))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_state_dicts_are_as_they_were(watching, model, optimizer):
    before, before_optimizer = list(model.state_dict()), optimizer.state_dict().keys()
    _watch, _ = watching(model, optimizer)
    step(model, optimizer)
    assert list(model.state_dict()) == before
    assert optimizer.state_dict().keys() == before_optimizer
    assert model.load_state_dict(model.state_dict()).missing_keys == []
    assert copy.deepcopy(optimizer)._optimizer_step_pre_hooks == {}
    assert pickle.loads(pickle.dumps(optimizer))._optimizer_step_post_hooks == {}


# -- conversions -------------------------------------------------------------------------------


def test_a_model_converted_while_watched_is_recorded_in_its_new_dtype(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model.to(torch.float64)
    step(model, optimizer)
    model.half()
    step(model, optimizer)
    watch.close()
    sites = [memory.infos[i] for i in memory.batches[-1].ids.tolist()]
    assert {s.dtype for s in sites if s.site.kind in ("output", "param")} == {"float16"}
    assert memory.at(0).keys() == memory.at(1).keys() == memory.at(2).keys()


def test_a_model_on_the_meta_device_is_skipped_with_a_reason(watching, model):
    watch, memory = watching(model)
    model.to("meta")
    model(torch.ones(3, 4, device="meta"))
    watch.step()
    watch.close()
    assert memory.at(0) == {}
    assert {reason for _, reason in memory.counted("skipped")} == {"meta tensor: it has no values"}


def test_an_exported_model_holds_nothing_of_ours(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    x = torch.ones(3, 4)
    program = torch.export.export(model, (x,))
    assert not [n for n in program.graph.nodes if "sonde" in str(n.target)]
    assert torch.equal(program.module()(x), model(x))
    step(model, optimizer)
    watch.close()
    assert memory.at(0)["./output/0"].count == 12


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_model_holds_nothing_of_ours(watching, model, optimizer):
    watch, memory = watching(model, optimizer, log=["output", "attach"])
    x = torch.ones(3, 4)
    traced = torch.jit.trace(model, (x,))
    kinds = {n.kind() for n in traced.inlined_graph.nodes()}
    plain = {n.kind() for n in torch.jit.trace(Net(), (x,)).inlined_graph.nodes()}
    assert kinds == plain
    optimizer.step()
    traced(x)
    step(model, optimizer)
    watch.close()
    assert memory.at(1)["./output/0"].count == 6


def test_a_symbolic_trace_holds_nothing_of_ours(watching):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))
    watching(model)
    traced = torch.fx.symbolic_trace(model)
    assert {n.op for n in traced.graph.nodes} == {"placeholder", "call_module", "output"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripting_a_watched_model_says_what_to_do(watching, model):
    watch, _ = watching(model)
    with pytest.raises(sonde.SondeError, match=r"unwatch.*before torch.jit.script"):
        torch.jit.script(model)
    watch.close()


def test_function_transforms_of_a_watched_model_are_right(watching, model):
    """`torch.func.grad` inside `vmap`: per-sample gradients."""
    x = torch.randn(6, 4)
    parameters = {k: v.detach() for k, v in model.named_parameters()}

    def loss(p, sample):
        return torch.func.functional_call(model, p, (sample,)).square().sum()

    per_sample = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = per_sample(parameters, x)
    watch, memory = watching(model)
    found = per_sample(parameters, x)
    watch.step()
    watch.close()
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    assert memory.at(0)["./input/0"].count == 24
    assert memory.at(0)["./output/0"].count == 12
    assert memory.at(0)["last/output_grad/0"].count == 12


# -- letting go --------------------------------------------------------------------------------


def test_unwatch_leaves_nothing(watching, model, optimizer):
    clip, scaler_step = clip_grad._clip_grads_with_norm_, torch.amp.GradScaler.step
    before = hooks_on(model)
    _, memory = watching(model, optimizer)
    step(model, optimizer)
    assert hooks_on(model) > before
    assert clip_grad._clip_grads_with_norm_ is not clip
    sonde.unwatch(model)
    assert memory.closed == "finished"
    assert hooks_on(model) == before == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert clip_grad._clip_grads_with_norm_ is clip
    assert torch.amp.GradScaler.step is scaler_step
    assert active._ACTIVE == ()
    sonde.unwatch(model)
    step(model, optimizer)
    assert memory.steps == [(0, "train")]


def assert_nothing_is_left(model, optimizer, act):
    """Hooks, threads, files and memory are as they were."""
    process = psutil.Process()
    act(20)
    gc.collect()
    files, threads, memory = process.num_fds(), threading.active_count(), process.memory_info().rss
    alive = len(gc.get_objects())
    act(1000)
    gc.collect()
    assert hooks_on(model) == 0
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert process.num_fds() <= files
    assert threading.active_count() <= threads
    assert len(gc.get_objects()) - alive < 1000
    # An allocator may take a stretch of memory at any time; what leaks does so each time.
    grown = [process.memory_info().rss - memory]
    while grown[-1] >= 20e6 and len(grown) < 3:
        memory = process.memory_info().rss
        act(1000)
        gc.collect()
        grown.append(process.memory_info().rss - memory)
    assert min(grown) < 20e6, grown


def test_a_thousand_sessions_leave_nothing(model, optimizer):
    plan = Plan(kinds_of("all"))

    def attach_and_detach(n):
        for _ in range(n):
            drain = Drain([])
            session = TorchSession(model, [optimizer], plan, schedule_of(1), drain, step=0)
            model(torch.ones(1, 4))
            session.close()
            drain.close("finished", 10.0)

    assert_nothing_is_left(model, optimizer, attach_and_detach)


def test_many_watches_leave_nothing(model, optimizer, tmp_path):
    names = (f"run-{i}" for i in itertools.count())

    def attach_and_detach(n):
        for _ in range(n // 10):
            with sonde.watch(model, optimizer, dir=tmp_path, name=next(names), log="all"):
                pass

    assert_nothing_is_left(model, optimizer, attach_and_detach)


def test_a_watch_that_is_closed_holds_nothing_for_each_module(tmp_path):
    """Its user may keep it; and what is garbage then may stay, if nothing collects it."""
    parts = [nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(100)]
    model = nn.Sequential(*parts)
    optimizer = torch.optim.Adam(model.parameters())
    before = {id(o) for o in gc.get_objects()}
    watch = sonde.watch(model, optimizer, dir=tmp_path, log="all", every=1)
    for _ in range(3):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    gc.collect()
    gc.disable()
    try:
        watch.close()
        left = [o for o in gc.get_objects() if id(o) not in before]
        ours = Counter(type(o) for o in left if str(type(o).__module__).startswith("sonde"))
    finally:
        gc.enable()
    assert max(ours.values()) < 20
    assert len(watch.metrics(stats="rms")) > 1000


def test_a_model_is_not_kept_alive_by_being_watched(watching):
    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    watch, _ = watching(model, optimizer)
    step(model, optimizer, 2)
    dead = [weakref.ref(model.first), weakref.ref(model.first.weight), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [r() for r in dead] == [None] * 3
    watch.close()


def test_outputs_and_inputs_are_not_kept_alive(watching, model, optimizer):
    watch, _ = watching(model, optimizer)
    kept = []
    for module in model.modules():
        module.register_forward_hook(
            lambda m, args, y: kept.extend([weakref.ref(y), weakref.ref(args[0])])
        )
    for _ in range(3):
        model(torch.ones(3, 4)).sum().backward()
        gc.collect()
        assert [r() for r in kept if r() is not None] == []
        optimizer.step()
        optimizer.zero_grad()
    assert kept
    watch.close()


def test_gradients_and_copies_are_not_kept_alive(watching):
    model = nn.Linear(4, 8737)  # no other tensor has this shape
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, _ = watching(model, optimizer)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        grads = [weakref.ref(p.grad) for p in model.parameters()]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    gc.collect()
    assert [r() for r in grads] == [None, None]
    alive = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)]
    assert [id(t) for t in alive if t.shape == (8737, 4)] == [id(model.weight)]
    watch.close()


def test_a_leaf_that_was_an_input_keeps_no_hook(watching, model, optimizer):
    watch, _ = watching(model, optimizer)
    x = torch.ones(3, 4, requires_grad=True)
    for _ in range(3):
        model(x).sum().backward()
    assert len(x._backward_hooks) == 1
    optimizer.step()
    assert len(x._backward_hooks) == 0
    model(x)
    watch.close()
    assert len(x._backward_hooks) == 0


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_steps(watching, model, optimizer):
    """What is kept by mistake grows all the time; an allocator grows by a jump now and then."""
    watch, memory = watching(model, optimizer)
    process = psutil.Process()
    sizes = []
    for i in range(300 + 4 * 400 + 1):
        step(model, optimizer)
        watch.log(loss=i)
        memory.batches.clear()
        memory.scalars.clear()
        if i >= 300 and (i - 300) % 400 == 0:
            watch.flush()
            gc.collect()
            sizes.append(process.memory_info().rss)
    watch.close()
    assert min(after - before for before, after in pairwise(sizes)) < 3e6


# -- a model that changes ----------------------------------------------------------------------


class LowRank(nn.Module):
    """An adapter around a frozen layer, as injected by fine-tuning libraries."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def test_an_injected_adapter_appears_under_its_names(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model.first = LowRank(model.first)
    optimizer.add_param_group({"params": [*model.first.up.parameters()]})
    step(model, optimizer)
    watch.close()
    before, after = memory.at(0), memory.at(1)
    assert "first.base/output/0" not in before
    assert {"first/output/0", "first.base/output/0", "first.up/output_grad/0"} <= set(after)
    assert {"first.base/param/weight", "first.up/update/weight"} <= set(after)
    assert "first/param/weight" not in after
    assert "first.base/param_grad/weight" not in after


def test_a_replaced_layer_is_let_go_of_and_the_new_one_recorded(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    dead = weakref.ref(model.last)
    model.last = nn.Linear(8, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    assert dead() is None
    model(torch.ones(3, 4)).sum().backward()
    watch.close()
    assert memory.at(0)["last/output/0"].count == 6
    assert memory.at(1)["last/output/0"].count == 15


def test_a_layer_replaced_behind_the_back_of_torch_is_noticed(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model._modules["act"] = nn.Tanh()
    step(model, optimizer)
    watch.close()
    types = [i.module_type for i in memory.infos.values() if i.site.name == "act/output/0"]
    assert memory.at(1)["act/output/0"].count == 24
    assert types  # the site is the same, whatever its module is now


def test_a_removed_layer_stops_and_has_no_hook_left(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    removed, model.act = model.act, nn.Identity()
    step(model, optimizer)
    removed(torch.ones(99))
    watch.close()
    assert hooks_on(removed) == 0
    assert memory.at(1)["act/output/0"].count == 24


def test_weights_tied_later_go_by_their_first_name(watching):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, log="param")
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch.close()
    watch, memory2 = watching(model, optimizer, log="param")
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    watch.close()
    assert "1/param/weight" in memory.at(0)
    assert "1/param/weight" not in memory2.at(0)


def test_thawing_a_parameter_shows_its_gradient_from_then_on(watching, model, optimizer):
    model.first.requires_grad_(False)
    watch, memory = watching(model, optimizer)
    step(model, optimizer)
    model.first.requires_grad_(True)
    step(model, optimizer)
    watch.close()
    assert "first/param_grad/weight" not in memory.at(0)
    assert "first/param_grad/weight" in memory.at(1)
    assert "first/update/weight" in memory.at(1)


# -- several watches, none ---------------------------------------------------------------------


def test_two_models_in_one_process_do_not_mix(watching, model, optimizer, unheard):
    other = nn.Sequential(nn.Linear(4, 3))
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    witness, witness2 = Witness(model, optimizer), Witness(other, other_optimizer)
    watch, memory = watching(model, optimizer, exclude="nothing", log=ALL_BUT_ATTACH)
    watch2, memory2 = watching(other, other_optimizer, every=2)
    for _ in range(3):
        (model(torch.ones(3, 4)).sum() + other(torch.ones(5, 4)).sum()).backward()
        optimizer.step()
        other_optimizer.step()
        watch.log(a=1)
    watch.close()
    watch2.close()
    witness.check(memory)
    witness2.check(memory2, steps=[0, 2])
    assert (len(memory.scalars), len(memory2.scalars)) == (3, 0)
    assert watch.path != watch2.path
    assert unheard.pop() == VAIN


ALL_BUT_ATTACH = [
    *("input", "output", "input_grad", "output_grad"),
    *("param", "param_grad", "update", "optim"),
]
VAIN = "sonde.attach('hidden') is not recorded: `log` has neither `attach` nor `attach_grad`"


def test_two_watches_of_one_model_see_the_same_and_end_apart(watching, model, optimizer, unheard):
    witness = Witness(model, optimizer)
    watch, memory = watching(model, optimizer, log=ALL_BUT_ATTACH)
    watch2, memory2 = watching(model, optimizer, log=ALL_BUT_ATTACH)
    step(model, optimizer, 2)
    watch.close()
    step(model, optimizer)
    watch2.close()
    witness.check(memory, steps=[0, 1])
    witness.check(memory2)
    assert memory.at(2) == {}
    said = sorted([unheard.pop(), unheard.pop(), unheard.pop()])  # from two threads
    assert said[1:] == [VAIN, VAIN]
    assert "already watched" in said[0]


def test_an_optimizer_of_another_model_ends_no_step(watching, model, optimizer):
    other = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    watch, memory = watching(model, optimizer)
    other.step()
    scaler.step(other)
    step(model, optimizer)
    watch.close()
    assert memory.steps == [(0, "train")]


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false", "no"])
def test_the_environment_switches_everything_off(monkeypatch, tmp_path, model, optimizer, value):
    monkeypatch.setenv("SONDE", value)
    with sonde.watch(model, optimizer, dir=tmp_path / "runs") as watch:
        assert hooks_on(model) == 0
        step(model, optimizer)
        watch.log(loss=1.0)
        watch.step(loss=1.0)
        watch.every = 3
        with watch.paused(), watch.phase("validation"):
            pass
        assert watch.flush()
        assert (watch.path, watch.every, watch.is_recording) == (None, None, False)
        assert repr(watch) == "Watch(off)"
    assert not (tmp_path / "runs").exists()


def test_a_closed_watch_ignores_everything(watching, model, optimizer):
    watch, memory = watching(model, optimizer)
    watch.close()
    watch.close()
    watch.log(late=1)
    watch.step()
    step(model, optimizer)
    with watch.paused(), watch.phase("late"):
        model(torch.ones(1, 4))
    assert memory.steps == []
    assert memory.scalars == {}


def test_a_run_ends_with_the_process_also_without_close(tmp_path):
    code = """
        import torch, sonde
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = sonde.watch(model, optimizer, every=1, name="run", dir=".")
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        watch.log(loss=1.5)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=True)
    run = sonde.open(tmp_path / "run")
    assert run.status == "finished"
    assert run.info["reason"] == "exited"
    assert run.scalars("loss")["value"].tolist() == [1.5]
    assert run.sketch("./output/0").count == 2


def test_watching_does_not_load_the_compiler(tmp_path):
    """It takes seconds, and most who watch do not compile."""
    code = """
        import sys, torch, sonde
        model = torch.nn.Linear(2, 2)
        before = {m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))}
        with sonde.watch(model, dir=".", log="all", every=1) as watch:
            model(torch.ones(1, 2)).sum().backward()
            watch.step()
        after = {m for m in sys.modules if m.startswith(("torch._dynamo", "torch._inductor"))}
        assert after == before, after - before
    """
    environment = {k: v for k, v in os.environ.items() if k != "SONDE"}
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=True, env=environment
    )
