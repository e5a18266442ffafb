"""Taps that are gathered: the same records, fewer operators, and nothing read after it changed."""

import gc
import operator
import sys
import threading
from importlib import resources
from typing import NamedTuple
from weakref import ref

import pytest
import torch
from torch import nn
from torch.fx import Graph

import sonde
from sonde.capture.native import MOST_TOGETHER, Book, Bunch, Place, Point, Row
from sonde.capture.torch.capture import Capture
from sonde.capture.torch.compile import graph_passes
from sonde.capture.torch.compile.graph_passes import TapIdentity, gather
from sonde.capture.torch.compile.hooks import TRACES_HOOKS
from sonde.capture.torch.compile.operators import TAP, TAPS
from sonde.capture.torch.passes import native_path
from sonde.kernels import cuda

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.skipif(
        not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        reason="this torch does not tell C what tensors are, so there is no native path",
    ),
]


# -- the graph -----------------------------------------------------------------------------------


class Sketchbook:
    """A graph of sums of its input, each with a tap."""

    def __init__(self, input_values=1000):
        self.graph = Graph()
        self.x = self.graph.placeholder("x")
        self.x.meta["val"] = torch.empty(input_values)

    def compute(self, values=1, dtype=torch.float32, device="cpu"):
        made = self.graph.call_function(operator.add, (self.x, 1))
        made.meta["val"] = torch.empty(values, dtype=dtype, device=device)
        return made

    def tap(self, key, x=None, **options):
        x = x or self.compute(**options)
        self.graph.call_function(TAP, (x, key))
        return x

    def gathered(self, *outputs, who=lambda _key: TapIdentity("mine", True), grads=True):
        self.graph.output(outputs)
        gather(self.graph, TAP, TAPS, who, grads=grads)
        self.graph.lint()
        found = []
        for node in self.graph.nodes:
            if node.target is TAPS:
                assert len(node.args[0]) == len(node.args[1])
                found.append(node.args[1])
            elif node.target is TAP:
                found.append(node.args[1])
        return found


def test_taps_become_one_where_the_last_of_them_was():
    book = Sketchbook()
    sources = [book.tap(key) for key in range(3)]
    after = book.compute()
    assert book.gathered() == [[0, 1, 2]]
    made = next(n for n in book.graph.nodes if n.target is TAPS)
    assert made.args[0] == sources
    assert made.next is after


def test_as_many_as_one_launch_takes():
    book = Sketchbook(10_000)
    for key in range(MOST_TOGETHER + 3):
        book.tap(key)
    first, second = book.gathered()
    assert first == list(range(MOST_TOGETHER))
    assert second == list(range(MOST_TOGETHER, MOST_TOGETHER + 3))


def test_a_single_tap_stays_as_it_is():
    book = Sketchbook()
    book.tap(7)
    assert book.gathered() == [7]


def test_nothing_is_kept_across_a_write():
    book = Sketchbook()
    x = book.tap(0)
    book.tap(1)
    book.graph.call_function(torch.ops.aten.add_.Tensor, (x, x))
    book.tap(2)
    book.tap(3)
    assert book.gathered() == [[0, 1], [2, 3]]


def test_little_is_kept_for_the_sake_of_taps():
    book = Sketchbook(1000)  # so 20 values may be
    for key in range(6):
        book.tap(key, values=8)
    assert book.gathered() == [[0, 1], [2, 3], [4, 5]]


def test_what_is_kept_anyway_costs_nothing():
    book = Sketchbook(1000)
    returned = [book.tap(key, values=500) for key in range(4)]
    book.tap(4, x=book.x)
    assert book.gathered(*returned) == [[0, 1, 2, 3, 4]]


def test_gradients_and_others_are_gathered_apart():
    book = Sketchbook()
    for key in range(4):
        book.tap(key)
    assert book.gathered(who=lambda key: TapIdentity("mine", key < 2)) == [[0, 1], 2, 3]


def test_what_modules_return_counts_as_what_training_keeps():
    book = Sketchbook(0)
    for key in range(4):
        book.tap(key, values=100)
    for key in range(4, 8):
        book.tap(key, values=4)
    found = book.gathered(who=lambda key: TapIdentity("mine", key >= 4))
    assert found == [0, 1, 2, 3, [4, 5], [6, 7]]  # 8 values may be


def test_sizes_that_are_not_known_are_left_alone():
    book = Sketchbook()
    x = book.compute()
    del x.meta["val"]
    book.tap(0)
    book.tap(1, x=x)
    book.tap(2)
    assert book.gathered() == [1, [0, 2]]


@pytest.mark.parametrize("odd", [{"dtype": torch.float64}, {"dtype": torch.int64}])
def test_formats_that_are_not_read_together_are_left_alone(odd):
    book = Sketchbook()
    book.tap(0)
    book.tap(1, **odd)
    book.tap(2, dtype=torch.bfloat16)
    assert book.gathered() == [1, [0, 2]]


def test_owners_and_devices_are_kept_apart():
    book = Sketchbook()
    for key in range(6):
        book.tap(key)
    for key in (6, 7):
        book.tap(key, device="meta")
    book.tap(8)
    found = book.gathered(who=lambda key: None if key == 8 else TapIdentity(f"{key % 2}", True))
    assert sorted(map(str, found)) == ["6", "7", "8", "[0, 2, 4]", "[1, 3, 5]"]


