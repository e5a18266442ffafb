"""Record a small flax.linen training, inside `jax.jit`, with stacked layers.

python examples/jax_linen.py
sonde view runs
"""

from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training.train_state import TrainState

import sonde


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return x + nn.tanh(nn.Dense(16, name="fc")(x)), None


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Dense(16, name="embed")(x)
        layers = nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=4)
        x, _ = layers(name="layers")(x, None)  # recorded as layers.0 to layers.3
        return nn.Dense(1, name="head")(x)


@partial(jax.jit, donate_argnums=0)
def train_step(state: TrainState, x: jax.Array, y: jax.Array) -> tuple[TrainState, jax.Array]:
    def loss_of(params: dict) -> jax.Array:
        return jnp.square(state.apply_fn({"params": params}, x) - y).mean()

    loss, grads = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=grads), loss


def main() -> None:
    model = Model()
    x = jax.random.normal(jax.random.key(1), (64, 8))
    y = jnp.sin(x.sum(-1, keepdims=True))
    params = model.init(jax.random.key(0), x)["params"]
    state = TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-2))
    with sonde.watch(model, every=10) as watch:
        step = watch.wrap(train_step)
        for _ in range(50):
            state, loss = step(state, x, y)
            watch.log(loss=loss)
    run = sonde.open(watch.path)
    for i in range(4):
        site = f"layers.{i}/output_grad/0"
        print(f"{site:24} rms {run.sketch(site=site).rms:.3g}")


if __name__ == "__main__":
    main()
