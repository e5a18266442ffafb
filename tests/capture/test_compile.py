"""Under `torch.compile`: nothing breaks, nothing is compiled again, and the numbers are those of
eager mode."""

import copy
import subprocess
import sys
import warnings

import pytest
import torch
from test_transformers import gpt2, llama
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import sonde
from sonde.capture.torch import capture
from sonde.capture.torch.compile import hooks, operators
from sonde.capture.torch.rows.host import HostTable

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def graphs():
    """How many graphs were compiled, and how often tracing was broken off."""
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.act = nn.Tanh()

    def forward(self, x):
        return x + self.act(self.down(self.act(self.up(self.norm(x)))))


class Net(nn.Module):
    """Blocks, a reused activation, a residual; checkpoints if asked for."""

    def __init__(self, blocks=2, checkpointed=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(8, 3)
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return self.head(x)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.conv(x.unflatten(1, (1, 8)).unsqueeze(-1)))
        y = x.clone()
        y += self.act(x)
        return self.head(y.mean((2, 3)))


def record(watching, model, call, *, steps=2, passes=1, autocast=False, **options):
    """Train a few steps through `call` and give what was recorded."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch, memory = watching(model, optimizer, **options)
    data = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        for _ in range(passes):
            x = torch.randn(5, 8, generator=data, dtype=torch.float64).to(dtype)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                result = call(x)
                parts = result if isinstance(result, tuple) else (result,)
                loss = sum(part.float().square().mean() for part in parts)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    assert memory.counted("failed") == {}
    return memory


def assert_agree(found, eager, exact, *, steps=2, tolerance=1e-4):
    """The same sites and counts as in eager mode; sizes as in float64, to the dtype's rounding.

    A step trains on what earlier ones rounded, so errors grow with steps: the bound is on sizes
    (root mean square), for sites that are not themselves rounding noise.
    """
    for step in range(steps) if isinstance(steps, int) else steps:
        a, b, c = found.at(step), eager.at(step), exact.at(step)
        assert set(a) == set(b) == set(c)
        for name in a:
            assert a[name].count == b[name].count, name
            assert a[name].nans == a[name].infs == 0, name
            if c[name].rms > 1e-6:
                assert a[name].rms == pytest.approx(c[name].rms, rel=tolerance), name
                assert a[name].max == pytest.approx(c[name].max, rel=tolerance, abs=tolerance), name


def check(watching, model, compile_, *, tolerance=1e-4, **options):
    """Record eagerly, in float64, and compiled; all three agree."""
    eager_model, exact_model = copy.deepcopy(model), copy.deepcopy(model).double()
    eager = record(watching, eager_model, eager_model, **options)
    exact = record(watching, exact_model, exact_model, **{**options, "autocast": False})
    counters.clear()
    found = record(watching, model, compile_(model), **options)
    assert_agree(found, eager, exact, tolerance=tolerance)
    return found


def whole(model):
    return torch.compile(model, fullgraph=True)


# Taps are placed before a graph reaches its backend: most of what follows needs no code generator.


def traced(model):
    return torch.compile(model, fullgraph=True, backend="aot_eager")


def partitioned(model):
    """With what decides which values are computed again in backward."""
    return torch.compile(model, fullgraph=True, backend="aot_eager_decomp_partition")


def in_place(model):
    model.compile(fullgraph=True, backend="aot_eager")
    return model


def by_block(model):
    for block in model.blocks:
        block.compile(fullgraph=True, backend="aot_eager")
    return model


def by_wrapped_block(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, fullgraph=True, backend="aot_eager")
    return model


def as_function(model):
    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(x):
        return model(x)

    return call


@pytest.mark.parametrize(
    "compile_", [pytest.param(whole, marks=pytest.mark.slow), in_place, as_function]
)
def test_a_compiled_model_is_recorded_like_an_eager_one(watching, compile_):
    check(watching, Net(), compile_)
    assert graphs() == (1, 0)


@pytest.mark.parametrize("compile_", [by_block, by_wrapped_block])
def test_blocks_compiled_one_by_one_share_their_code(watching, compile_):
    """As many graphs for twelve blocks as without us: one for an input without a gradient, one
    for all others."""
    found = check(watching, Net(blocks=12), compile_)
    assert graphs() == (2, 0)
    assert {"blocks.11.up/output/0", "blocks.11.act#1/output_grad/0"} <= set(found.at(0))


def test_accumulation_under_compile(watching):
    check(watching, Net(), traced, passes=3)
    assert graphs() == (1, 0)


def test_checkpointing_under_compile_counts_once(watching):
    check(watching, Net(checkpointed=True), partitioned, log="default")
    assert graphs() == (1, 0)


class Passing(nn.Module):
    """Returns what its child returned, unless it writes to it first."""

    def __init__(self, overwrites=False):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8))
        self.overwrites = overwrites

    def forward(self, x):
        x = self.inner(self.first(x))
        return x.mul_(2) if self.overwrites else x


@pytest.mark.parametrize(("overwrites", "values"), [(False, 3), (True, 4)])
def test_a_tensor_that_several_modules_return_is_read_once(watching, overwrites, values):
    """The input of all, what the first returns, what the others do: or what they did at first, and
    then."""
    placed = []

    def counting(graph, inputs):
        nodes = list(graph.graph.nodes)
        placed.append(sum(n.target is torch.ops.sonde.tap.default for n in nodes))
        return aot_eager(graph, inputs)

    def compile_(model):
        return torch.compile(model, fullgraph=True, backend=counting)

    model = nn.Sequential(Passing(overwrites))
    found = check(watching, model, compile_, log=["input", "output", "output_grad"])
    assert placed == [values]
    assert {"0.inner.0/input/0", "0.first/output/0", "0/output_grad/0"} <= set(found.at(1))


def test_in_place_operations_under_compile(watching):
    check(watching, InPlace(), whole)
    assert graphs() == (1, 0)


class Returning(nn.Module):
    """Returns what its last module returned, or something made of it."""

    def __init__(self, how):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.head = nn.Linear(8, 200)
        self.how = how

    def forward(self, x):
        y = self.head(self.first(x[None] if self.how == "of three dimensions" else x))
        match self.how:
            case "new":
                return y * 2
            case "overwritten":
                return y.mul_(2)
            case "also used":
                return y.exp().mean(), y
        return y


@pytest.mark.slow  # for this, real code has to be generated
@pytest.mark.parametrize(
    ("how", "reads"),
    [
        ("same", 2),
        ("of three dimensions", 2),  # there, what is returned is another view of the same memory
        ("new", 4),
        ("overwritten", 4),
        ("also used", 3),
    ],
)
def test_what_compiled_code_returns_is_read_once(watching, monkeypatch, how, reads):
    """The model's hooks run outside it, and those of its last module inside."""
    model = Returning(how)
    eager_model = copy.deepcopy(model)
    eager = record(watching, eager_model, eager_model, log=["output", "output_grad"])
    read = []
    add = HostTable.add
    monkeypatch.setattr(capture, "native_path", lambda _lock, _root: None)  # which asks no table
    monkeypatch.setattr(HostTable, "add", lambda t, i, x: (read.append(x.numel()), add(t, i, x))[1])
    found = record(watching, model, whole(model), log=["output", "output_grad"])
    assert read.count(5 * 200) == 2 * reads
    for step in range(2):
        for name, sketch in found.at(step).items():
            if how != "also used" or not name.startswith("./output_grad"):
                # (There, the gradient inside compiled code is not known outside it.)
                assert sketch.rms == pytest.approx(eager.at(step)[name].rms, rel=1e-4), name


