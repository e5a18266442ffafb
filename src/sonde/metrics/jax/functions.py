"""Metrics for JAX that come with Sonde: pure functions of arrays, part of the compiled step.

The names and numbers of `metrics.torch.functions`. C are channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import jax.numpy as jnp
from jax import Array

from sonde.metrics.model import Merge, metric

_NAMED_CHANNELS: Final = 32


def _channel_maxima(x: Array) -> Array | None:
    """Flax has channels last, also after convolutions."""
    if x.ndim == 0 or not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    return jnp.abs(x).reshape(-1, x.shape[-1]).max(0)


def _dead(maxima_C: Array) -> Array:
    return (maxima_C == 0).mean()


def _described_channels(maxima_C: Array) -> dict[str, Array]:
    top, median = maxima_C.max(), jnp.quantile(maxima_C, 0.5, method="lower")
    n = len(maxima_C)
    named = {str(i): maxima_C[i] for i in range(n)} if n <= _NAMED_CHANNELS else {}
    return {
        "max": top,
        "channel": maxima_C.argmax(),
        "median": median,
        "mean": maxima_C.mean(),
        "ratio": top / median,
        **named,
    }


@metric(reduce=Merge(jnp.maximum, _dead))
def dead_fraction(x: Array) -> Array | None:
    """Fraction of units that were zero for all samples and positions of the step."""
    return _channel_maxima(x)


@metric(reduce=Merge(jnp.maximum, _described_channels))
def channel_max(x: Array) -> Array | None:
    """The largest value of each channel over the step: the largest of them, which channel that is,
    their median and mean, the largest over the median; and each by itself if there are few."""
    found = _channel_maxima(x)
    return None if found is None else found.astype(_wide(x))


@metric(kind=("update", "param"))
def update_ratio(update: Array, param: Array) -> Array:
    """Norm of what the optimizer changes over the norm of the parameter."""
    return _norm(update) / _norm(param)


@metric(kind=("update", "param_grad"))
def update_grad_cosine(update: Array, grad: Array) -> Array:
    """Cosine of what the optimizer changes and the gradient: -1 for plain gradient descent."""
    a, b = (x.reshape(-1).astype(_wide(x)) for x in (update, grad))
    return jnp.vdot(a, b) / (_norm(a) * _norm(b))


@metric(kind="param")
def stable_rank(w: Array) -> Array | None:
    """Squared Frobenius norm over squared spectral norm of a matrix: how many directions count."""
    values = _singular_values(w)
    return None if values is None else (values**2).sum() / values.max() ** 2


@metric(kind="param")
def effective_rank(w: Array) -> Array | None:
    """Exponential of the entropy of the normalised singular values."""
    values = _singular_values(w)
    if values is None:
        return None
    p = values / values.sum()
    return jnp.exp(-jnp.where(p > 0, p * jnp.log(jnp.where(p > 0, p, 1)), 0).sum())


BUILT_IN: Final[dict[str, Callable[..., object]]] = {
    f.__name__: f
    for f in (
        channel_max,
        dead_fraction,
        effective_rank,
        stable_rank,
        update_grad_cosine,
        update_ratio,
    )
}


def _singular_values(w: Array) -> Array | None:
    """None for what is no matrix."""
    if w.ndim < 2 or w.size == 0:
        return None
    flat = w.reshape(-1, w.shape[-1]).astype(_wide(w))  # the last dimension has the outputs
    return jnp.linalg.svd(flat, compute_uv=False)


def _norm(x: Array) -> Array:
    return jnp.linalg.norm(x.reshape(-1).astype(_wide(x)))


def _wide(x: Array) -> type:
    found: type = jnp.float64 if x.dtype == jnp.float64 else jnp.float32
    return found
