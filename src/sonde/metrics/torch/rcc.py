"""The refined coordinate check: how much of an activation's change is the weights', how much the
input's.

For a module f with inputs x, of the trained model (t) and of the model at its beginning (0):

    A = f_t(x_t)    B = f_0(x_0)    C = f_0(x_t)
    effective    A - C    "(W_t - W_0) x_t"    what the module's own update does
    propagating  C - B    "W_0 (x_t - x_0)"    what earlier modules' updates do here
    A - B is their sum.

Each number is the mean, over samples and positions, of the L2 norm over the features: the last
dimension, or the channels of a convolution. Haas, Bordt, von Luxburg and Vankadara, arXiv
2505.22491.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

_CHANNELS_SECOND: Final = (_ConvNd, _BatchNorm, _InstanceNorm, nn.GroupNorm)
_LINEAR: Final = (nn.Linear, _ConvNd)


@dataclass(frozen=True, slots=True)
class Triple:
    """The three outputs of a module, and its inputs if they are tensors that can be compared."""

    module: nn.Module
    first_module: nn.Module
    A: Tensor
    B: Tensor
    C: Tensor
    x: Tensor | None = None
    first_x: Tensor | None = None


def terms(t: Triple) -> dict[str, Tensor]:
    """Norms per sample and position, by term. Their means are what is recorded."""
    d = feature_dim(t.module, t.A)
    found = {"effective": _norm(t.A, t.C, d), "propagating": _norm(t.C, t.B, d)}
    if isinstance(t.module, nn.Embedding | nn.EmbeddingBag):
        return {"effective": found["effective"]}
    has_input = t.x is not None and t.x.is_floating_point() and t.x.dim() > 0
    if has_input and t.x is not None:
        found["input"] = _norm(t.x, None, feature_dim(t.module, t.x))
        if t.first_x is not None:
            found["input_drift"] = _norm(t.x, t.first_x, feature_dim(t.module, t.x))
    found |= {f"weight/{name}": y for name, y in _without_bias(t, d).items()}
    if has_input and _is_norm(t.module):
        found |= {f"weight/{name}": y for name, y in _normalised(t).items()}
    return found


def feature_dim(module: nn.Module, x: Tensor) -> int:
    """The dimension that norms go over."""
    if not isinstance(module, _CHANNELS_SECOND):
        return -1
    # A convolution without a batch has its channels in front.
    spatial = getattr(module, "kernel_size", ())
    is_single = isinstance(module, _ConvNd) and x.dim() == len(spatial) + 1
    return 0 if is_single else 1


def _without_bias(t: Triple, d: int) -> dict[str, Tensor]:
    """The same terms of the weight alone: for layers whose output is a product plus a bias."""
    if not isinstance(t.module, _LINEAR) and not _is_norm(t.module):
        return {}
    if getattr(t.module, "weight", None) is None:
        return {}
    a = _less(t.A, t.module, d)
    b, c = (_less(y, t.first_module, d) for y in (t.B, t.C))
    return {
        "effective": _norm(a, c, d),
        "propagating": _norm(c, b, d),
        "output": _norm(a, None, d),
        "first_output": _norm(b, None, d),
    }


def _normalised(t: Triple) -> dict[str, Tensor]:
    """What the weight of a normalisation is multiplied with."""
    assert t.x is not None
    mine = _hat(t.module, t.x)
    found = {"input": _norm(mine, None, -1)}
    if t.first_x is not None:
        found["input_drift"] = _norm(mine, _hat(t.first_module, t.first_x), -1)
    return found


def _hat(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        return nn.functional.layer_norm(x, module.normalized_shape, None, None, module.eps)
    shape = getattr(module, "normalized_shape", None) or x.shape[-1:]
    eps = getattr(module, "eps", None)
    if eps is None:
        eps = getattr(module, "variance_epsilon", None)  # what transformers call it
    return nn.functional.rms_norm(x.float(), list(shape), None, eps)


def _is_norm(module: nn.Module) -> bool:
    """LayerNorm, or an RMSNorm of torch or of anybody who calls it that."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm")


def _less(y: Tensor, module: nn.Module, d: int) -> Tensor:
    bias = getattr(module, "bias", None)
    if not isinstance(bias, Tensor):
        return y
    shape = [1] * y.dim()
    if bias.dim() > 1:  # a LayerNorm over several dimensions
        return y - bias
    shape[d] = -1
    return y - bias.view(shape)


def _norm(a: Tensor, b: Tensor | None, d: int) -> Tensor:
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    difference = a.to(wide) if b is None else a.to(wide) - b.to(wide)
    found: Tensor = torch.linalg.vector_norm(difference, dim=d)
    return found
