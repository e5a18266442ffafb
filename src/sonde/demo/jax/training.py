"""The training loop of the demo in JAX: a transformer in flax.nnx, jitted, with Sonde watching."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from numpy.typing import NDArray

from sonde.demo.scenarios import Scenario, Shape, Trained
from sonde.demo.text import logbook
from sonde.watching import watch

_TEXT_LENGTH: Final = 400_000
_UNSEEN: Final = 20_000
_TEMPERATURE: Final = 0.6


class NnxBlock(nnx.Module):  # type: ignore[misc]  # flax is not read by mypy
    """Attention, then a network of two layers."""

    def __init__(self, shape: Shape, rngs: nnx.Rngs) -> None:
        width = shape.width
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.qkv = nnx.Linear(width, 3 * width, rngs=rngs)
        self.proj = nnx.Linear(width, width, rngs=rngs)
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.heads = shape.heads

    def __call__(self, x_BTC: Array) -> Array:
        parts = jnp.split(self.qkv(self.norm1(x_BTC)), 3, axis=-1)
        q, k, v = (p.reshape(*p.shape[:2], self.heads, -1) for p in parts)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.proj(mixed.reshape(x_BTC.shape))
        return x_BTC + self.down(nnx.gelu(self.up(self.norm2(x_BTC))))


class NnxTransformer(nnx.Module):  # type: ignore[misc]  # flax is not read by mypy
    """Scores for the next character at every place of a text."""

    def __init__(self, shape: Shape, characters: int, rngs: nnx.Rngs) -> None:
        self.embed = nnx.Embed(characters, shape.width, rngs=rngs)
        self.places = nnx.Embed(shape.context, shape.width, rngs=rngs)
        self.blocks = nnx.List([NnxBlock(shape, rngs) for _ in range(shape.blocks)])
        self.norm = nnx.LayerNorm(shape.width, rngs=rngs)
        self.head = nnx.Linear(shape.width, characters, rngs=rngs)

    def __call__(self, ids_BT: Array) -> Array:
        x_BTC = self.embed(ids_BT) + self.places(jnp.arange(ids_BT.shape[1]))
        for block in self.blocks:
            x_BTC = block(x_BTC)
        return self.head(self.norm(x_BTC))


def train(
    scenario: Scenario,
    *,
    steps: int,
    every: int,
    seed: int,
    dir: str | os.PathLike[str],
    name: str | None,
    tell: Callable[[int, float, float | None], None],
) -> Trained:
    """Train the network of a scenario and record it. The same seed gives the same training."""
    text = logbook(_TEXT_LENGTH)
    characters = sorted(set(text))
    ids = np.searchsorted(np.array(characters), np.array(list(text))).astype(np.int32)
    generator = np.random.default_rng(seed)
    model = NnxTransformer(scenario.shape, len(characters), nnx.Rngs(seed))
    optimizer = nnx.Optimizer(model, _optimizer(scenario, steps), wrt=nnx.Param)
    kept = {"scenario": asdict(scenario), "steps": steps, "seed": seed, "framework": "jax"}
    with watch(model, optimizer, every=every, dir=dir, name=name, config=kept) as watching:
        train_step = watching.wrap(nnx.jit(_step))
        for step in range(steps):
            taken, following = _batch(ids[:-_UNSEEN], scenario, generator)
            loss = train_step(model, optimizer, taken, following)
            watching.log(loss=loss, learning_rate=scenario.rate(step, steps))
            tell(step, float(loss), None)

    def writes(start: str, length: int) -> str:
        return _write(model, characters, start, length, scenario.shape.context, seed)

    return Trained(watching.path, writes)


def _optimizer(scenario: Scenario, steps: int) -> optax.GradientTransformation:
    rates = jnp.array([scenario.rate(step, steps) for step in range(steps)])
    adam = optax.adamw(lambda count: rates[count], b2=0.99, weight_decay=0.1)
    if scenario.clip_norm is None:
        return adam
    return optax.chain(optax.clip_by_global_norm(scenario.clip_norm), adam)


def _step(model: NnxTransformer, optimizer: nnx.Optimizer, taken: Array, following: Array) -> Array:
    def loss_of(model: NnxTransformer) -> Array:
        scores = model(taken)
        return optax.softmax_cross_entropy_with_integer_labels(scores, following).mean()

    loss, grads = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return loss


def _batch(
    ids: NDArray[np.int32], scenario: Scenario, generator: np.random.Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Pieces of the text, and the same moved on by a character."""
    length = scenario.shape.context + 1
    starts = generator.integers(len(ids) - length, size=(scenario.batch, 1))
    pieces = ids[starts + np.arange(length)]
    return pieces[:, :-1], pieces[:, 1:]


def _write(
    model: NnxTransformer, characters: list[str], start: str, length: int, context: int, seed: int
) -> str:
    generator = np.random.default_rng(seed)
    scores_of = nnx.jit(lambda model, ids_BT: model(ids_BT))
    ids = [characters.index(c) for c in start]
    for _ in range(length):
        window = ids[-context:]
        padded = np.zeros((1, context), np.int32)
        padded[0, : len(window)] = window
        scores = np.asarray(scores_of(model, padded))[0, len(window) - 1] / _TEMPERATURE
        chances = np.exp(scores - scores.max(), dtype=np.float64)
        ids.append(int(generator.choice(len(characters), p=chances / chances.sum())))
    return "".join(characters[i] for i in ids)
