"""Where data comes from: views, writes in place, tensors that nobody passed, odd modules."""

from __future__ import annotations

import pytest
import torch
from reading import calls, flow
from torch import nn

X = torch.arange(12.0).reshape(3, 4) / 10


class Lambda(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, *args):
        return self.act(*args)


class Model(nn.Module):
    """Two linears, and whatever a test does with them."""

    def __init__(self, act, **more):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        for name, module in more.items():
            setattr(self, name, module)
        self.act = act

    def forward(self, x):
        return self.act(self, x)


def test_slices_of_a_buffer_are_told_apart(graph_of):
    def act(m, x):
        buffer = torch.zeros(3, 2, 4)
        buffer[:, 0] = m.a(x)
        buffer[:, 1] = m.b(x)
        return buffer[:, 0] * 1, buffer[:, 1], buffer.sum()

    assert flow(graph_of(Model(act), X)) == {
        "./input/0 -> a",
        "./input/0 -> b",
        "a -> ./output/0",
        "b -> ./output/1",
        "a -> ./output/2",
        "b -> ./output/2",
    }


def test_chunks_views_and_reshapes_carry_their_origin(graph_of):
    def act(m, x):
        left, right = m.a(x).chunk(2, dim=-1)
        joined = torch.cat([right, left], -1).view(2, 6).t().reshape(3, 4)
        return m.b(joined.contiguous().unsqueeze(0).expand(2, 3, 4)[0])

    assert flow(graph_of(Model(act), X)) == {
        "./input/0 -> a",
        "a -> b",
        "b -> ./output/0",
    }


def test_writing_into_a_view_changes_the_base(graph_of):
    def act(m, x):
        y = m.a(x)
        view = y.t()
        view.mul_(m.b(x).t())
        return y

    assert flow(graph_of(Model(act), X)) == {
        "./input/0 -> a",
        "./input/0 -> b",
        "a -> ./output/0",
        "b -> ./output/0",
    }


def test_overwriting_forgets_what_was_there(graph_of):
    def act(m, x):
        y = m.a(x)
        y.detach().copy_(m.b(x))
        return y

    assert "a -> ./output/0" not in flow(graph_of(Model(act), X))


def test_an_input_changed_in_place_by_a_module_comes_from_it(graph_of):
    def act(m, x):
        y = m.a(x)
        m.inner(y)
        return m.b(y)

    graph = graph_of(Model(act, inner=Lambda(lambda x: (x.add_(1), None)[1])), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> inner",
        "inner -> b",
        "b -> ./output/0",
    }


@pytest.mark.parametrize("inner", [nn.Identity(), nn.Dropout(0.0), nn.Flatten(1), nn.Dropout(0.5)])
def test_modules_that_return_their_input_or_a_view_are_on_the_way(graph_of, inner):
    model = Model(lambda m, x: m.b(m.inner(m.a(x))), inner=inner)
    graph = graph_of(model.eval(), X, phases=["eval"])
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> inner",
        "inner -> b",
        "b -> ./output/0",
    }


def test_a_view_by_a_module_does_not_take_the_place_of_its_input(graph_of):
    def act(m, x):
        y = m.a(x)
        return m.b(m.inner(y)) + y

    graph = graph_of(Model(act, inner=Lambda(lambda x: x.view(3, 2, 2).view(3, 4))), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> inner",
        "inner -> b",
        "b -> ./output/0",
        "a -> ./output/0",
    }


class KeepsIdentity(nn.Module):
    """Passes its input through an identity, and does not return it."""

    def __init__(self):
        super().__init__()
        self.same, self.a = nn.Identity(), nn.Linear(4, 4)

    def forward(self, x):
        return self.a(self.same(x))


def test_an_identity_inside_of_a_block_does_not_claim_the_blocks_input(graph_of):
    def act(m, x):
        y = m.a(x)
        return y + m.inner(y)

    graph = graph_of(Model(act, inner=KeepsIdentity()), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> inner",
        "inner -> ./output/0",
        "a -> ./output/0",
    }
    assert flow(graph, "inner") == {
        "inner/input/0 -> inner.same",
        "inner.same -> inner.a",
        "inner.a -> inner/output/0",
    }


def test_a_tensor_that_nobody_passed_enters_by_a_port_of_its_own(graph_of):
    held = {}

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.deep = Lambda(lambda x: x + held["y"])

        def forward(self, x):
            return self.deep(x)

    def act(m, x):
        held["y"] = m.a(x)
        return m.inner(m.b(x))

    graph = graph_of(Model(act, inner=Reads()), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "./input/0 -> b",
        "a -> inner",
        "b -> inner",
        "inner -> ./output/0",
    }
    assert flow(graph, "inner") == {
        "inner/input/0 -> inner.deep",
        "inner/input/* -> inner.deep",
        "inner.deep -> inner/output/0",
    }


