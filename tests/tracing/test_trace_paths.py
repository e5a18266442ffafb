"""A path names exactly what it should: modules, methods, variables, and what is inside them."""

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import sonde
from sonde.tracing.paths import name_matches, parse, split, under

Pair = namedtuple("Pair", "left right")


@dataclass
class Options:
    scale: float
    names: list


class Attention(nn.Module):
    """The receiver is not called `self`."""

    def __init__(me, width):
        super().__init__()
        me.q_proj = nn.Linear(width, width)
        me.register_buffer("mask", torch.ones(width))
        me.heads = 2

    def forward(me, x, *, options=None):
        q = me.q_proj(x)
        parts = {"q": q, "inner": {"list": [q.detach(), {"n": me.heads}]}, 7: "seven"}
        pair = Pair(q + 1, "right")
        return me.combine(q * me.mask, parts, pair)

    def combine(me, q, parts, pair):
        out = q + parts["q"]
        return out


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attn = Attention(width)
        self.norm = nn.LayerNorm(width)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        first = self.attn(x)
        second = self.attn(first)
        return self.norm(second)


class Model(nn.Module):
    factor = 2.0

    def __init__(self, width=4):
        super().__init__()
        self.layers = nn.ModuleList([Block(width), Block(width)])
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.options = Options(0.5, ["a", "b"])
        self.seen = {"n": 0}

    @staticmethod
    def scaled(x, by):
        y = x * by
        return y

    @classmethod
    def doubled(cls, x):
        twice = x * cls.factor
        return twice

    def parts(self, x):
        for i in range(2):
            piece = x[i]
            yield piece

    def power(self, x, n):
        rest = x if n == 0 else self.power(x, n - 1)
        return rest * 1.0

    def forward(self, x):
        self.seen["n"] += 1
        for layer in self.layers:
            x = layer(x)
        h = self.scaled(x, 2.0) + self.doubled(x)
        pieces = list(self.parts(h))
        p = self.power(h, 2)
        return self.head(p + pieces[0])


