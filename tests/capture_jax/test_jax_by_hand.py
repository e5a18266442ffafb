"""`watch.intercept` and `watch.step` with trees: the form of Track & Visualize, jitted or not."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
from flax import linen, nnx

import sonde
import sonde.jax
from sonde.kernels import reference
from sonde.sketch import Sketch


class Mlp(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1, name="out")(linen.tanh(linen.Dense(5, name="hidden")(x)))


MODEL = Mlp()
X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def loss_fn(params, x, y):
    return jnp.mean((MODEL.apply(params, x) - y) ** 2)


def update(model_state, opt_state, optimizer, x, y):
    grads = jax.grad(loss_fn)(model_state, x, y)
    updates, opt_state = optimizer.update(grads, opt_state, model_state)
    return optax.apply_updates(model_state, updates), opt_state, grads


def tracked(function, path, steps=3):
    """A training in the form of Track & Visualize: its run, and the trees of every step."""
    optimizer = optax.adam(1e-2)
    model_state = MODEL.init(jax.random.key(0), X)
    opt_state = optimizer.init(model_state)
    trees = []
    with sonde.jax.watch(model_state, dir=path.parent, name=path.name, every=1) as tracker:
        for _ in range(steps):
            model_state, opt_state, grads = tracker.intercept(
                function, model_state, opt_state, optimizer, X, Y
            )
            tracker.step(model_state, opt_state, grads)
            trees.append((model_state, opt_state, grads))
    return sonde.open(path), trees


def test_a_jitted_update_gives_the_logframe_of_the_same_update_without_jit(tmp_path):
    plain, _ = tracked(update, tmp_path / "plain")
    jitted, _ = tracked(jax.jit(update, static_argnums=2), tmp_path / "jitted")
    frame = plain.to_logframe()
    pd.testing.assert_frame_equal(frame, jitted.to_logframe(), check_exact=True)
    meta = frame["metadata"]
    found = set(zip(meta["tensor_type"], meta["name"], meta["step"], strict=True))
    modules = {(t, n) for t in ("Activation", "Gradient") for n in (".", "hidden", "out")}
    types = ("Weights", "Weight_Gradients", "Optimiser_State.mu", "Optimiser_State.nu")
    names = [f"{layer}.{name}" for layer in ("hidden", "out") for name in ("kernel", "bias")]
    sites = modules | {(t, n) for t in types for n in names}
    assert found == {(t, n, step) for t, n in sites for step in range(3)}
    assert set(meta["dtype"]) == {"float32"}
    assert set(meta["type"][meta["tensor_type"] == "Activation"]) == {"Mlp", "Dense"}


@pytest.mark.parametrize("function", [update, jax.jit(update, static_argnums=2)])
def test_trees_given_by_hand_stand_in_place_of_what_the_function_showed(tmp_path, function):
    """The model's own call shows parameters before the update, `step` is given those after it."""
    run, trees = tracked(function, tmp_path / "run")
    frame = run.to_logframe()
    for step, (params, state, grads) in enumerate(trees):
        kernel = params["params"]["hidden"]["kernel"]
        rows = frame[
            (frame["metadata", "name"] == "hidden.kernel") & (frame["metadata", "step"] == step)
        ]
        of_type = {row["metadata", "tensor_type"]: row for _, row in rows.iterrows()}
        for name, x in (
            ("Weights", kernel),
            ("Weight_Gradients", grads["params"]["hidden"]["kernel"]),
            ("Optimiser_State.mu", state[0].mu["params"]["hidden"]["kernel"]),
        ):
            found = of_type[name]["scalar_stats"]
            assert found["max_abs"] == float(np.abs(x).max()), (name, step)
            mean = np.asarray(x).astype(np.float64).mean()
            assert found["mean"] == pytest.approx(mean, rel=1e-12)
            assert of_type[name]["exponent_counts"].sum() == 15, "counted once"


def test_a_pytree_of_parameters_can_be_watched(tmp_path, memory):
    params = {"fc": {"kernel": np.ones((2, 3), np.float32)}}
    with sonde.jax.watch(params, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        watch.step(jax.tree.map(jnp.asarray, params))
    assert sonde.open(watch.path).info["config"]["watch"]["model"] == "parameters"
    assert memory.at(0)["fc/param/kernel"].count == 6


def test_plain_trees_without_a_model_are_recorded(tmp_path, memory):
    params = {"params": {"fc": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}}
    tx = optax.adam(1e-2)

    def step(params, state, optimizer, x):
        grads = jax.grad(lambda p: (x @ p["params"]["fc"]["kernel"]).sum())(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, grads

    with sonde.jax.watch(step, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        state = tx.init(params)
        for _ in range(2):
            params, state, grads = watch.intercept(step, params, state, tx, jnp.ones((4, 2)))
            watch.step(params, state, grads, loss=1.0)
    assert [s for s, phase in memory.steps if phase == "train"] == [0, 1]
    assert set(memory.at(1)) == {
        f"fc/{kind}/{name}{rest}"
        for name in ("kernel", "bias")
        for kind, rest in [("param", ""), ("param_grad", ""), ("optim", "/mu"), ("optim", "/nu")]
    }
    assert memory.scalars[1, "train"]["loss"] == 1.0
    assert isinstance(memory.at(1)["fc/optim/kernel/mu"], Sketch)


def test_stacked_parameters_given_by_hand_come_apart_like_those_in_the_function(tmp_path, memory):
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.fc = nnx.Linear(3, 3, rngs=rngs)

        def __call__(self, x):
            return jnp.tanh(self.fc(x))

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layers = nnx.split_rngs(splits=2)(nnx.vmap(Layer))(rngs)

        def __call__(self, x):
            run = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
            return run(x, self.layers)

    model = Model(nnx.Rngs(0))
    step = nnx.jit(nnx.grad(lambda m: (m(jnp.ones((2, 3))) ** 2).sum()))
    with sonde.watch(model, dir=tmp_path, every=1, sinks=[memory], strict=True) as watch:
        grads = watch.intercept(step, model)
        watch.step(nnx.state(model, nnx.Param), None, grads)
    kernels = np.asarray(model.layers.fc.kernel[...])
    for i in range(2):
        found = memory.at(0)[f"layers.{i}.fc/param/kernel"]
        expected = reference.sketch(kernels[i])
        assert (found.count, found.min, found.max) == (9, expected.min, expected.max)
        assert memory.at(0)[f"layers.{i}.fc/param_grad/kernel"].count == 9
        assert memory.at(0, "final")[f"layers.{i}.fc/param/kernel"].count == 9
