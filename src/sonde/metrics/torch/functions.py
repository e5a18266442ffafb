"""Metrics that come with Sonde: plain functions of tensors. None waits for a device.

Legend: B samples, T positions, I inputs and O outputs of a layer, C channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde._torch_internals.modules import BATCH_NORMS, CONVOLUTIONS
from sonde.metrics.model import Merge, OnHost, metric

_MAX_ELEMENTS: Final = 1 << 24
"""Elements of an intermediate of `per_sample_grad_norm`; larger batches go in pieces."""

_NAMED_CHANNELS: Final = 32
_SQUARINGS: Final = 6
_ITERATIONS: Final = 24


def channel_dim(x: Tensor, module: nn.Module | None) -> int:
    """Where units lie: the second dimension after convolutions, else the last."""
    is_image = isinstance(module, (*CONVOLUTIONS, *BATCH_NORMS, nn.GroupNorm)) or x.dim() >= 4
    return 1 if is_image and x.dim() >= 2 else -1


def _channel_maxima(x: Tensor, module: nn.Module | None = None) -> Tensor | None:
    if x.dim() == 0 or not x.is_floating_point():
        return None
    return x.abs().movedim(channel_dim(x, module), -1).flatten(0, -2).amax(0)


def _dead(maxima_C: Tensor) -> Tensor:
    return (maxima_C == 0).float().mean()


def _described_channels(maxima_C: Tensor) -> dict[str, Tensor]:
    wide = maxima_C.float()
    top = wide.max(0)
    median = wide.median()
    named = {str(i): wide[i] for i in range(len(wide))} if len(wide) <= _NAMED_CHANNELS else {}
    return {
        "max": top.values,
        "channel": top.indices,
        "median": median,
        "mean": wide.mean(),
        "ratio": top.values / median,
        **named,
    }


@metric(reduce=Merge(torch.maximum, _dead))
def dead_fraction(x: Tensor, module: nn.Module | None = None) -> Tensor | None:
    """Fraction of units that were zero for all samples and positions of the step."""
    return _channel_maxima(x, module)


@metric(reduce=Merge(torch.maximum, _described_channels))
def channel_max(x: Tensor, module: nn.Module | None = None) -> Tensor | None:
    """The largest value of each channel over the step: the largest of them, which channel that is,
    their median and mean, the largest over the median; and each by itself if there are few."""
    return _channel_maxima(x, module)


@metric(kind=("update", "param"))
def update_ratio(update: Tensor, param: Tensor) -> Tensor:
    """Norm of what the optimizer changed over the norm of the parameter."""
    return _norm(update) / _norm(param)


@metric(kind=("update", "param_grad"))
def update_grad_cosine(update: Tensor, grad: Tensor) -> Tensor:
    """Cosine of what the optimizer changed and the gradient: -1 for plain gradient descent."""
    return cosine(update, grad)


@metric(kind="param")
def stable_rank(w: Tensor) -> Tensor | None:
    """Squared Frobenius norm over squared spectral norm of a matrix: how many directions count.

    By powers of the Gram matrix, without a decomposition: within 1% where the two largest singular
    values differ by more than 0.1%, else too large by at most their ratio.
    """
    gram = _gram(w)
    return None if gram is None else gram.trace() / largest_eigenvalue(gram)


@metric(kind="param")
def effective_rank(w: Tensor) -> OnHost | None:
    """Exponential of the entropy of the normalised singular values, worked out on the host."""
    gram = _gram(w)
    return None if gram is None else OnHost(gram, _entropy_rank)


@metric(kind=("input", "output_grad"), where=nn.Linear)
def per_sample_grad_norm(x: Tensor, grad: Tensor) -> Tensor | None:
    """Norm of what each sample (first dimension) contributes to the weight's gradient.

    Without making those gradients where that is cheaper: a product of two Gram matrices does.
    """
    if x.dim() < 2 or grad.dim() != x.dim():
        return None
    x_BTI, g_BTO = (
        y.flatten(1, -2).float() if y.dim() > 2 else y[:, None].float() for y in (x, grad)
    )
    t, i, o = x_BTI.shape[1], x_BTI.shape[2], g_BTO.shape[2]
    if t == 1:
        return _norms(x_BTI[:, 0]) * _norms(g_BTO[:, 0])
    several = max(1, _MAX_ELEMENTS // min(2 * t * t, i * o))
    parts = zip(x_BTI.split(several), g_BTO.split(several), strict=True)
    return torch.cat([_norms_of_products(a, b) for a, b in parts])


def _norms_of_products(x_BTI: Tensor, g_BTO: Tensor) -> Tensor:
    t, i, o = x_BTI.shape[1], x_BTI.shape[2], g_BTO.shape[2]
    if 2 * t * t <= i * o:
        squares: Tensor = (x_BTI @ x_BTI.mT).mul_(g_BTO @ g_BTO.mT).sum((-2, -1))
        return squares.clamp_(min=0).sqrt_()
    return _norms((x_BTI.mT @ g_BTO).flatten(1))


BUILT_IN: Final[dict[str, Callable[..., object]]] = {
    f.__name__: f
    for f in (
        channel_max,
        dead_fraction,
        effective_rank,
        per_sample_grad_norm,
        stable_rank,
        update_grad_cosine,
        update_ratio,
    )
}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of the angle between two tensors; NaN if one of them is zero."""
    wide_a, wide_b = (x.flatten().to(_wide(x)) for x in (a, b))
    return torch.dot(wide_a, wide_b.to(wide_a.dtype)) / (_norm(wide_a) * _norm(wide_b))


def largest_eigenvalue(gram: Tensor) -> Tensor:
    """The largest eigenvalue of a positive semi-definite matrix, without a decomposition."""
    n = len(gram)
    scaled = gram / gram.trace().clamp(min=torch.finfo(gram.dtype).tiny)
    powered = scaled
    for _ in range(_SQUARINGS if n <= 1024 else 0):
        powered = powered @ powered
        powered = powered / powered.trace().clamp(min=torch.finfo(gram.dtype).tiny)
    # A start that no direction is orthogonal to in practice, the same each time.
    v = torch.arange(1, n + 1, dtype=gram.dtype, device=gram.device).square().mul(0.7391).cos()
    for _ in range(_ITERATIONS if n <= 1024 else 4 * _ITERATIONS):
        v = powered @ v
        v = v / v.norm().clamp(min=torch.finfo(gram.dtype).tiny)
    return torch.dot(v, gram @ v)


def _gram(w: Tensor) -> Tensor | None:
    """W Wᵀ or Wᵀ W, whichever is smaller; None for what is no matrix."""
    if w.dim() < 2 or w.numel() == 0:
        return None
    flat = w.flatten(1)
    flat = flat.to(torch.float64 if flat.device.type == "cpu" else torch.float32)
    gram: Tensor = flat @ flat.mT if flat.shape[0] <= flat.shape[1] else flat.mT @ flat
    return gram


def _entropy_rank(gram: NDArray[np.float64]) -> float:
    if not np.isfinite(gram).all():
        return float("nan")
    values = np.sqrt(np.clip(np.linalg.eigvalsh(gram.astype(np.float64)), 0, None))
    if not values.any():
        return float("nan")
    p = values / values.sum()
    p = p[p > 0]
    return float(np.exp(-(p * np.log(p)).sum()))


def _norm(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dtype=_wide(x))
    return found


def _norms(x: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return found


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