def run(paths, steps=2, model=None, **options):
    torch.manual_seed(0)
    model = model or Model()
    with sonde.trace(model, paths, **options) as trace:
        for _ in range(steps):
            model(torch.randn(3, 4)).sum().backward()
    return trace.results


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("forward", {"forward"}),
        ("forward.x", {"forward.x"}),
        ("head.1", {"head.1"}),
        ("head.*", {"head.0", "head.1"}),
        ("head.0.forward", {"head.0.forward"}),
        ("head.0.forward.input", {"head.0.forward.input"}),
        ("layers.*", {"layers.0", "layers.1"}),
        ("layers.*.attn", {"layers.0.attn", "layers.1.attn"}),
        ("layers.*.*", {"layers.0.attn", "layers.0.norm", "layers.1.attn", "layers.1.norm"}),
        ("layers.0.attn.forward.q", {"layers.0.attn.forward.q"}),
        ("layers.*.attn.forward.q", {"layers.0.attn.forward.q", "layers.1.attn.forward.q"}),
        ("layers.0.attn.*.q", {"layers.0.attn.forward.q", "layers.0.attn.combine.q"}),
        ("layers.0.attn.combine.out", {"layers.0.attn.combine.out"}),
        (
            "layers.1.attn.forward.parts.inner.list.1.n",
            {"layers.1.attn.forward.parts.inner.list.1.n"},
        ),
        ("layers.1.attn.forward.parts.7", {"layers.1.attn.forward.parts.7"}),
        ("layers.1.attn.forward.pair.right", {"layers.1.attn.forward.pair.right"}),
        ("layers.1.attn.forward.pair.0", {"layers.1.attn.forward.pair.0"}),
        (
            "layers.0.attn.forward.parts.*",
            {f"layers.0.attn.forward.parts.{k}" for k in ("q", "inner", "7")},
        ),
        (
            "layers.0.attn.forward.parts.**",
            {
                f"layers.0.attn.forward.parts.{k}"
                for k in ("q", "inner.list.0", "inner.list.1.n", "7")
            },
        ),
        ("layers.0.attn.forward.parts.**.n", {"layers.0.attn.forward.parts.inner.list.1.n"}),
        ("layers.0.attn.forward.me.mask", {"layers.0.attn.forward.me.mask"}),
        ("layers.0.attn.forward.me.heads", {"layers.0.attn.forward.me.heads"}),
        (
            "layers.0.attn.forward.me.*",
            {f"layers.0.attn.forward.me.{k}" for k in ("mask", "heads", "training")},
        ),
        (
            "layers.0.attn.forward.*",
            {f"layers.0.attn.forward.{k}" for k in ("x", "options", "q", "parts", "pair")},
        ),
        ("layers.0.forward.self.calls", {"layers.0.forward.self.calls"}),
        ("forward.self.seen.n", {"forward.self.seen.n"}),
        ("forward.self.options.names.1", {"forward.self.options.names.1"}),
        ("forward.self.options.scale", {"forward.self.options.scale"}),
        ("forward.self.factor", {"forward.self.factor"}),
        ("forward.self.head.0.weight", {"forward.self.head.0.weight"}),
        ("forward.self.layers.*.attn.mask", {f"forward.self.layers.{i}.attn.mask" for i in (0, 1)}),
        ("forward.x.shape", {"forward.x.shape"}),
        ("forward.x.0", {"forward.x.0"}),
        ("forward.x.*", {"forward.x.0", "forward.x.1", "forward.x.2"}),
        ("forward.pieces.-1", {"forward.pieces.-1"}),
        ("scaled.y", {"scaled.y"}),
        ("scaled", {"scaled"}),
        ("doubled.twice", {"doubled.twice"}),
        ("doubled.cls.factor", {"doubled.cls.factor"}),
        ("parts.piece", {"parts.piece"}),
        ("parts", {"parts"}),
        ("power.rest", {"power.rest"}),
        ("power", {"power"}),
        ("forward.return.0", {"forward.return.0"}),
        ("**.q", {f"layers.{i}.attn.{m}.q" for i in (0, 1) for m in ("forward", "combine")}),
        ("**.attn", {"layers.0.attn", "layers.1.attn"}),
        ("layers.**.forward.q", {"layers.0.attn.forward.q", "layers.1.attn.forward.q"}),
        ("lay*.0.att*", {"layers.0.attn"}),
        ("forward.h@grad", {"forward.h@grad"}),
        ("layers.0.attn.forward.parts.q@grad", {"layers.0.attn.forward.parts.q@grad"}),
        ("layers.0@grad", {"layers.0@grad"}),
        ("forward.self.head.0.weight@grad", {"forward.self.head.0.weight@grad"}),
        (
            "**.forward",
            {"forward"}
            | {
                f"layers.{i}{m}.forward"
                for i in (0, 1)
                for m in ("", ".attn", ".attn.q_proj", ".norm")
            }
            | {"head.forward", "head.0.forward", "head.1.forward"},
        ),
    ],
)
def test_a_path_gives_exactly_these_names(path, names):
    assert set(run([path])) == names


def test_two_stars_alone_are_the_outputs_of_all_modules():
    found = set(run(["**"]))
    modules = {name for name, _ in Model().named_modules() if name and name != "layers"}
    assert found == modules | {"forward"}


def test_two_calls_of_a_module_in_a_step_are_numbered():
    result = run(["layers.0.attn.forward.q", "layers.0.attn"])
    for name in ("layers.0.attn.forward.q", "layers.0.attn"):
        assert result[name].iterations == [0, 0, 1, 1]
        assert result[name].calls == [0, 1, 0, 1]


def test_each_yield_of_a_generator_and_each_recursive_call_is_seen():
    result = run(["parts", "parts.piece", "power.n"], steps=1)
    assert len(result["parts"]) == 2
    assert len(result["parts.piece"]) == 2
    same = zip(result["parts"].values, result["parts.piece"].values, strict=True)
    assert all(torch.equal(a, b) for a, b in same)
    # The deepest call is entered last; on the way back no `n` is assigned again.
    assert result["power.n"].values == [2, 1, 0]
    assert result["power.n"].calls == [0, 1, 2]


def test_a_static_method_belongs_to_the_module_that_calls_it():
    class Inner(nn.Module):
        @staticmethod
        def twice(x):
            y = x * 2
            return y

        def forward(self, x):
            return self.twice(x)

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = Inner(), Inner()

        def forward(self, x):
            return self.b(self.a(x))

    model = Outer()
    with sonde.trace(model, ["*.twice.y"]) as trace:
        model(torch.ones(1))
    assert {n: r.values[0].item() for n, r in trace.results.items()} == {
        "a.twice.y": 2.0,
        "b.twice.y": 4.0,
    }


