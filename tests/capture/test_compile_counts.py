"""Watching changes nothing about what is compiled: graphs, breaks and recompiles are as without.

Where some steps are not recorded, each graph with taps in it reaches the backend twice.
"""

import copy
from collections import Counter
from typing import NamedTuple

import pytest
import torch
import transformers
from test_transformers import MODELS
from torch import nn
from torch._dynamo import utils
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters
from torch.fx import GraphModule

import sonde
from sonde.capture.torch.compile import operators
from sonde.capture.torch.compile.hooks import TRACES_HOOKS

pytestmark = pytest.mark.usefixtures("fresh_compiler", "early_limit", "all_metrics")


@pytest.fixture
def early_limit():
    """A limit that four blocks reach if each is compiled by itself."""
    with torch._dynamo.config.patch(recompile_limit=3):
        yield


@pytest.fixture
def all_metrics():
    """The compiler keeps what it noted of every compilation, not of the last 64 alone."""
    utils.set_compilation_metrics_limit(10_000)
    yield
    utils.set_compilation_metrics_limit(utils.DEFAULT_COMPILATION_METRICS_LIMIT)


class Counts(NamedTuple):
    """What the compiler did."""

    graphs: int
    breaks: int
    recompiles: int
    frames: int

    @classmethod
    def begin(cls):
        torch._dynamo.reset()
        counters.clear()
        utils.clear_compilation_metrics()

    @classmethod
    def now(cls):
        made = [m for m in utils.get_compilation_metrics() if m.graph_op_count]
        return cls(
            counters["stats"]["unique_graphs"],
            sum(counters["graph_break"].values()),
            sum(not m.compile_id.endswith("/0") for m in made),
            len(made),
        )


class Backend:
    """Counts the graphs that it is given, with taps and without."""

    def __init__(self, inner):
        self.given = Counter()
        self._inner = inner

    def __call__(self, graph, inputs):
        parts = [g for g in graph.modules() if isinstance(g, GraphModule)]
        has_taps = any(n.target in operators.ALL for g in parts for n in g.graph.nodes)
        self.given["with" if has_taps else "without"] += 1
        return self._inner(graph, inputs)


def run_as_it_is(graph, _inputs):
    return graph.forward


# -- ways to compile -----------------------------------------------------------------------------


def whole(model, _layers, backend):
    return torch.compile(model, backend=backend)


def broken(model, layers, backend):
    """With a graph break between the layers."""
    made = {}
    for layer in layers:
        cls = type(layer)
        if cls not in made:

            def forward(self, *args, _cls=cls, **kwargs):
                torch._dynamo.graph_break()
                return _cls.forward(self, *args, **kwargs)

            made[cls] = type(cls.__name__, (cls,), {"forward": forward})
        layer.__class__ = made[cls]
    return torch.compile(model, backend=backend)


def in_place(model, _layers, backend):
    model.compile(backend=backend)
    return model


def by_layer(model, layers, backend):
    for layer in layers:
        layer.compile(backend=backend)
    return model


def by_wrapped_layer(model, layers, backend):
    for i, layer in enumerate(layers):
        layers[i] = torch.compile(layer, backend=backend)
    return model


def by_method(model, layers, backend):
    """The `forward` of a class, for all layers at once."""
    cls = type(layers[0])
    made = type(cls.__name__, (cls,), {"forward": torch.compile(cls.forward, backend=backend)})
    for layer in layers:
        layer.__class__ = made
    return model


def in_a_loss(model, _layers, backend):
    @torch.compile(backend=backend)
    def loss(*args, **kwargs):
        out = model(*args, **kwargs)
        torch._dynamo.graph_break()
        return out

    return loss


def as_argument(model, layers, backend):
    """A function that takes the module."""

    @torch.compile(backend=backend)
    def call(layer, x):
        return layer(x) * 1

    def run(x):
        x = model.first(x)
        for layer in layers:
            x = call(layer, x)
        return model.head(x)

    return run


# -- blocks of our own ---------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 16)
        self.act = nn.Tanh()
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.act(self.down(sonde.attach(self.act(self.up(self.norm(x))), "hidden")))


class Net(nn.Module):
    """Four blocks, with a graph break after each if asked for."""

    def __init__(self, breaks):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 3)
        self.breaks = breaks

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        return self.head(x)


