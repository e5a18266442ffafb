"""A model spread over eight devices: the statistics of one device, and nothing is gathered."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_models import NnxTransformer, in_float64, loss_of

import sonde
import sonde.jax
from sonde.capture.jax import modules
from sonde.capture.jax.harvest import Harvest
from sonde.capture.jax.taps import Tracing, during
from sonde.kernels import jax as kernels
from sonde.kernels import reference

KINDS = frozenset({"output", "output_grad", "param", "param_grad", "update", "optim"})
NOISE = 1e-6
"""The gradient of a key's bias in attention is zero but for rounding, and so is what Adam makes of
it with a large `eps`."""
WORDS = np.random.default_rng(0).integers(0, 11, (8, 6))
INPUTS, TARGETS = WORDS[:, :-1], WORDS[:, 1:]


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("data", "model"))


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def layout(path, x, mesh):
    """Kernels of the network are split over `model`, all else is everywhere."""
    words = jax.tree_util.keystr(path)
    is_split = x.ndim == 2 and ("up" in words or "down" in words or "embed" in words)
    if not is_split:
        return NamedSharding(mesh, PartitionSpec())
    first = "down" in words
    return NamedSharding(mesh, PartitionSpec(*(("model", None) if first else (None, "model"))))


def trained(folder, name, sink, mesh=None):
    graph, state = nnx.split(NnxTransformer(nnx.Rngs(0)))
    state = in_float64(state)
    inputs, targets = jnp.asarray(INPUTS), jnp.asarray(TARGETS)
    if mesh is not None:
        state = jax.tree_util.tree_map_with_path(
            lambda path, x: jax.device_put(x, layout(path, x, mesh)), state
        )
        data = NamedSharding(mesh, PartitionSpec("data"))
        inputs, targets = (jax.device_put(x, data) for x in (inputs, targets))
    model = nnx.merge(graph, state)
    optimizer = nnx.Optimizer(model, optax.adam(1e-2, eps=1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer, inputs, targets):
        loss, grads = nnx.value_and_grad(lambda m: loss_of(m(inputs), targets))(model)
        optimizer.update(model, grads)
        return loss

    how = {"dir": folder, "name": name, "every": 1, "sinks": [sink], "strict": True}
    with sonde.watch(model, optimizer, **how) as watch:
        wrapped = watch.wrap(step)
        for _ in range(2):
            wrapped(model, optimizer, inputs, targets)
    return model


@pytest.mark.usefixtures("x64")
def test_every_site_of_a_sharded_transformer_has_the_statistics_of_one_device(
    tmp_path, new_memory, mesh
):
    alone, spread = new_memory(), new_memory()
    trained(tmp_path, "alone", alone)
    model = trained(tmp_path, "spread", spread, mesh)
    assert len(model.h[0].up.kernel[...].sharding.device_set) == 8
    for step in range(2):
        expected, found = alone.at(step), spread.at(step)
        assert sorted(found) == sorted(expected)
        assert {name.split("/")[1] for name in found} == KINDS
        for name, sketch in expected.items():
            assert found[name].count == sketch.count, name
            if max(abs(sketch.min), abs(sketch.max)) < NOISE:
                continue
            moved = np.abs(found[name].bins - sketch.bins).sum() / 2
            assert moved <= 0.02 * sketch.count, name  # attention has a softmax in float32
            assert found[name].sum_sq == pytest.approx(sketch.sum_sq, rel=1e-5), name


def gathers(compiled):
    return len(re.findall(r"= \S+ all-gather(?:-start)?\(", compiled.as_text()))


def test_recording_gathers_no_array(mesh):
    """The recorded step has the collectives of the plain one, and sketches nothing whole."""
    graph, state = nnx.split(NnxTransformer(nnx.Rngs(0)))
    state = jax.tree_util.tree_map_with_path(
        lambda path, x: jax.device_put(x, layout(path, x, mesh)), state
    )
    inputs = jax.device_put(jnp.asarray(INPUTS), NamedSharding(mesh, PartitionSpec("data")))

    def loss(state, inputs):
        return loss_of(nnx.merge(graph, state)(inputs), jnp.asarray(TARGETS))

    step = jax.grad(loss, allow_int=True)
    tracing = Tracing(KINDS)
    with during(tracing), modules.intercepted(nnx.merge(graph, state)):
        closed = jax.make_jaxpr(step)(state, inputs)
    harvest = Harvest(lambda _tap: True, kernels.kernel_for("cpu"), mesh)

    def recorded(*arrays):
        outputs, groups = harvest(closed, arrays)
        return outputs, harvest.rows_of(groups)

    arrays = [*jax.tree.leaves(state), inputs]
    plain = jax.jit(step).lower(state, inputs).compile()
    compiled = jax.jit(recorded).lower(*arrays).compile()
    assert gathers(compiled) <= gathers(plain)
    rows = jax.jit(recorded)(*arrays)[1]
    assert {s.data.shape[0] for s in rows.addressable_shards} == {1}, "a row for each device"


@pytest.mark.parametrize("n", [6, 7, 1])
def test_arrays_that_a_mesh_does_not_divide_count_each_value_once(tmp_path, memory, mesh, n):
    values = np.random.default_rng(n).normal(size=(8, 3)).astype(np.float32)
    x = jax.device_put(values, NamedSharding(mesh, PartitionSpec("data")))

    def part(x):
        return sonde.jax.attach(x[:n] * 2, "part")

    with sonde.jax.watch(part, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        watch.wrap(jax.jit(part))(x)
    found, expected = memory.at(0)["./attach/part"], reference.sketch(values[:n] * 2)
    assert (found.count, found.min, found.max) == (expected.count, expected.min, expected.max)
    np.testing.assert_array_equal(found.bins, expected.bins)


def test_stacked_layers_on_several_devices_come_apart(tmp_path, memory, mesh):
    stacked = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)

    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.fc = nnx.Linear(4, 4, use_bias=False, rngs=rngs)

        def __call__(self, x):
            return self.fc(x)

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.split_rngs(splits=3)(nnx.vmap(Layer))(rngs)

        def __call__(self, x):
            run = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return run(x, self.layers)

    model = Model(nnx.Rngs(0))
    spread = NamedSharding(mesh, PartitionSpec(None, None, "model"))
    model.layers.fc.kernel[...] = jax.device_put(stacked, spread)
    data = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    step = nnx.jit(nnx.grad(lambda m, x: (m(x) ** 2).sum()))
    with sonde.watch(model, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        watch.wrap(step)(model, data)
    y = x.astype(np.float64)
    for i in range(3):
        found = memory.at(0)[f"layers.{i}.fc/param/kernel"]
        np.testing.assert_array_equal(found.bins, reference.sketch(stacked[i]).bins)
        y = y @ stacked[i]
        output = memory.at(0)[f"layers.{i}.fc/output/0"]
        assert output.count == 32
        assert output.rms == pytest.approx(reference.sketch(y).rms, rel=1e-5)