def test_a_tensor_kept_by_a_module_and_used_later_comes_from_it(graph_of):
    class Keeps(nn.Module):
        def forward(self, x):
            self.kept = x * 2
            return x + 1

    def act(m, x):
        m.a(m.keeps(x))
        return m.b(m.keeps.kept)

    graph = graph_of(Model(act, keeps=Keeps()), X)
    assert flow(graph) == {
        "./input/0 -> keeps",
        "keeps -> a",
        "keeps -> b",
        "b -> ./output/0",
    }


def test_parameters_and_buffers_carry_nothing(graph_of):
    def act(m, x):
        return m.norm(m.b(m.norm(m.a(x))))

    graph = graph_of(Model(act, norm=nn.BatchNorm1d(4)), X)
    assert flow(graph) == {
        "./input/0 -> a",
        "a -> norm",
        "norm -> b",
        "b -> norm#1",
        "norm#1 -> ./output/0",
    }


def test_a_module_that_returns_a_parameter_or_a_constant_is_a_source(graph_of):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self):
            return self.weight

    def act(m, x):
        return m.a(x) * m.holder() + m.constant()

    model = Model(act, holder=Holder(), constant=Lambda(lambda: torch.arange(4.0)))
    assert flow(graph_of(model, X)) == {
        "./input/0 -> a",
        "a -> ./output/0",
        "holder -> ./output/0",
        "constant -> ./output/0",
    }


def test_the_same_tensor_passed_twice(graph_of):
    def act(m, x):
        y = m.a(x)
        return m.inner(y, y)

    graph = graph_of(Model(act, inner=Lambda(lambda p, q: p * q)), X)
    assert flow(graph) == {"./input/0 -> a", "a -> inner", "inner -> ./output/0"}


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_graph_is_the_same(graph_of, context):
    def call(m, _step):
        with context():
            m(X)

    model = Model(lambda m, x: m.b(m.a(x).relu_()) + x)
    assert flow(graph_of(model, call=call, phases=("train", "no_grad"))) == {
        "./input/0 -> a",
        "a -> b",
        "b -> ./output/0",
        "./input/0 -> ./output/0",
    }


def test_autocast_and_half_precision(graph_of):
    def call(m, _step):
        with torch.autocast("cpu", torch.bfloat16):
            m(X)

    model = Model(lambda m, x: m.b(torch.softmax(m.a(x), -1)))
    assert flow(graph_of(model, call=call)) == {
        "./input/0 -> a",
        "a -> b",
        "b -> ./output/0",
    }


def test_transformations_inside_of_a_model(graph_of):
    def act(m, x):
        y = torch.vmap(lambda row: row * row.sum())(m.a(x))
        gradient = torch.func.grad(lambda z: (z**2).sum())(y.detach())
        return m.b(gradient)

    graph = graph_of(Model(act), X)
    assert calls(graph) == [".", "a", "b"]
    assert {"./input/0 -> a", "b -> ./output/0"} <= flow(graph)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_parts_are_seen_once(graph_of, reentrant):
    from torch.utils.checkpoint import checkpoint

    model = Model(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=reentrant)))

    def call(m, _step):
        m(X.clone().requires_grad_()).sum().backward()

    graph = graph_of(model, call=call, steps=2)
    assert calls(graph) == [".", "a", "b"]
    assert flow(graph) == {"./input/0 -> a", "a -> b", "b -> ./output/0"}
    assert graph.passes == 2


def test_custom_functions_and_scalars(graph_of):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def act(m, x):
        y = Double.apply(m.a(x))
        return m.b(y * float(y.sum().item()))

    assert flow(graph_of(Model(act), X)) == {
        "./input/0 -> a",
        "a -> b",
        "b -> ./output/0",
    }


def test_a_loop_over_a_cell_is_a_chain_of_its_calls(graph_of):
    def act(m, x):
        h = torch.zeros(1, 4)
        for t in range(3):
            h = m.cell(x[t : t + 1], h)
        return h

    graph = graph_of(Model(act, cell=nn.GRUCell(4, 4)), X)
    assert flow(graph) == {
        "./input/0 -> cell",
        "./input/0 -> cell#1",
        "./input/0 -> cell#2",
        "cell -> cell#1",
        "cell#1 -> cell#2",
        "cell#2 -> ./output/0",
    }


def test_more_calls_than_can_be_told_apart_are_drawn_as_one(graph_of):
    def act(m, x):
        for _ in range(9):
            x = m.a(x)
        return x

    graph = graph_of(Model(act), X, max_calls=3)
    assert calls(graph) == [".", "a", "a#1", "a#2"]
    assert "a#2 -> ./output/0" in flow(graph)
    assert "drawn as one" in graph.note