def train(model, call, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(1)
    for _ in range(steps):
        call(torch.randn(5, 8, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def counted(compile_, breaks, watching=None, **options):
    """What was compiled in three steps, what the backend was given, what was recorded."""
    Counts.begin()
    torch.manual_seed(0)
    model = Net(breaks)
    backend = Backend(aot_eager)
    memory = None
    if watching is not None:
        watch, memory = watching(model, **options)
    call = compile_(model, model.blocks, backend) if compile_ else model
    for _ in train(model, call):
        if memory is not None:
            watch.step()
    if memory is not None:
        watch.close()
    return Counts.now(), backend.given, memory


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize(
    "compile_",
    [whole, in_place, by_layer, by_wrapped_layer, by_method, in_a_loss, as_argument],
)
def test_repeated_blocks_share_their_code_as_without_us(watching, compile_, breaks):
    expected, plain, _ = counted(compile_, breaks)
    found, given, memory = counted(compile_, breaks, watching, every=2)
    assert found == expected
    assert given["with"] + given["without"] - plain["without"] == given["with"] > 0
    _, _, eager = counted(None, breaks, watching, every=2)
    for step in (0, 2):
        a, b = memory.at(step), eager.at(step)
        if compile_ is as_argument:  # which calls no model, so there is none to record
            b = {name: sketch for name, sketch in b.items() if not name.startswith("./")}
        assert set(a) == set(b) or not TRACES_HOOKS
        for name in a:
            assert a[name].count == b[name].count, name
            if b[name].rms > 1e-6:
                assert a[name].rms == pytest.approx(b[name].rms, rel=1e-4), name
    assert memory.counted("failed") == {}
    assert memory.counted("recompile_limit") == {}


def test_code_of_blocks_that_are_recorded_apart_is_not_mixed_up(watching):
    """Some blocks are recorded and some are not: two variants, whatever runs first."""
    found, _, memory = counted(
        whole, True, watching, log=["output"], include=["blocks.1*", "blocks.3*"]
    )
    modules = {name.split("/")[0] for name in memory.at(1)}
    recorded = {module.split(".")[1] for module in modules if module.startswith("blocks.")}
    assert recorded == {"1", "3"}
    assert found.frames <= 2


def test_shared_code_serves_again_after_close_and_a_second_watch(watching):
    torch.manual_seed(0)
    model = Net(breaks=True)
    backend = Backend(aot_eager)
    call = whole(model, model.blocks, backend)
    for _ in range(2):
        watch, memory = watching(model, every=1)
        for _ in train(model, call, steps=2):
            watch.step()
        watch.close()
        for block in range(4):
            assert f"blocks.{block}.up/output/0" in memory.at(1)
        for _ in train(model, call, steps=2):
            pass
    assert backend.given == {"with": 2, "without": 2}


def test_the_run_says_when_the_compiler_gives_up(watching, unheard):
    class Scaled(nn.Linear):
        def __init__(self, label):
            super().__init__(8, 8)
            self.label = label

        def forward(self, x):
            return super().forward(x) * len(self.label)

    model = nn.Sequential(*(Scaled("x" * n) for n in range(1, 6)))
    for layer in model:
        layer.compile(backend=run_as_it_is)
    with torch._dynamo.config.patch(recompile_limit=2):
        watch, memory = watching(model)
        model(torch.randn(5, 8)).sum().backward()
        watch.step()
        watch.close()
    (warned,) = unheard
    assert "reached recompile_limit (2)" in warned
    assert "eager mode" in warned
    unheard.clear()
    assert list(memory.counted("recompile_limit").values()) == [1]
    assert {f"{i}/output/0" for i in range(5)} <= set(memory.at(0))


# -- models of others ----------------------------------------------------------------------------


def made(name, use_cache=False):
    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.train()
    if name != "vit":
        for module in model.modules():  # parts have configurations of their own
            if hasattr(module, "config"):
                module.config.use_cache = use_cache
        model.loss_type = {"t5": None, "whisper": None}.get(name, "ForCausalLM")
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for attribute in ("dropout", "attention_dropout", "activation_dropout", "layerdrop"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m[0]._modules)]
    inner = {id(m) for each in lists for layer in each for m in layer.modules()}
    layers = [layer for each in lists if id(each) not in inner for layer in each]
    return model, inputs, layers


def steps_of(name, compile_, watching=None, use_cache=False, **options):
    """Two steps of such a model: what was compiled and recorded."""
    Counts.begin()
    model, inputs, layers = made(name, use_cache)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    memory = None
    if watching is not None:
        watch, memory = watching(model, optimizer, **options)
    call = model if compile_ is None else compile_(model, layers, run_as_it_is)
    for _ in range(2):
        call(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if memory is not None:
        watch.close()
    return Counts.now(), memory


_EAGER = {}
"""What is recorded of each model in eager mode."""


@pytest.mark.parametrize("compile_", [whole, broken, in_place, by_layer, in_a_loss])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_others_compile_as_without_us(watching, name, compile_):
    options = {"every": 1, "log": ["output", "output_grad"]}
    if name not in _EAGER:
        _EAGER[name] = copy.copy(steps_of(name, None, watching, **options)[1])
    eager = _EAGER[name]
    expected, _ = steps_of(name, compile_)
    found, memory = steps_of(name, compile_, watching, **options)
    assert expected.graphs > 0
    assert found == expected
    assert memory.counted("failed") == {}
    for step in (0, 1):
        a, b = memory.at(step), eager.at(step)
        # What the outermost compiled module returns has its gradient inside the code.
        missing = {n for n in set(b) - set(a) if not n.startswith("./output_grad/")}
        assert not missing or not TRACES_HOOKS
        for each, sketch in a.items():
            assert sketch.count == b[each].count, each
            if b[each].rms > 1e-5:
                assert sketch.rms == pytest.approx(b[each].rms, rel=1e-3), each


def test_a_model_that_fills_a_cache_while_it_trains_compiles_whole(watching):
    """As models of transformers do by default."""
    found, memory = steps_of("llama", whole, watching, use_cache=True)
    assert found == Counts(graphs=1, breaks=0, recompiles=0, frames=1)
    assert "model.layers.1.self_attn.k_proj/output/0" in memory.at(1)
