"""One of several processes of `jax.distributed` that train together on CPUs.

python jax_ranks.py FOLDER ADDRESS RANK WORLD
"""

import sys

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import sonde
import sonde.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 4)).astype(np.float32)
STEPS = 2


def spread(values, mesh, *spec):
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def train(folder, *sinks):
    """Data and the columns of the kernel are split over all devices of all processes."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("all",))
    model = nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(0))
    model.kernel[...] = spread(KERNEL, mesh, None, "all")
    optimizer = nnx.Optimizer(model, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    x = spread(X, mesh, "all")

    @nnx.jit
    def step(model, optimizer, x):
        grads = nnx.grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, grads)

    how = {"dir": folder, "name": "run", "every": 1, "sinks": list(sinks), "strict": True}
    with sonde.jax.watch(model, optimizer, **how) as watch:
        watch.add_metric("norm", lambda x: (x**2).sum() ** 0.5, kind="param")
        wrapped = watch.wrap(step)
        for _ in range(STEPS):
            wrapped(model, optimizer, x)


if __name__ == "__main__":
    folder, address, rank, world = sys.argv[1:]
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=int(world), process_id=int(rank))
    assert jax.process_count() == int(world)
    train(folder)