class Counting:
    """A backend that notes which of its codes runs: by how many taps there are in it."""

    def __init__(self):
        self.ran = []

    def __call__(self, graph, inputs):
        code = aot_eager(graph, inputs)
        parts = [g for g in graph.modules() if isinstance(g, torch.fx.GraphModule)]
        nodes = [n for g in parts for n in g.graph.nodes]
        taps = sum(n.target in operators.ALL for n in nodes)

        def run(*args):
            self.ran.append(taps)
            return code(*args)

        return run


def called(model, backend):
    return torch.compile(model, fullgraph=True, backend=backend)


def called_in_function(model, backend):
    @torch.compile(fullgraph=True, backend=backend)
    def call(x):
        return model(x)

    return call


def called_by_block(model, backend):
    for block in model.blocks:
        block.compile(fullgraph=True, backend=backend)
    return model


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("call", [called, called_in_function, called_by_block])
def test_a_step_that_is_not_recorded_runs_code_without_taps(watching, call, checkpointed):
    model, eager_model = (Net(checkpointed=checkpointed) for _ in range(2))
    eager_model.load_state_dict(model.state_dict())
    eager = record(watching, eager_model, eager_model, steps=7, every=3, passes=2)
    backend = Counting()
    found = record(watching, model, call(model, backend), steps=7, every=3, passes=2)
    assert [s for s, _ in found.steps] == [s for s, _ in eager.steps] == [0, 3, 6]
    assert_agree(found, eager, eager, steps=[0, 3, 6])
    per_step = len(backend.ran) // 7
    ran = [{n > 0 for n in backend.ran[i * per_step : (i + 1) * per_step]} for i in range(7)]
    # A checkpoint around compiled code runs it again, and then needs the same of the two.
    always = checkpointed and call is called_by_block
    assert ran == [{always or step % 3 == 0} for step in range(7)]


