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

from sonde._torch_internals.modules import BATCH_NORMS, CONVOLUTIONS, INSTANCE_NORMS

_CHANNELS_SECOND: Final = (*CONVOLUTIONS, *BATCH_NORMS, *INSTANCE_NORMS, nn.GroupNorm)
_LINEAR: Final = (nn.Linear, *CONVOLUTIONS)


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
    room = torch.empty(t.A.shape, dtype=_wide(t.A.dtype), device=t.A.device)
    found = {"effective": _norm(_difference(t.A, t.C, room), d)}
    if isinstance(t.module, nn.Embedding | nn.EmbeddingBag):
        return found
    own = {f"weight/{k}": y for k, y in _without_bias(t, found["effective"], room, d).items()}
    found["propagating"] = _norm(_difference(t.C, t.B, room), d)
    if own:
        own["weight/propagating"] = found["propagating"]  # the bias is in both, and cancels
    if t.x is not None and t.x.is_floating_point() and t.x.dim() > 0:
        found |= _of_input(t.x, t.first_x, feature_dim(t.module, t.x))
        if _is_norm(t.module):
            mine = _hat(t.module, t.x)
            its = None if t.first_x is None else _hat(t.first_module, t.first_x)
            own |= {f"weight/{k}": y for k, y in _of_input(mine, its, -1).items()}
    return found | own


def _of_input(x: Tensor, first: Tensor | None, d: int) -> dict[str, Tensor]:
    found = {"input": _norm(x, d)}
    if first is not None:
        found["input_drift"] = _norm(x.to(_wide(x.dtype)) - first, d)
    return found


def feature_dim(module: nn.Module, x: Tensor) -> int:
    """The dimension that norms go over."""
    if not isinstance(module, _CHANNELS_SECOND):
        return -1
    # A convolution without a batch has its channels in front.
    spatial = getattr(module, "kernel_size", ())
    is_single = isinstance(module, CONVOLUTIONS) and x.dim() == len(spatial) + 1
    return 0 if is_single else 1


def _without_bias(t: Triple, effective: Tensor, room: Tensor, d: int) -> dict[str, Tensor]:
    """The same terms of the weight alone: for layers whose output is a product plus a bias.

    `room` holds A - C, and may be used up.
    """
    if not isinstance(t.module, _LINEAR) and not _is_norm(t.module):
        return {}
    if getattr(t.module, "weight", None) is None:
        return {}
    mine, its = _bias(t.module, t.A, d), _bias(t.first_module, t.A, d)
    if mine is None or its is None:
        return {
            "effective": effective,
            "output": _norm(t.A, d),
            "first_output": _norm(t.B, d),
        }
    return {
        "effective": _norm(room.sub_(mine - its), d),
        "output": _norm(_difference(t.A, mine, room), d),
        "first_output": _norm(_difference(t.B, its, room), d),
    }


def _hat(module: nn.Module, x: Tensor) -> Tensor:
    if isinstance(module, nn.LayerNorm):
        return nn.functional.layer_norm(x, module.normalized_shape, None, None, module.eps)
    shape = getattr(module, "normalized_shape", None) or x.shape[-1:]
    eps = getattr(module, "eps", None)
    if eps is None:
        eps = getattr(module, "variance_epsilon", None)  # what transformers call it
    return nn.functional.rms_norm(x.float(), list(shape), None, eps)


def _is_norm(module: nn.Module) -> bool:
    """LayerNorm, or an RMSNorm of torch or any class of that name."""
    return isinstance(module, nn.LayerNorm) or type(module).__name__.endswith("RMSNorm")


def _bias(module: nn.Module, y: Tensor, d: int) -> Tensor | None:
    """The bias of the module, in the shape in which it is added to its output."""
    bias = getattr(module, "bias", None)
    if not isinstance(bias, Tensor):
        return None
    bias = bias.detach().to(_wide(bias.dtype))
    if bias.dim() > 1:  # a LayerNorm over several dimensions
        return bias
    shape = [1] * y.dim()
    shape[d] = -1
    return bias.view(shape)


def _norm(x: Tensor, d: int) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=d, dtype=_wide(x.dtype))
    return found


def _difference(a: Tensor, b: Tensor, room: Tensor) -> Tensor:
    """The difference, in memory that is there already: new memory costs a CPU as much.

    It is as wide as the wider of the two, so one of them has to be: the other is not copied.
    """
    b = b.to(_wide(b.dtype))
    if torch.promote_types(a.dtype, b.dtype) == room.dtype and a.shape == room.shape:
        return torch.sub(a, b, out=room)
    return a - b


def _wide(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
