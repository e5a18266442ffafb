"""The same weights and data in PyTorch and in JAX leave the same sketches at the same sites."""

import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

import sonde
import sonde.jax

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 4))
UP, DOWN = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 2))


class TorchMlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(4, 5, bias=False).double()
        self.down = torch.nn.Linear(5, 2, bias=False).double()

    def forward(self, x):
        return self.down(sonde.attach(self.up(x).tanh(), "hidden"))


class JaxMlp(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(4, 5, use_bias=False, param_dtype=jnp.float64, rngs=rngs)
        self.down = nnx.Linear(5, 2, use_bias=False, param_dtype=jnp.float64, rngs=rngs)

    def __call__(self, x):
        return self.down(sonde.jax.attach(jnp.tanh(self.up(x)), "hidden"))


def in_torch(tmp_path, memory):
    model = TorchMlp()
    with torch.no_grad():
        model.up.weight.copy_(torch.from_numpy(UP.T))
        model.down.weight.copy_(torch.from_numpy(DOWN.T))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.watch(model, optimizer, dir=tmp_path, name="torch", every=1, sinks=[memory]):
        model(torch.from_numpy(X)).square().mean().backward()
        optimizer.step()


def in_jax(tmp_path, memory):
    import jax

    with jax.enable_x64(True):
        model = JaxMlp(nnx.Rngs(0))
        model.up.kernel[...] = jnp.asarray(UP)
        model.down.kernel[...] = jnp.asarray(DOWN)
        optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

        @nnx.jit
        def step(model, optimizer, x):
            grads = nnx.grad(lambda m: jnp.square(m(x)).mean())(model)
            optimizer.update(model, grads)

        watched = sonde.watch(model, optimizer, dir=tmp_path, name="jax", every=1, sinks=[memory])
        with watched as watch:
            watch.wrap(step)(model, optimizer, jnp.asarray(X))


def test_equal_sites_have_equal_sketches(tmp_path, new_memory):
    of_torch, of_jax = new_memory(), new_memory()
    in_torch(tmp_path, of_torch)
    in_jax(tmp_path, of_jax)
    left = {name.replace("weight", "kernel"): s for name, s in of_torch.at(0).items()}
    right = of_jax.at(0)
    assert sorted(left) == sorted(right)
    for name, sketch in left.items():
        assert right[name].count == sketch.count, name
        np.testing.assert_array_equal(right[name].bins, sketch.bins, err_msg=name)
        np.testing.assert_allclose(
            [right[name].sum_abs, right[name].sum_sq, right[name].max],
            [sketch.sum_abs, sketch.sum_sq, sketch.max],
            rtol=1e-9,
        )
    runs = [sonde.open(tmp_path / name) for name in ("torch", "jax")]
    tables = [run.stats("up", kind="output", stat="rms")["rms"] for run in runs]
    np.testing.assert_allclose(tables[0], tables[1], rtol=1e-9)