def test_when_every_step_is_recorded_there_is_no_code_without_taps(watching):
    backend = Counting()
    model = Net()
    compiled_codes = []
    record(watching, model, called(model, lambda g, i: compiled_codes.append(g) or backend(g, i)))
    assert len(compiled_codes) == 1
    assert all(backend.ran)


@pytest.mark.parametrize("call", [called, called_in_function])
def test_a_call_that_is_not_to_be_recorded_begins_no_step(watching, call):
    """What is logged after it still belongs to the step before."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, every=2)
    backend = Counting()
    code = call(model, backend)
    for _ in range(3):
        code(torch.randn(5, 8)).sum().backward()
        optimizer.step()
        with watch.paused():
            code(torch.randn(5, 8))
        watch.log(loss=1.0)
    watch.close()
    assert [n > 0 for n in backend.ran] == [True, False, False, False, True, False]
    assert list(memory.scalars) == [(0, "train"), (1, "train"), (2, "train")]


@pytest.mark.parametrize("compile_", [traced, by_block])
def test_inference_mode_under_compile(watching, compile_):
    """Tensors whose versions nobody counts."""
    model = Net()
    x = torch.randn(5, 8)
    watch, memory = watching(model, every=2)
    call = compile_(model)
    with watch.phase("check"), torch.inference_mode():
        for _ in range(2):
            call(x)
    watch.close()
    found = memory.at(0, "check")
    assert found["head/output/0"].count == 2 * 5 * 3
    assert {"blocks.0.up/output/0", "blocks.1/output/0"} <= set(found)
    assert memory.counted("failed") == {}


def test_without_taps_for_any_length(watching):
    """Code for inputs of all sizes is there with taps and without, too."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer, every=2)
    call = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (5, 3, 7, 4):
        call(torch.randn(n, 8)).square().mean().backward()
        optimizer.step()
    watch.close()
    assert [memory.at(step)["head/output/0"].count for step in (0, 2)] == [15, 21]
    assert graphs() == (1, 0)


def test_code_that_cannot_be_compiled_without_taps_has_them_always(watching):
    def picky(graph, inputs):
        if not any(n.target in operators.ALL for n in graph.graph.nodes):
            raise ValueError("there is nothing to do")
        return aot_eager(graph, inputs)

    model = Net()
    found = record(watching, model, called(model, picky), every=2, steps=3)
    assert [step for step, _ in found.steps] == [0, 2]
    assert "blocks.1.up/output_grad/0" in found.at(2)


def test_code_that_outlives_its_watch_runs_without_taps(watching):
    backend = Counting()
    model = Net()
    call = called(model, backend)
    record(watching, model, call, every=2, steps=2)
    call(torch.randn(5, 8))
    assert backend.ran[-1] == 0


