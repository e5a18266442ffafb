"""One training in PyTorch and in JAX: the same weights, data and optimizer, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

import sonde
import sonde.jax

RNG = np.random.default_rng(0)
WORDS, WIDTH, STEPS, RATE = 7, 4, 3, 1e-2
IDS = RNG.integers(0, WORDS, (5, 6))
EMBEDDING = RNG.normal(size=(WORDS, WIDTH))
UP, DOWN = RNG.normal(size=(WIDTH, 5)), RNG.normal(size=(5, WORDS))
BIAS = RNG.normal(size=WORDS)


class TorchTwin(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(WORDS, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 5, bias=False)
        self.down = torch.nn.Linear(5, WORDS)

    def forward(self, ids):
        hidden = sonde.attach(self.up(self.norm(self.embed(ids))).tanh(), "hidden")
        return self.down(hidden)


class JaxTwin(nnx.Module):
    def __init__(self, rngs):
        how = {"param_dtype": jnp.float64, "rngs": rngs}
        self.embed = nnx.Embed(WORDS, WIDTH, **how)
        self.norm = nnx.LayerNorm(WIDTH, epsilon=1e-5, use_fast_variance=False, **how)
        self.up = nnx.Linear(WIDTH, 5, use_bias=False, **how)
        self.down = nnx.Linear(5, WORDS, **how)

    def __call__(self, ids):
        hidden = sonde.jax.attach(jnp.tanh(self.up(self.norm(self.embed(ids)))), "hidden")
        return self.down(hidden)


def in_torch(folder, *sinks):
    model = TorchTwin().double()
    with torch.no_grad():
        for parameter, values in (
            (model.embed.weight, EMBEDDING),
            (model.up.weight, UP.T),
            (model.down.weight, DOWN.T),
            (model.down.bias, BIAS),
        ):
            parameter.copy_(torch.from_numpy(values))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    with sonde.watch(model, optimizer, dir=folder, name="torch", every=1, sinks=sinks) as watch:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(torch.from_numpy(IDS)).square().mean()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)


def in_jax(folder, *sinks):
    with jax.enable_x64(True):
        model = JaxTwin(nnx.Rngs(0))
        model.embed.embedding[...] = jnp.asarray(EMBEDDING)
        model.up.kernel[...] = jnp.asarray(UP)
        model.down.kernel[...] = jnp.asarray(DOWN)
        model.down.bias[...] = jnp.asarray(BIAS)
        rates = optax.inject_hyperparams(optax.adam)(learning_rate=RATE)
        optimizer = nnx.Optimizer(model, rates, wrt=nnx.Param)

        @nnx.jit
        def step(model, optimizer, ids):
            loss, grads = nnx.value_and_grad(lambda m: jnp.square(m(ids)).mean())(model)
            optimizer.update(model, grads)
            return loss

        how = {"dir": folder, "name": "jax", "every": 1, "sinks": sinks}
        with sonde.watch(model, optimizer, **how) as watch:
            wrapped = watch.wrap(step)
            for _ in range(STEPS):
                watch.log(loss=wrapped(model, optimizer, jnp.asarray(IDS)))
