"""Loops, branches, recomputation, batches and devices: what a step is made of comes out right."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import sonde
import sonde.jax
from sonde.kernels import reference


def same(found, values):
    expected = reference.sketch(np.asarray(values))
    assert (found.count, found.min, found.max) == (expected.count, expected.min, expected.max)
    np.testing.assert_array_equal(found.bins, expected.bins)
    return True


@pytest.fixture
def watched(tmp_path, memory):
    """`record(function, *args)`: what one recorded call of a function leaves at its sites."""

    def record(function, *args, model=None, **options):
        options = {"every": 1, "log": "all", "final_parameters": False, **options}
        how = {"dir": tmp_path, "sinks": [memory], "strict": True}
        with sonde.jax.watch(model or function, **how, **options) as watch:
            result = watch.wrap(function)(*args)
        return result, memory.at(0)

    return record


def test_each_turn_of_a_scan_has_a_site_with_its_gradient(watched):
    def loss(x):
        def turn(x, k):
            return sonde.jax.attach(x * k, "h"), None

        return jax.lax.scan(turn, x, jnp.array([2.0, 3.0, 5.0]))[0].sum()

    _, found = watched(jax.jit(jax.grad(loss)), jnp.arange(1.0, 4.0))
    for i, (value, gradient) in enumerate([(2, 15), (6, 5), (30, 1)]):
        same(found[f"./attach/h.{i}"], value * np.arange(1.0, 4.0, dtype=np.float32))
        same(found[f"./attach_grad/h.{i}"], np.full(3, gradient, np.float32))
    assert len(found) == 6


def test_what_remat_computes_again_counts_once(watched):
    @jax.checkpoint
    def block(x):
        return jnp.sin(sonde.jax.attach(jnp.sin(x), "inside"))

    x = jnp.linspace(0.0, 1.0, 7)
    _, found = watched(jax.jit(jax.grad(lambda x: block(x).sum())), x)
    same(found["./attach/inside"], jnp.sin(x))
    assert found["./attach_grad/inside"].count == 7


def test_a_batch_under_vmap_is_one_array(watched):
    def one(x):
        return (sonde.jax.attach(x * 2, "h") ** 2).sum()

    x = jnp.arange(6.0).reshape(3, 2)
    _, found = watched(jax.jit(jax.vmap(jax.grad(one))), x)
    same(found["./attach/h"], x * 2)
    same(found["./attach_grad/h"], x * 4)


@pytest.mark.parametrize("flag", [True, False])
def test_only_the_branch_that_was_taken_has_values(watched, flag):
    def choose(flag, x):
        attach = sonde.jax.attach
        return jax.lax.cond(
            flag, lambda x: attach(x + 1, "then"), lambda x: attach(x - 1, "else"), x
        )

    _, found = watched(jax.jit(choose), flag, jnp.ones(3))
    assert found["./attach/then"].count == (3 if flag else 0)
    assert found["./attach/else"].count == (0 if flag else 3)


def test_all_turns_of_a_while_loop_are_one_site(watched, memory):
    def count(x):
        return jax.lax.while_loop(lambda x: x.sum() < 10, lambda x: sonde.jax.attach(x + 1, "h"), x)

    result, found = watched(jax.jit(count), jnp.zeros(2))
    assert result.tolist() == [5.0, 5.0]
    turns = np.repeat(np.arange(1.0, 6.0, dtype=np.float32), 2)
    same(found["./attach/h"], turns)
    expected = reference.sketch(turns)
    assert (found["./attach/h"].sum_sq, found["./attach/h"].zeros) == (expected.sum_sq, 0)
    assert memory.events == []


def test_a_loop_that_makes_no_turn_leaves_nothing(watched):
    def count(x):
        return jax.lax.while_loop(lambda x: x.sum() < 0, lambda x: sonde.jax.attach(x + 1, "h"), x)

    _, found = watched(jax.jit(count), jnp.zeros(2))
    assert all(sketch.count == 0 for sketch in found.values())


def test_a_loop_of_fixed_length_inside_a_while_loop_keeps_its_turns(watched):
    def count(x):
        def turn(i, x):
            return sonde.jax.attach(x + 1, "h")

        return jax.lax.while_loop(
            lambda x: x.sum() < 4, lambda x: jax.lax.fori_loop(0, 2, turn, x), x
        )

    _, found = watched(jax.jit(jax.jit(count)), jnp.zeros(()))
    same(found["./attach/h.0"], np.float32([1, 3]))
    same(found["./attach/h.1"], np.float32([2, 4]))


def test_each_device_of_a_shard_map_counts_what_it_has(watched):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec("data"), PartitionSpec(None, "model")),
        out_specs=PartitionSpec("data", "model"),
    )
    def product(x, w):
        attach = sonde.jax.attach
        return attach(attach(x, "x") @ attach(w, "w"), "y")

    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    w = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    y, found = watched(jax.jit(product), jnp.asarray(x), jnp.asarray(w))
    np.testing.assert_allclose(y, x @ w, rtol=1e-5)
    same(found["./attach/x"], x)
    same(found["./attach/w"], w)
    same(found["./attach/y"], y)


def test_gradients_inside_a_shard_map_are_those_of_the_whole(watched):
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))

    @partial(
        jax.shard_map,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec("data")),
        out_specs=PartitionSpec(),
    )
    def loss(w, x):
        return jax.lax.psum((sonde.jax.attach(x * w, "y") ** 2).sum(), "data")

    x = np.arange(16.0, dtype=np.float32)
    w = jnp.float32(3.0)
    grad, found = watched(jax.jit(jax.grad(loss)), w, jnp.asarray(x))
    assert float(grad) == pytest.approx(float(2 * 3 * (x**2).sum()))
    same(found["./attach/y"], 3 * x)
    same(found["./attach_grad/y"], 6 * x)


def test_a_step_of_pmap_is_recorded(watched):
    def step(x):
        y = sonde.jax.attach(x * 2, "y")
        return jax.lax.psum(y, "i")

    x = np.arange(16.0, dtype=np.float32).reshape(8, 2)
    result, found = watched(jax.pmap(step, axis_name="i"), x)
    np.testing.assert_array_equal(result, np.broadcast_to((2 * x).sum(0), (8, 2)))
    same(found["./attach/y"], 2 * x)


def test_a_shard_map_over_some_devices_is_left_out_with_a_reason(watched, memory):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    spec = PartitionSpec("data")

    @partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec, axis_names={"data"})
    def double(x):
        return sonde.jax.attach(x * 2, "y")

    result, found = watched(jax.jit(double), jnp.arange(8.0))
    assert result.tolist() == [2 * i for i in range(8)]
    assert found == {}
    ((where, text),) = memory.counted("skipped")
    assert where == "shard_map"
    assert "Use all axes of the mesh" in text


def test_a_function_that_is_called_twice_has_two_calls(watched):
    class Twice(linen.Module):
        @linen.compact
        def __call__(self, x):
            half = linen.Dense(3, name="half")
            return half(half(x))

    model, x = Twice(), jnp.ones((2, 3))
    params = model.init(jax.random.key(0), x)
    loss = jax.jit(lambda p: model.apply(p, x).sum())
    _, found = watched(jax.jit(jax.grad(loss)), params, model=model)
    names = [n for n in found if "output" in n]
    assert sorted(n for n in names if n.startswith("half")) == [
        *("half#1/output/0", "half#1/output_grad/0"),
        *("half/output/0", "half/output_grad/0"),
    ]
    same(found["half#1/output/0"], model.apply(params, x))


def stacked_model(n):
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.fc = nnx.Linear(4, 4, rngs=rngs)

        def __call__(self, x):
            return jnp.tanh(self.fc(x))

    class Model(nnx.Module):
        def __init__(self, rngs):
            make = nnx.split_rngs(splits=n)(nnx.vmap(Layer))
            self.layers = make(rngs)

        def __call__(self, x):
            run = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return run(x, self.layers)

    return Model(nnx.Rngs(0))


def test_stacked_layers_come_apart(watched):
    model = stacked_model(3)
    x = jnp.linspace(-1.0, 1.0, 8).reshape(2, 4)
    kernel = np.asarray(model.layers.fc.kernel[...])
    bias = np.asarray(model.layers.fc.bias[...])
    step = nnx.jit(nnx.grad(lambda m: (m(x) ** 2).sum()))
    _, found = watched(step, model, model=model)
    names = {n for n in found if n.startswith("layers")}
    assert names == {
        f"layers.{i}{rest}"
        for i in range(3)
        for rest in (
            *("/input/0", "/output/0", "/input_grad/0", "/output_grad/0"),
            *(".fc/input/0", ".fc/output/0", ".fc/input_grad/0", ".fc/output_grad/0"),
            *(".fc/param/kernel", ".fc/param/bias"),
        )
    }
    y = np.asarray(x)
    for i in range(3):
        same(found[f"layers.{i}.fc/param/kernel"], kernel[i])
        y = np.asarray(jnp.tanh(y @ kernel[i] + bias[i]))
        assert found[f"layers.{i}/output/0"].rms == pytest.approx(reference.sketch(y).rms, rel=1e-5)


def test_turns_that_share_their_parameters_are_one_site(watched):
    class Cell(linen.Module):
        @linen.compact
        def __call__(self, carry, x):
            carry = jnp.tanh(linen.Dense(3, name="fc")(carry + x))
            return carry, None

    class Recurrent(linen.Module):
        @linen.compact
        def __call__(self, xs):
            run = linen.scan(Cell, variable_broadcast="params", split_rngs={"params": False})
            return run(name="cell")(jnp.zeros(3), xs)[0]

    model, xs = Recurrent(), jnp.ones((5, 3))
    params = model.init(jax.random.key(0), xs)
    _, found = watched(jax.jit(lambda p: model.apply(p, xs)), params, model=model, log="output")
    assert found["cell.fc/output/0"].count == 15
    assert not any("cell.0" in name for name in found)


def test_donated_buffers_are_given_away_and_recorded(watched):
    @partial(jax.jit, donate_argnums=0)
    def update(x, y):
        return sonde.jax.attach(x, "before") + y

    x = jnp.arange(4.0)
    result, found = watched(update, x, jnp.ones(4))
    assert x.is_deleted()
    assert result.tolist() == [1.0, 2.0, 3.0, 4.0]
    same(found["./attach/before"], np.arange(4.0, dtype=np.float32))


def test_arguments_that_are_not_arrays_stay_what_they_are(watched):
    @partial(jax.jit, static_argnums=1, static_argnames="name")
    def scale(x, n, *, name):
        assert isinstance(n, int)
        return sonde.jax.attach(x * n, name)

    result, found = watched(partial(scale, name="three"), jnp.ones(2), 3)
    assert result.tolist() == [3.0, 3.0]
    assert found["./attach/three"].count == 2


@pytest.mark.parametrize("spec", [PartitionSpec("data"), PartitionSpec(None, "model")])
def test_a_sharded_step_has_the_statistics_of_the_whole(watched, spec):
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))
    values = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
    x = jax.device_put(values, NamedSharding(mesh, spec))
    w = jax.device_put(weights, NamedSharding(mesh, PartitionSpec(None, "model")))

    def loss(w, x):
        return (sonde.jax.attach(jnp.abs(sonde.jax.attach(x, "x") @ w), "y") ** 2).sum()

    step = jax.jit(jax.grad(loss))
    result, found = watched(step, w, x)
    same(found["./attach/x"], values)
    assert found["./attach/y"].count == 32
    expected = reference.sketch(np.abs(values @ weights))
    assert found["./attach/y"].rms == pytest.approx(expected.rms, rel=1e-5)
    assert found["./attach_grad/y"].rms == pytest.approx(2 * expected.rms, rel=1e-5)
    assert result.sharding.is_equivalent_to(step(w, x).sharding, 2)


def test_an_array_on_several_devices_can_be_recorded_by_name(tmp_path, memory):
    mesh = Mesh(np.array(jax.devices()[:8]), ("all",))
    x = jax.device_put(np.arange(16.0, dtype=np.float32), NamedSharding(mesh, PartitionSpec("all")))
    with sonde.jax.watch(len, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        watch.record("x", x)
        watch.step()
    same(memory.at(0)["./attach/x"], np.arange(16.0))


def test_the_graph_has_calls_and_what_flows_between_them(tmp_path):
    class Block(linen.Module):
        @linen.compact
        def __call__(self, x, _=None):
            return x + linen.Dense(3, name="b")(linen.Dense(3, name="a")(x)), None

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.Dense(3, name="embed")(x)
            y, _ = Block(name="block")(x)
            run = linen.scan(
                Block, variable_axes={"params": 0}, split_rngs={"params": True}, length=2
            )
            z, _ = run(name="layers")(y, None)
            return linen.Dense(1, name="head")(z + x)

    model, x = Model(), jnp.ones((2, 3))
    params = model.init(jax.random.key(0), x)
    step = jax.jit(jax.grad(lambda p: model.apply(p, x).sum()))
    with sonde.watch(model, dir=tmp_path, every=1, strict=True) as watch:
        watch.wrap(step)(params)
    graph = sonde.open(watch.path).graph
    parents = {node.id: node.parent for node in graph.nodes}
    assert parents == {
        ".": "",
        "embed": ".",
        "block": ".",
        "head": ".",
        "layers.0": ".",
        "layers.1": ".",
        **{f"{b}.{d}": b for b in ("block", "layers.0", "layers.1") for d in "ab"},
    }
    assert {(e.source, e.target) for e in graph.edges} == {
        *{("embed", "block"), ("embed", "head"), ("block", "layers.0")},
        *{("layers.0", "layers.1"), ("layers.1", "head")},
        *{(f"{b}.a", f"{b}.b") for b in ("block", "layers.0", "layers.1")},
    }
    (embed,) = (node for node in graph.nodes if node.id == "embed")
    assert (embed.type, embed.inputs[0].shape, embed.outputs[0].shape) == ("Dense", (2, 3), (2, 3))