def test_code_that_outlives_its_watch_keeps_nothing_of_it(watching):
    before = dict(operators.KEYS)
    model = Net()
    call = called(model, "aot_eager")
    watch, memory = watching(model, log=["output", "output_grad"])
    call(torch.randn(5, 8)).square().mean().backward()
    watch.step()
    numbers = operators.KEYS.keys() - before.keys()
    assert len(numbers) >= 9
    watch.close()
    assert operators.KEYS.keys() == before.keys()
    call(torch.randn(5, 8)).square().mean().backward()
    operators.TAP(torch.ones(3), min(numbers))  # as code does that is still there
    operators.TAPS([torch.ones(3), torch.ones(3)], sorted(numbers)[:2])
    assert [step for step, _ in memory.steps] == [0]
    record(watching, model, call, every=1, steps=1)
    assert operators.KEYS.keys() == before.keys()


@pytest.mark.parametrize("compile_", [traced, by_block])
@pytest.mark.parametrize("is_older", [False, True])
def test_a_twin_that_nobody_watches_does_not_lend_its_code(watching, compile_, is_older):
    """Models of one class share what is compiled for them, if the compiler sees no difference."""
    twin, model = Net(blocks=3), Net(blocks=3)
    call_twin, call = compile_(twin), compile_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(5, 8)
    before = torch._dynamo.config.skip_nnmodule_hook_guards
    if is_older:
        call_twin(x).sum().backward()
    watch, memory = watching(model, optimizer)
    for i in range(4):
        call_twin(x).sum().backward()
        call(x).sum().backward()
        optimizer.step()
        if i == 1:
            n_graphs = graphs()
    watch.close()
    for step in range(4):
        assert {"blocks.1.up/output/0", "blocks.2.act#1/output/0"} <= set(memory.at(step))
    assert graphs() == n_graphs
    assert torch._dynamo.config.skip_nnmodule_hook_guards == before


def test_the_compiler_is_as_before_also_if_a_watch_was_lost():
    class Lost:
        pass

    before = torch._dynamo.config.skip_nnmodule_hook_guards
    owners = [Lost(), Lost()]
    hooks.mind_hooks(owners[0])
    del owners[0]
    hooks.mind_hooks(owners[0])
    assert torch._dynamo.config.skip_nnmodule_hook_guards is False
    hooks.mind_no_more(owners[0])
    assert torch._dynamo.config.skip_nnmodule_hook_guards == before


LATE = """
import sys, torch, sonde
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(self.up(x).relu())

class Memory:
    name = "memory"
    def __init__(self): self.names, self.ids = {}, set()
    def sites(self, infos): self.names |= {i.id: i.site.name for i in infos}
    def sketches(self, batch): self.ids |= set(batch.ids.tolist())
    def numbers(self, batch): pass
    def event(self, event): pass
    def close(self, reason): pass

memory, model, twin = Memory(), Net(), Net()
watch = sonde.watch(model, every=1, dir=sys.argv[1], sinks=[memory])
assert "torch._dynamo" not in sys.modules  # an optimizer would bring it
call_twin, call = (torch.compile(m, fullgraph=True, backend="aot_eager") for m in (twin, model))
x = torch.randn(3, 4)
for _ in range(2):
    call_twin(x).sum().backward()
    call(x).sum().backward()
    watch.step()
watch.close()
found = {memory.names[i] for i in memory.ids}
assert {"up/output/0", "down/output/0"} <= found, found
"""


