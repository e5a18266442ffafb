"""The local part of a tensor: what of it lies on this rank, without any communication."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeGuard

import torch
from torch import Tensor, nn

from sonde._torch_internals.placements import waited_for
from sonde.kernels.torch import Unsupported

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_PLAIN: Final = (Tensor, nn.Parameter)
_MODULE: Final = "torch.distributed.tensor"


def dtensor_type() -> type[DTensor] | None:
    """Return the class of distributed tensors; None before anything has loaded it."""
    loaded = sys.modules.get(_MODULE)
    return None if loaded is None else getattr(loaded, "DTensor", None)


def is_distributed(x: object) -> TypeGuard[DTensor]:
    """Whether this is a `DTensor`."""
    kind = dtensor_type()
    return kind is not None and isinstance(x, kind)


def local(x: Tensor) -> Tensor:
    """Return the values on this rank, without padding; a tensor of any other kind as it is.

    Raises:
        Unsupported: if ranks have yet to add up what they hold.
    """
    if type(x) in _PLAIN:
        return x
    if is_distributed(x):
        if any(p.is_partial() for p in x.placements):
            raise Unsupported("partial sums of a DTensor: its values need an all-reduce")
        with torch.no_grad():
            x = x.to_local()
    return waited_for(x)


def locals_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the local part of each tensor.

    Raises:
        Unsupported: if ranks have yet to add up what they hold.
    """
    return [x if type(x) in _PLAIN else local(x) for x in tensors]


def local_gradients(
    parameters: Sequence[Tensor], skip: Callable[[int, str], None]
) -> list[Tensor | None]:
    """Return the local part of each gradient, None where there is none.

    `skip` takes the places of those that ranks have yet to add up, and why they are left out.
    """
    grads = [p.grad for p in parameters]
    for i, grad in enumerate(grads):
        if grad is not None and type(grad) not in _PLAIN:
            try:
                grads[i] = local(grad)
            except Unsupported as reason:
                grads[i] = None
                skip(i, str(reason))
    return grads