# -- compiled code ---------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 64 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(64 * width, width)

    def forward(self, x):
        y = self.down(self.act(self.up(self.norm(x))))
        y += x  # what a hook has seen is not there any more
        return y.relu_()


STEPS = 5


def _train(memory, folder, model, call):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = {"every": 1, "log": "all", "hyperparameters": False, "final_parameters": False}
    watch = sonde.watch(model, optimizer, dir=folder, sinks=[memory], **options)
    data = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            out = call(torch.randn(64, 8, generator=data))
        out.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    assert memory.counted("failed") == {}
    return memory


def _model():
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(3)))


def _recorded(memory, folder):
    torch._dynamo.reset()
    model = _model()
    # Code that was generated before would do, but what is done to it on the way is looked at here.
    with torch._inductor.config.patch(force_disable_caches=True):
        return _train(memory, folder, model, torch.compile(model, fullgraph=True))


class Gathered(NamedTuple):
    """A compiled training: what was recorded, how many taps each operator has (by whether they are
    of gradients), and the step of each tensor that did not take the native path."""

    memory: object
    several: dict[bool, list[int]]
    slow: list[int]


@pytest.fixture(scope="module")
def gathered(tmp_path_factory, new_memory):
    """Code is generated once for all tests that look at it: that takes seconds."""
    several, slow, original = {True: [], False: []}, [], Capture.compiled

    def gathers(graph, *args, grads):
        gather(graph, *args, grads=grads)
        several[grads] += [len(n.args[1]) for n in graph.nodes if n.target is TAPS]

    def counted(self, key, x):
        slow.append(self.step)
        return original(self, key, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_passes, "gather", gathers)
        patch.setattr(Capture, "compiled", counted)
        memory = _recorded(new_memory(), tmp_path_factory.mktemp("gathered"))
    return Gathered(memory, several, slow)


def test_what_is_recorded_is_the_same_gathered_and_not(gathered, memory, tmp_path, monkeypatch):
    assert max(gathered.several[False]) >= 4
    assert max(gathered.several[True], default=0) >= 2 or not TRACES_HOOKS
    monkeypatch.setattr(graph_passes, "gather", lambda *_, grads: None)
    apart = _recorded(memory, tmp_path)
    assert gathered.memory.steps == apart.steps
    for step in range(STEPS):
        found, expected = gathered.memory.at(step), apart.at(step)
        assert set(found) == set(expected)
        for name, sketch in expected.items():
            assert found[name] == sketch, (step, name)


def test_it_is_what_eager_mode_records(gathered, memory, tmp_path):
    model = _model()
    eager = _train(memory, tmp_path, model, model)
    for step in range(3):
        found, expected = gathered.memory.at(step), eager.at(step)
        assert set(found) == set(expected) or not TRACES_HOOKS
        for name in found:
            sketch = expected[name]
            assert found[name].count == sketch.count, name
            if sketch.rms > 1e-3:
                assert found[name].rms == pytest.approx(sketch.rms, rel=0.05), (step, name)


def test_after_the_first_steps_they_take_the_native_path_together(gathered):
    slow = gathered.slow
    # But for the first tap, with which a pass begins, and for the last module's output and its
    # gradient, which are seen again outside.
    assert max(slow.count(step) for step in (2, 3, 4)) <= 3
    assert slow.count(0) >= 15
    assert set(gathered.memory.at(4)) == set(gathered.memory.at(1))


# -- the objects -----------------------------------------------------------------------------------


def _native():
    model = nn.Linear(1, 1)
    return native_path(threading.RLock(), ref(model))


def _point(owner, book, *rows, is_gradient=False):
    places = tuple(Place(book, row, i, 0) for i, row in enumerate(rows))
    return Point(owner, places, is_gradient)


def test_points_and_bunches_leave_nothing_behind():
    owner, book = _native(), Book()
    rows = [Row(i, 0) for i in range(4)]
    watched = [owner, book, *rows]
    before = [sys.getrefcount(x) for x in watched]
    bunch = Bunch((_point(owner, book, *rows[:3]), _point(owner, book, rows[3])))
    assert [sys.getrefcount(x) for x in watched] != before
    del bunch
    gc.collect()
    assert [sys.getrefcount(x) for x in watched] == before


def test_points_that_do_not_go_together_are_refused():
    owner, other, book = _native(), _native(), Book()
    row, another = Row(0, 0), Row(1, 0)
    first = _point(owner, book, row)
    with pytest.raises(ValueError, match="1 to 16 points"):
        Bunch(())
    with pytest.raises(ValueError, match="1 to 16 points"):
        Bunch((first,) * (MOST_TOGETHER + 1))
    with pytest.raises(ValueError, match="same row"):
        Bunch((first, _point(owner, book, row)))
    with pytest.raises(TypeError, match="of one Native"):
        Bunch((first, _point(other, book, another)))
    with pytest.raises(TypeError, match="of one Native"):
        Bunch((first, _point(owner, book, another, is_gradient=True)))
    with pytest.raises(TypeError, match="of one Native"):
        Bunch((first, object()))


def test_all_that_gathers_agrees_on_how_many():
    source = (resources.files("sonde.kernels") / "cuda" / "sketch.cu").read_text()
    assert f"SEVERAL = {MOST_TOGETHER}, PIECE = {cuda._PIECE} " in source
    assert cuda.SEVERAL == MOST_TOGETHER
    assert not Bunch.__new__(Bunch).add([])
