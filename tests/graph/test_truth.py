"""What flows where: for each model the graph is exactly this."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from reading import calls, flow
from torch import nn

import sonde

X = torch.arange(12.0).reshape(3, 4) / 10


def linear() -> nn.Linear:
    return nn.Linear(4, 4)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_sequence_of_n_is_a_chain_of_n(graph_of, n):
    graph = graph_of(nn.Sequential(*(linear() for _ in range(n))), X)
    chain = ["./input/0", *map(str, range(n)), "./output/0"]
    assert flow(graph) == {f"{a} -> {b}" for a, b in pairwise(chain)}
    assert [(x.id, x.kind, x.parent) for x in graph.nodes] == [
        (".", "module", ""),
        ("./input/0", "input", "."),
        *((str(i), "module", ".") for i in range(n)),
        ("./output/0", "output", "."),
    ]
    assert graph.passes == 1
    assert graph.note == ""


def test_a_single_module_is_a_graph_of_one(graph_of):
    graph = graph_of(linear(), X)
    assert calls(graph) == ["."]
    assert flow(graph) == {"./input/0 -> ./output/0"}


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, x):
        return self.a(self.b(self.a(x)))


def test_each_call_of_a_reused_module_is_a_node(graph_of):
    graph = graph_of(Reused(), X)
    assert calls(graph) == [".", "a", "b", "a#1"]
    assert flow(graph) == {"./input/0 -> a", "a -> b", "b -> a#1", "a#1 -> ./output/0"}


class NestedReuse(nn.Module):
    """A block that calls its linear twice, called twice; the linear is also called directly."""

    def __init__(self):
        super().__init__()
        self.block = Reused()

    def forward(self, x):
        return self.block(self.block.a(self.block(x)))


def test_nested_reuse_keeps_calls_and_levels_apart(graph_of):
    graph = graph_of(NestedReuse(), X)
    assert calls(graph, "") == ["block", "block.a#2", "block#1"]
    assert flow(graph) == {
        "./input/0 -> block",
        "block -> block.a#2",
        "block.a#2 -> block#1",
        "block#1 -> ./output/0",
    }
    assert flow(graph, "block") == {
        "block/input/0 -> block.a",
        "block.a -> block.b",
        "block.b -> block.a#1",
        "block.a#1 -> block/output/0",
    }
    assert flow(graph, "block#1") == {
        "block#1/input/0 -> block.a#3",
        "block.a#3 -> block.b#1",
        "block.b#1 -> block.a#4",
        "block.a#4 -> block#1/output/0",
    }


class Many(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = linear(), linear(), linear()

    def forward(self, x, y, unused=None):
        left, right = self.a(x), self.b(y)
        return left, self.c(left * right), None, (y, 3)


def test_several_inputs_and_outputs_have_a_port_each(graph_of):
    graph = graph_of(Many(), X, X + 1)
    assert flow(graph) == {
        "./input/0 -> a",
        "./input/1 -> b",
        "a -> c",
        "b -> c",
        "a -> ./output/0",
        "c -> ./output/1",
        "./input/1 -> ./output/3.0",
    }


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.act = linear(), linear(), nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.act(self.a(x))
        y += x
        y[:, 0] += self.b(x)[:, 0]
        return y


def test_a_residual_in_place_joins_both_ways(graph_of):
    graph = graph_of(Residual(), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> act",
        "act -> ./output/0",
        "./input/0 -> ./output/0",
        "./input/0 -> b",
        "b -> ./output/0",
    }


class KeywordsOnly(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, *, x, scale):
        return self.inner(mask=scale, values=x)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = linear()

    def forward(self, *, values, mask):
        return self.a(values) * mask


def test_keyword_arguments_are_ports_by_name(graph_of):
    graph = graph_of(KeywordsOnly(), call=lambda m, _: m(x=X, scale=X + 1))
    assert flow(graph) == {
        "./input/x -> inner",
        "./input/scale -> inner",
        "inner -> ./output/0",
    }
    assert flow(graph, "inner") == {
        "inner/input/values -> inner.a",
        "inner.a -> inner/output/0",
        "inner/input/mask -> inner/output/0",
    }


@dataclass
class Answer:
    first: torch.Tensor
    rest: dict


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, batch):
        return Answer(self.a(batch["x"]), {"b": self.b(batch["more"][1]), "none": None})


def test_dicts_and_dataclasses_are_followed(graph_of):
    graph = graph_of(Structured(), {"x": X, "more": [None, X + 1]})
    assert flow(graph) == {
        "./input/0.x -> a",
        "./input/0.more.1 -> b",
        "a -> ./output/first",
        "b -> ./output/rest.b",
    }


class NotDifferentiable(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.table, self.b = linear(), nn.Embedding(4, 4), linear()

    def forward(self, x):
        codes = self.a(x).argmax(-1)
        return self.b(self.table(codes).detach().round())


def test_what_has_no_gradient_flows_as_well(graph_of):
    graph = graph_of(NotDifferentiable(), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> table",
        "table -> b",
        "b -> ./output/0",
    }


class Alternating(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = linear(), linear(), linear()

    def forward(self, x, which):
        return self.head(self.a(x) if which % 2 else self.b(x))


def test_a_branch_that_alternates_is_a_union_with_counts(graph_of):
    graph = graph_of(Alternating(), steps=7, call=lambda m, step: m(X, step))
    counts = {f"{e.source} -> {e.target}": e.count for e in graph.edges}
    assert counts == {
        "./input/0 -> b": 4,
        "b -> head": 4,
        "./input/0 -> a": 3,
        "a -> head": 3,
        "head -> ./output/0": 7,
    }
    assert graph.passes == 7
    assert {n.id: n.count for n in graph.nodes if n.kind == "module"} == {
        ".": 7,
        "a": 3,
        "b": 4,
        "head": 7,
    }


class Recursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = linear()

    def forward(self, x, depth=2):
        x = self.a(x)
        return self(x, depth - 1) if depth else x


class HoldsRecursive(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Recursive()

    def forward(self, x):
        return self.inner(x) + x


def test_recursion_goes_down_a_level_each_time(graph_of):
    graph = graph_of(HoldsRecursive(), X)
    assert flow(graph) == {
        "./input/0 -> inner",
        "inner -> ./output/0",
        "./input/0 -> ./output/0",
    }
    assert flow(graph, "inner") == {
        "inner/input/0 -> inner.a",
        "inner.a -> inner#1",
        "inner#1 -> inner/output/0",
    }
    assert flow(graph, "inner#1") == {
        "inner#1/input/0 -> inner.a#1",
        "inner.a#1 -> inner#2",
        "inner#2 -> inner#1/output/0",
    }
    assert flow(graph, "inner#2") == {
        "inner#2/input/0 -> inner.a#2",
        "inner.a#2 -> inner#2/output/0",
    }


def test_a_model_that_calls_itself_is_followed(graph_of):
    graph = graph_of(Recursive(), X)
    assert calls(graph) == [".", "a", ".#1", "a#1", ".#2", "a#2"]
    assert flow(graph) == {"./input/0 -> a", "a -> .#1", ".#1 -> ./output/0"}
    assert flow(graph, ".#2") == {".#2/input/0 -> a#2", "a#2 -> .#2/output/0"}


class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.encoder = nn.TransformerEncoderLayer(4, 1, 8, batch_first=True)
        self.decoder = nn.TransformerDecoderLayer(4, 1, 8, batch_first=True)
        self.head = nn.Linear(4, 7)

    def forward(self, source, target):
        memory = self.encoder(self.embed(source))
        return self.head(self.decoder(self.embed(target), memory))


def test_an_encoder_and_a_decoder(graph_of):
    tokens = torch.arange(6).reshape(2, 3)
    graph = graph_of(EncoderDecoder(), tokens, tokens + 1)
    assert flow(graph) == {
        "./input/0 -> embed",
        "embed -> encoder",
        "./input/1 -> embed#1",
        "embed#1 -> decoder",
        "encoder -> decoder",
        "decoder -> head",
        "head -> ./output/0",
    }
    inside = flow(graph, "decoder")
    assert "decoder/input/1 -> decoder.multihead_attn" in inside
    assert "decoder/input/0 -> decoder.self_attn" in inside
    assert "decoder.norm1 -> decoder.multihead_attn" in inside
    assert "decoder.norm1 -> decoder.norm2" in inside
    assert "decoder/input/1 -> decoder.self_attn" not in inside


class Attached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = linear(), linear()

    def forward(self, x):
        hidden = sonde.attach(self.a(x) * 2, "hidden")
        return self.b(hidden) + x


def test_an_attached_tensor_stands_between_its_neighbours(graph_of):
    graph = graph_of(Attached(), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> ./attach/hidden",
        "./attach/hidden -> b",
        "b -> ./output/0",
        "./input/0 -> ./output/0",
    }
    (node,) = [n for n in graph.nodes if n.kind == "attach"]
    assert (node.parent, node.outputs[0].shape) == (".", (3, 4))


def test_ports_have_the_shapes_and_dtypes_of_the_call(graph_of):
    model = nn.Sequential(nn.Conv2d(3, 5, 3), nn.Flatten())
    graph = graph_of(model, torch.zeros(2, 3, 6, 6))
    conv = graph.by_id["0"]
    assert [(p.slot, p.dtype, p.shape) for p in conv.inputs] == [("0", "float32", (2, 3, 6, 6))]
    assert [(p.slot, p.dtype, p.shape) for p in conv.outputs] == [("0", "float32", (2, 5, 4, 4))]
    assert conv.type == "Conv2d"
    module = {m.path: m for m in graph.modules}["0"]
    assert module.extra.startswith("3, 5, kernel_size=(3, 3)")
    assert module.parameters == 3 * 5 * 9 + 5


def test_a_dimension_that_varies_is_minus_one(graph_of):
    model = Alternating()
    graph = graph_of(model, steps=4, call=lambda m, step: m(X[: 2 + step % 2], step))
    assert graph.by_id["head"].inputs[0].shape == (-1, 4)