def test_a_compiler_that_comes_after_the_watch_is_noticed(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", LATE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("compile_", [in_place, by_block])
def test_an_older_compiler_leaves_out_gradients_and_the_run_says_so(
    watching, monkeypatch, compile_
):
    """Hooks that it could not trace would end the training."""
    monkeypatch.setattr(hooks, "TRACES_HOOKS", False)
    torch.manual_seed(0)
    model = Net(blocks=3)
    memory = record(watching, model, compile_(model), log="all")
    found = set(memory.at(1))
    assert {"blocks.1.up/output/0", "blocks.1.up/input/0", "blocks.1.up/param/weight"} <= found
    assert "blocks.1.up/param_grad/weight" in found
    assert not [name for name in found if "blocks.1.up" in name and "put_grad" in name]
    told = [e for e in memory.events if e.code == "skipped" and e.where == "compiled code"]
    assert "not recorded inside compiled code" in told[0].message


@pytest.mark.slow  # for this, real code has to be generated
def test_gradients_under_autocast_have_the_dtype_of_eager_mode(watching):
    """The norm returns float32, and what comes after it takes bfloat16: so do their gradients."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(64)
            self.up = nn.Linear(64, 64)

        def forward(self, x):
            return self.up(self.norm(x.repeat(1, 8)))

    model = Normed()
    eager_model = copy.deepcopy(model)
    eager = record(watching, eager_model, eager_model, autocast=True, steps=1)
    found = record(watching, model, whole(model), autocast=True, steps=1)
    dtypes = [
        {i.site.name: i.dtype for i in memory.infos.values()}["norm/output_grad/0"]
        for memory in (found, eager)
    ]
    assert dtypes == ["float32", "float32"]
    for name, sketch in eager.at(0).items():
        assert found.at(0)[name].count == sketch.count
        assert found.at(0)[name].rms == pytest.approx(sketch.rms, rel=0.02), name


def test_autocast_under_compile(watching):
    """bfloat16 keeps 8 bits: a relative error of 2**-8 per operation, and there are about ten."""
    found = check(watching, Net(), traced, autocast=True, tolerance=0.08)
    dtypes = {i.site.name: i.dtype for i in found.infos.values()}
    assert dtypes["blocks.0.up/output/0"] == "bfloat16"


@pytest.mark.parametrize(
    ("make", "compile_"), [(gpt2, traced), pytest.param(llama, whole, marks=pytest.mark.slow)]
)
def test_real_models_compile_whole_and_once(watching, make, compile_):
    """No graph break, and no recompilation in fifty steps of which every seventh is recorded."""
    model, inputs = make(layers=1)
    model.train()
    model.loss_type = "ForCausalLM"  # what it would find out, and log, by itself
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0  # the compiler draws other random numbers
    eager_model = copy.deepcopy(model)

    def train(model, call, steps):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        watch, memory = watching(model, optimizer, every=7)
        for _ in range(steps):
            call(**inputs, use_cache=False).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
        return memory

    eager = train(eager_model, eager_model, 8)
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = train(model, compile_(model), 50)
    assert graphs() == (1, 0)
    assert [s for s, _ in found.steps] == [0, 7, 14, 21, 28, 35, 42, 49]
    for step in (0, 7):
        a, b = found.at(step), eager.at(step)
        # The outermost compiled module gives its logits away; their gradient stays inside.
        assert set(b) - set(a) == {"./output_grad/logits"}
        assert set(a) <= set(b)
        for name in a:
            assert a[name].count == b[name].count, name
            if step == 0 and b[name].rms > 1e-6:
                assert a[name].rms == pytest.approx(b[name].rms, rel=1e-3), name
    assert found.counted("failed") == {}


def test_a_model_that_was_compiled_before_is_recorded_too(watching):
    """The compiler does not look for new hooks: its code is dropped and made again."""
    model = Net()
    eager = copy.deepcopy(model)
    hooks = traced(model)
    hooks(torch.ones(5, 8)).sum().backward()
    hooks(torch.ones(5, 8)).sum().backward()
    model.zero_grad()
    assert graphs() == (1, 0)
    found = record(watching, hooks, hooks)
    assert len(found.counted("recompiled")) == 1
    assert graphs() == (2, 0)
    assert set(found.at(0)) == set(record(watching, eager, eager).at(0))


def test_a_function_that_was_compiled_before_is_told_of(watching, flushing):
    """What a user compiled around the model cannot be found; its silence can be."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    call = as_function(model)
    call(torch.ones(5, 8))
    watch, memory = watching(model, optimizer)
    call(torch.ones(5, 8)).sum().backward()
    text = r"no call of the model was seen.*torch.compile"
    with pytest.warns(sonde.SondeWarning, match=text), flushing(watch):
        optimizer.step()
    optimizer.step()
    watch.close()
    assert list(memory.counted("unseen").values()) == [2]


class Attached(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = sonde.attach(self.fc(x) * 2, "doubled")
        return sonde.attach(y + 1, "more")


def test_attached_tensors_under_compile(watching):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Attached()
            self.last = nn.Linear(8, 3)

        def forward(self, x):
            return self.last(self.inner(self.inner(x)))

    found = check(watching, Outer(), traced)
    assert graphs() == (1, 0)
    names = {n for n in found.at(0) if "attach" in n}
    assert names == {
        f"inner{call}/{kind}/{name}"
        for call in ("", "#1")
        for kind in ("attach", "attach_grad")
        for name in ("doubled", "more")
    }


def test_attach_compiles_to_nothing_when_nobody_watches():
    model = Attached()
    hooks = traced(model)
    x = torch.ones(2, 8)
    assert torch.allclose(hooks(x), model(x))
    assert graphs() == (1, 0)


class Broken(nn.Module):
    """Tracing breaks off in the middle."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.inner = Breaking()
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.inner(self.first(x)))


class Breaking(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

    def forward(self, x):
        x = self.up(x)
        torch._dynamo.graph_break()
        return self.down(x)


def test_graph_breaks_lose_nothing(watching):
    def compile_(model):
        return torch.compile(model, backend="aot_eager")

    compile_(Broken())(torch.ones(5, 8))
    expected = graphs()
    assert expected[1] > 0
    torch._dynamo.reset()
    check(watching, Broken(), compile_)
    assert graphs() == expected


def test_evaluation_of_a_compiled_model_is_a_phase(watching):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hooks = torch.compile(model, backend="aot_eager")
    watch, memory = watching(model, optimizer, phases=("train", "eval"), log="default")
    for _ in range(2):
        hooks(torch.ones(5, 8)).sum().backward()
        optimizer.step()
        hooks.eval()
        with torch.no_grad():
            hooks(torch.ones(2, 8))
        hooks.train()
    watch.close()
    assert memory.steps == [(0, "train"), (0, "eval"), (1, "train"), (1, "eval")]
    assert memory.at(1, "eval")["head/output/0"].count == 6
    assert memory.at(1, "train")["head/output/0"].count == 15


def test_a_compiled_optimizer_is_recorded(watching):
    def run(compile_it):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        watch, memory = watching(model, optimizer)
        step = torch.compile(optimizer.step, backend="aot_eager") if compile_it else optimizer.step
        for _ in range(3):
            model(torch.ones(5, 8)).square().mean().backward()
            step()
            optimizer.zero_grad()
        watch.close()
        return memory

    plain, found = run(False), run(True)
    for step in range(3):
        assert set(found.at(step)) == set(plain.at(step))
        for name, sketch in plain.at(step).items():
            assert found.at(step)[name].count == sketch.count, name
            assert found.at(step)[name].rms == pytest.approx(sketch.rms, rel=1e-3, abs=1e-8), name


def test_training_under_compile_is_the_same_bits(watching):
    """As far as tracing goes. A code generator may join other operations when values are kept."""

    def run(watched):
        torch.manual_seed(0)
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        watch = watching(model, optimizer)[0] if watched else None
        hooks = traced(model)
        for _ in range(3):
            hooks(torch.ones(5, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if watch:
            watch.close()
        return model.state_dict()

    plain, watched = run(False), run(True)
    assert all(torch.equal(plain[name], watched[name]) for name in plain)


def test_nothing_of_ours_is_left_in_code_compiled_after_unwatching(watching):
    model = Net()
    found = []

    def backend(graph, inputs):
        found.append([n for n in graph.graph.nodes if "sonde" in str(n.target)])
        return graph.forward

    hooks = torch.compile(model, backend=backend)
    watch, _ = watching(model)
    hooks(torch.ones(5, 8))
    watch.close()
    hooks(torch.ones(5, 8))
    assert found[0]
    assert found[-1] == []
    assert len(found) == 2


def test_two_watches_of_one_compiled_model_both_see_it(watching, unheard):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, memory = watching(model, optimizer)
    watch2, memory2 = watching(model, optimizer, log="output")
    hooks = torch.compile(model, backend="aot_eager", fullgraph=True)
    hooks(torch.ones(5, 8)).sum().backward()
    optimizer.step()
    watch.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hooks(torch.ones(5, 8)).sum().backward()
    optimizer.step()
    watch2.close()
    assert set(memory2.at(0)) == {n for n in memory.at(0) if "/output/" in n}
    assert set(memory2.at(1)) == set(memory2.at(0))
    assert "already watched" in unheard.pop()
