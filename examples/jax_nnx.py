"""Record a small flax.nnx training, inside `nnx.jit`.

python examples/jax_nnx.py
sonde view runs
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import sonde
import sonde.jax


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(8, 32, rngs=rngs)
        self.down = nnx.Linear(32, 1, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate = sonde.jax.attach(nnx.sigmoid(self.up(x)), "gate")
        return self.down(gate)


@nnx.jit
def train_step(model: Mlp, optimizer: nnx.Optimizer, x: jax.Array, y: jax.Array) -> jax.Array:
    loss, grads = nnx.value_and_grad(lambda m: jnp.square(m(x) - y).mean())(model)
    optimizer.update(model, grads)
    return loss


def main() -> None:
    model = Mlp(nnx.Rngs(0))
    clipped = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))
    optimizer = nnx.Optimizer(model, clipped, wrt=nnx.Param)
    x = jax.random.normal(jax.random.key(1), (64, 8))
    y = jnp.sin(x.sum(-1, keepdims=True))
    with sonde.watch(model, optimizer, every=10) as watch:
        step = watch.wrap(train_step)  # other steps run `train_step` as it is
        for _ in range(50):
            watch.log(loss=step(model, optimizer, x, y))
    run = sonde.open(watch.path)
    for site in ("up/output/0", "./attach/gate", "down/param_grad/kernel", "down/optim/kernel/nu"):
        print(f"{site:24} rms {run.sketch(site=site).rms:.3g}")


if __name__ == "__main__":
    main()
