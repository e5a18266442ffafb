"""Recording changes nothing: other steps are the user's function, recorded ones its numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training.train_state import TrainState
from jax_models import LinenTransformer, NnxTransformer, batch, loss_of

import sonde
import sonde.jax

STEPS = 4
ROUNDING = 2.0**-27
"""How far recorded steps may be apart in float32, in parameters and state below 1."""
EXACT = {"xla_allow_excess_precision": False}
INPUTS, TARGETS = batch()


def linen_training(dtype, options):
    """`step(state) -> (state, loss)`, jitted, and the state to begin with."""
    model = LinenTransformer(layers=2)
    params = jax.jit(model.init)(jax.random.key(0), INPUTS)["params"]
    params = jax.tree.map(lambda x: x.astype(dtype), params)

    def step(state):
        def loss(p):
            return loss_of(model.apply({"params": p}, INPUTS), TARGETS)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adamw(1e-2))
    return model, jax.jit(step, compiler_options=options), state


def nnx_training(dtype, options):
    graph, params, rest = nnx.split(NnxTransformer(nnx.Rngs(0)), nnx.Param, ...)
    params = jax.tree.map(lambda x: x.astype(dtype), params)
    model = nnx.merge(graph, params, rest)
    tx = optax.adamw(1e-2)

    def step(state):
        params, opt_state = state

        def loss(p):
            return loss_of(nnx.merge(graph, p, rest)(INPUTS), TARGETS)

        value, grads = jax.value_and_grad(loss)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return model, jax.jit(step, compiler_options=options), (params, tx.init(params))


def differing(a, b):
    """Leaves that are not bit for bit the same, by name, with the largest difference."""
    pairs = zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree_util.tree_leaves_with_path(b), strict=True
    )
    found = {}
    for (path, one), (_, other) in pairs:
        x, y = np.asarray(one), np.asarray(other)
        if x.tobytes() != y.tobytes():
            gap = np.abs(x.astype(np.float64) - y.astype(np.float64)).max()
            found[jax.tree_util.keystr(path)] = float(gap)
    return found


@pytest.mark.parametrize("make", [linen_training, nnx_training])
@pytest.mark.parametrize(
    ("dtype", "options"), [(jnp.float32, None), (jnp.bfloat16, None), (jnp.bfloat16, EXACT)]
)
def test_a_step_gives_what_it_gives_without_sonde(tmp_path, make, dtype, options):
    """From the same state, for recorded steps (every other one) and for the others."""
    model, step, state = make(dtype, options)
    how = {"dir": tmp_path, "every": 2, "strict": True, "final_parameters": False}
    with sonde.watch(model, **how) as watch:
        wrapped = watch.wrap(step)
        for i in range(STEPS):
            expected, found = step(state), wrapped(state)
            apart = differing(expected, found)
            if i % 2:
                assert apart == {}, "it is the user's function"
            assert float(expected[1]) == float(found[1]), "the loss"
            # The gradient of a key's bias is zero but for rounding, and Adam makes steps of it.
            known = {n: gap for n, gap in apart.items() if not ("key" in n and "bias" in n)}
            assert max(known.values(), default=0) <= (ROUNDING if dtype == jnp.float32 else 0)
            state = expected[0]
    assert sonde.open(watch.path).steps == [0, 2]