def test_wrappers_do_not_show_in_names():
    class Wrapper(nn.Module):
        def __init__(self, module):
            super().__init__()
            self._checkpoint_wrapped_module = module

        def forward(self, x):
            return self._checkpoint_wrapped_module(x)

    model = Model()
    model.layers[0].attn = Wrapper(model.layers[0].attn)
    found = run(["layers.0.attn.forward.q", "layers.*"], model=model)
    assert set(found) == {"layers.0.attn.forward.q", "layers.0", "layers.1"}
    parallel = nn.DataParallel(Model())
    assert set(run(["layers.0.attn.forward.q", "forward"], model=parallel)) == {
        "layers.0.attn.forward.q",
        "forward",
    }


def test_decorated_partial_and_instance_methods():
    class Decorated(nn.Module):
        @torch.no_grad()
        def quiet(self, x):
            inner = x + 1
            return inner

        @property
        def bias(self):
            value = 3
            return value

        def forward(self, x):
            return self.quiet(x) + self.bias + self.extra(x)

    model = Decorated()
    model.extra = lambda x: x * 2

    def patched(self, x):
        own = self.quiet(x)
        return own + self.bias

    with sonde.trace(model, ["quiet.inner", "bias.value", "extra.x", "forward"]) as trace:
        model(torch.ones(1))
    assert set(trace.results) == {"quiet.inner", "bias.value", "extra.x", "forward"}
    model.forward = patched.__get__(model)
    with sonde.trace(model, ["forward.own"]) as trace:
        model(torch.ones(1))
    assert trace.results["forward.own"].values[0].item() == 2.0


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("forward.y", r"no variable `y` in `forward`.*nearest.*`forward\.x`"),
        ("layrs.0", r"matches no module and no method of Model.*`layers\.0`"),
        ("layers.0.attn.forwrd", r"`layers\.0\.attn\.forward`"),
        ("layers.*.attn.forward.k", r"no variable `k` in `layers\.0\.attn\.forward`"),
        (
            "layers.*.atn.forward.k",
            r"no module and no method.*nearest.*`layers\.\d\.attn\.forward`",
        ),
        ("**.atn.forward.k", r"no module and no method.*nearest.*attn\.forward`"),
        ("head.2", r"matches no module"),
        ("forward..x", "empty component"),
        ("", "empty component"),
        ("forward.x@gradient", "`@grad`"),
        (3, "must be a string"),
    ],
)
def test_a_path_that_cannot_match_is_an_error_with_the_nearest_names(path, says):
    model = Model()
    with pytest.raises(sonde.SondeError, match=says):
        sonde.trace(model, [path])
    assert not model._forward_hooks
    with pytest.raises(sonde.SondeError, match="empty"):
        sonde.trace(model, [])


def test_a_path_that_never_matched_is_a_warning_at_the_end_with_the_nearest_names():
    model = Model()
    trace = sonde.trace(model, ["layers.0.attn.forward.parts.inr", "forward.x", "doubled.x@grad"])
    model(torch.randn(3, 4))
    with pytest.warns(sonde.SondeWarning) as said:
        trace.close()
    text = " ".join(str(w.message) for w in said)
    assert "`layers.0.attn.forward.parts.inr` was never seen in 1 calls" in text
    assert "had `q`, `inner`, `7`" in text
    assert "`layers.0.attn.forward.parts.inner`" in text
    assert "`doubled.x@grad` was never seen" in text
    assert "forward.x`" not in text.replace("doubled.x", "")
    with pytest.warns(sonde.SondeWarning, match="was never seen in 0 calls"):
        sonde.trace(model, ["forward.x"]).close()


def test_an_iteration_that_never_came_is_said():
    model = nn.Sequential(nn.Identity())
    trace = sonde.trace(model, ["0"], every=lambda i: i > 5)
    model(torch.ones(1))
    with pytest.warns(sonde.SondeWarning, match="None of them was one that `every` and `phase`"):
        trace.close()


def test_names_with_dots_are_escaped():
    assert under("forward.d", "a.b", "c") == "forward.d.a\\.b.c"
    assert split("forward.d.a\\.b.c") == ("forward", "d", "a.b", "c")
    assert parse("forward.d.a\\.b").parts == ("forward", "d", "a.b")
    assert name_matches(("a", "**", "c"), ("a", "c"))
    assert name_matches(("a", "**", "c"), ("a", "x", "y", "c"))
    assert not name_matches(("a", "*", "c"), ("a", "c"))

    class Keys(nn.Module):
        def forward(self, x):
            d = {"a.b": x}
            return d["a.b"]

    model = Keys()
    for path in ("forward.d.a\\.b", "forward.d.*"):
        with sonde.trace(model, [path]) as trace:
            model(torch.ones(1))
        assert set(trace.results) == {"forward.d.a\\.b"}
