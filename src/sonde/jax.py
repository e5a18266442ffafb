"""Sonde for JAX: Flax models and plain functions, recorded inside `jit`.

watch = sonde.jax.watch(model, optimizer, every=10)
train_step = watch.wrap(train_step)  # jitted or not
for batch in batches:
    loss = train_step(model, optimizer, batch)
"""

from __future__ import annotations

from typing import Any, TypeVar

from sonde import watching
from sonde._require import require
from sonde.watching import Watch

__all__ = ["attach", "watch"]


T = TypeVar("T")


def watch(model: object, optimizer: object = None, **options: Any) -> Watch:
    """Record what happens inside a JAX model while it trains, into a run directory.

    Args:
        model: A `flax.nnx.Module`, a `flax.linen.Module`, a function over a pytree of parameters,
            or the pytree itself.
        optimizer: The `nnx.Optimizer` or optax optimizer that trains it, for the run's description.
            Gradients and updates of optax are recorded by `watch.optimizer(tx)`; those of
            `nnx.Optimizer` and `TrainState` without it.
        options: As in `sonde.watch`.

    Raises:
        ImportError: If JAX or Flax is not installed.
        SondeError: If something in the arguments is wrong.
    """
    jax, *_ = (require(module, extra="jax") for module in ("jax", "flax", "optax"))
    if jax.process_count() > 1:  # as jax.distributed has it; what is given counts first
        options = {"rank": jax.process_index(), "world_size": jax.process_count(), **options}
    from sonde.capture.jax.backend import BACKEND, PlainFunction

    watched = model if BACKEND.takes(model) else PlainFunction(model)
    return watching.watch(watched, optimizer, **options)


def attach(x: T, name: str) -> T:
    """Give an array inside a model a name, under which its values and gradients are recorded.

    Returns the array. Use what it returns: the gradient is that of this value. Does nothing outside
    functions that are recorded. Inside `jax.lax.scan`, each turn has a site of its own:
    `scores.0`, `scores.1`.
    """
    require("jax", extra="jax")
    from sonde.capture.jax.attaching import attach as attach_here

    return attach_here(x, name)
