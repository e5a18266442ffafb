"""Every site of a transformer in linen and in nnx, trained jitted with optax, against an oracle.

In float64, where compiled versions of one function differ by so little that no value changes its
bin.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax_models import (
    LinenTransformer,
    NnxTransformer,
    batch,
    in_float64,
    linen_oracle,
    loss_of,
    nnx_oracle,
)

import sonde
import sonde.jax
from sonde.capture.jax import trees
from sonde.kernels import reference

NOISE = 1e-9
"""The gradient of a key's bias in attention is zero but for rounding, and so is what Adam makes of
it."""


def assert_close(found, values):
    expected = reference.sketch(np.asarray(values))
    assert found.count == expected.count
    if max(abs(expected.min), abs(expected.max)) < NOISE:
        assert max(abs(found.min), abs(found.max)) < NOISE
        return
    np.testing.assert_array_equal(found.bins, expected.bins)
    for name in ("sum_abs", "sum_sq", "sum_4", "max", "min"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a == pytest.approx(b, rel=1e-6, abs=1e-12), name


def assert_sites(found, expected):
    assert sorted(found) == sorted(expected)
    for name, values in expected.items():
        assert_close(found[name], values)


def of_tree(tree, kind, suffix=""):
    sites = {}
    for keys, x in trees.named(tree):
        path, name = trees.place_of(keys)
        sites[f"{path}/{kind}/{name}{suffix}"] = x
    return sites


def of_modules(outputs, gradients):
    return {f"{p or '.'}/output/0": y for p, y in outputs.items()} | {
        f"{p or '.'}/output_grad/0": g for p, g in gradients.items()
    }


@partial(jax.jit, static_argnums=0)
def update_of(tx, params, state, grads):
    clip, adam = tx
    clipped, _ = clip.update(grads, clip.init(params))
    updates, new = adam.update(clipped, state, params)
    return clipped, updates, new, optax.apply_updates(params, updates)


def of_update(tx, params, state, grads):
    """What a chain of clipping and Adam takes and makes."""
    clipped, updates, new, after = update_of(tx, params, state, grads)
    sites = of_tree(params, "param") | of_tree(grads, "param_grad", "/before_clip")
    sites |= of_tree(clipped, "param_grad") | of_tree(updates, "update")
    sites |= of_tree(new[0].mu, "optim", "/mu") | of_tree(new[0].nu, "optim", "/nu")
    return sites, after, new


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("x64")
def test_a_linen_transformer_is_recorded_as_an_oracle_computes_it(tmp_path, memory):
    model, (inputs, targets) = LinenTransformer(layers=1), batch()
    params = in_float64(jax.jit(model.init)(jax.random.key(0), inputs)["params"])
    parts = optax.clip_by_global_norm(0.5), optax.adam(1e-2)
    watch = sonde.watch(model, dir=tmp_path, every=1, sinks=[memory], strict=True)
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.chain(*parts))

    def loss(p):
        return loss_of(model.apply({"params": p}, inputs), targets)

    @watch.wrap
    @jax.jit
    def step(state):
        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    adam = parts[1].init(params)
    oracle = linen_oracle(model, inputs, targets)
    for i in range(2):
        state, _ = step(state)
        watch.flush()
        outputs, gradients, grads = oracle(params)
        expected, params, adam = of_update(parts, params, adam, grads)
        assert_sites(memory.at(i), expected | of_modules(outputs, gradients))
    watch.close()
    assert memory.events == []


@pytest.mark.usefixtures("x64")
def test_an_nnx_transformer_is_recorded_as_an_oracle_computes_it(tmp_path, memory):
    inputs, targets = batch()
    graph, state = nnx.split(NnxTransformer(nnx.Rngs(0)))
    model = nnx.merge(graph, in_float64(state))
    parts = optax.clip_by_global_norm(0.5), optax.adam(1e-2)
    optimizer = nnx.Optimizer(model, optax.chain(*parts), wrt=nnx.Param)
    watch = sonde.watch(model, optimizer, dir=tmp_path, every=1, sinks=[memory], strict=True)

    @watch.wrap
    @nnx.jit
    def step(model, optimizer, inputs):
        value, grads = nnx.value_and_grad(lambda m: loss_of(m(inputs), targets))(model)
        optimizer.update(model, grads)
        return value

    def params_of(model):
        return nnx.to_pure_dict(nnx.state(model, nnx.Param))

    params = params_of(model)
    adam = parts[1].init(params)
    oracle = nnx_oracle(model, inputs, targets)
    for i in range(2):
        outputs, gradients, grads = oracle(nnx.state(model, nnx.Param))
        step(model, optimizer, inputs)
        watch.flush()
        expected, params, adam = of_update(parts, params, adam, nnx.to_pure_dict(grads))
        assert_sites(memory.at(i), expected | of_modules(outputs, gradients))
    watch.close()
    assert memory.events == []
    assert_sites(memory.at(1, "final"), of_tree(params_of(model), "param"))


@pytest.mark.usefixtures("x64")
def test_a_plain_function_with_a_wrapped_optimizer_is_recorded(tmp_path, memory):
    params = {"a": {"w": jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)}, "b": jnp.ones(4)}
    x = jnp.arange(6.0).reshape(2, 3)

    def loss(p, x):
        hidden = sonde.jax.attach(jnp.tanh(x @ p["a"]["w"]), "hidden")
        return (hidden * p["b"]).sum()

    watch = sonde.jax.watch(loss, dir=tmp_path, every=1, sinks=[memory], strict=True)
    plain = optax.sgd(0.1, momentum=0.9)
    tx = watch.optimizer(plain)

    @jax.jit
    def step(p, state, x):
        value, grads = jax.value_and_grad(loss)(p, x)
        updates, state = tx.update(grads, state, p)
        return optax.apply_updates(p, updates), state, value

    state = tx.init(params)
    assert jax.tree.structure(state) == jax.tree.structure(plain.init(params))
    after, _, value = watch.wrap(step)(params, state, x)
    watch.close()
    grads = jax.grad(loss)(params, x)
    updates, new = plain.update(grads, plain.init(params), params)
    hidden = jnp.tanh(x @ params["a"]["w"])
    expected = of_tree(params, "param") | of_tree(grads, "param_grad")
    expected |= of_tree(updates, "update") | of_tree(new[0].trace, "optim", "/trace")
    expected |= {"./attach/hidden": hidden}
    expected |= {"./attach_grad/hidden": jnp.broadcast_to(params["b"], hidden.shape)}
    renamed = {("." + k if k.startswith("/") else k): v for k, v in expected.items()}
    assert_sites(memory.at(0), renamed)
    assert float(value) == pytest.approx(float(loss(params, x)))
    jax.tree.map(np.testing.assert_allclose, after, optax.apply_updates(params, updates))
