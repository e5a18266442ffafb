"""Operations on traced values that callbacks offer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def stack(values: Sequence[object]) -> Tensor:
    tensors = [_tensor(v) for v in values]
    return torch.stack(tensors) if tensors else torch.tensor([])


def stack_padded(values: Sequence[object]) -> Tensor:
    tensors = [_tensor(v) for v in values]
    if not tensors:
        return torch.tensor([])
    dims = max(t.dim() for t in tensors)
    whole = [t.reshape((1,) * (dims - t.dim()) + tuple(t.shape)) for t in tensors]
    shape = [max(sizes) for sizes in zip(*(t.shape for t in whole), strict=True)]
    dtype = whole[0].dtype
    for t in whole[1:]:
        dtype = torch.promote_types(dtype, t.dtype) if t.dtype != dtype else dtype
    stacked = torch.zeros((len(whole), *shape), dtype=dtype, device=whole[0].device)
    for row, t in zip(stacked, whole, strict=True):
        row[tuple(slice(n) for n in t.shape)] = t.to(device=stacked.device, dtype=dtype)
    return stacked


def mean(value: object, dims: tuple[int, ...]) -> Tensor:
    tensor = _tensor(value)
    if not tensor.is_floating_point() and not tensor.is_complex():
        tensor = tensor.to(torch.float64)
    elif tensor.element_size() == 1:
        tensor = tensor.to(torch.float32)
    return tensor.mean(dim=dims) if dims else tensor.mean()


def _tensor(value: object) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(value)
