"""Tensors and modules of torch, as tracing sees them. Nothing here waits for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sonde._signals import pass_on
from sonde._torch_internals.modules import children, own_buffers, own_parameters
from sonde._torch_internals.tensors import HAS_VERSIONS, is_wrapped, version_of
from sonde.kernels import c
from sonde.kernels.torch import name_of
from sonde.tracing.values import Flag, ObjectCopy

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BITS: Final = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
"""What most tensors are made of, and integers of that size."""

_CONSTANTS: Final = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_MAX_ROWS: Final = 1024

_HAS_C: Final = c.available()
_PLAIN: Final = (Tensor, nn.Parameter)


class TorchTensorOps:
    """See `sonde.tracing.values.TensorOps`."""

    is_tensor = staticmethod(Tensor.__instancecheck__)
    """`isinstance` without a call of Python: it is asked for several times per value."""

    def is_module(self, value: object) -> bool:
        return isinstance(value, nn.Module)

    def is_constant(self, value: object) -> bool:
        return isinstance(value, _CONSTANTS)

    def refusal(self, tensor: Tensor) -> str | None:
        if type(tensor) is Tensor and tensor.is_cpu and not is_wrapped(tensor):
            return None
        if tensor.is_meta:
            return "it is a meta tensor, which has no values."
        if is_wrapped(tensor):
            return "it is inside a `torch.func` transformation. Trace a variable outside it."
        if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
            return "it is being captured into a CUDA graph. Trace before capturing."
        if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
            return "it stands for a tensor while the model is exported or compiled."
        return None

    def size_bytes(self, tensor: Tensor) -> int:
        return tensor.numel() * tensor.element_size()

    def version(self, tensor: Tensor) -> int | None:
        try:
            return version_of(tensor) if HAS_VERSIONS else None
        except RuntimeError as error:  # of an inference tensor
            pass_on(error)
            return None

    def copy(self, tensor: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            # Not an inference tensor, which could not be changed by who gets it.
            with torch.inference_mode(mode=False):
                return _copy(tensor)
        if type(tensor) in _PLAIN and tensor.layout is torch.strided and tensor.is_contiguous():
            return (tensor.detach() if tensor.requires_grad else tensor).clone()
        return _copy(tensor)

    def same(self, kept: Tensor, tensor: Tensor) -> bool | Flag:
        if type(tensor) in _PLAIN and tensor.is_cpu and kept.is_cpu and kept.dtype is tensor.dtype:
            bits = _BITS.get(tensor.dtype)
            is_dense = tensor.layout is torch.strided and not tensor.is_nested
            if bits is not None and is_dense and not tensor.is_neg():
                at = tensor.data_ptr() if tensor.is_contiguous() and not is_wrapped(tensor) else 0
                if _HAS_C and at and kept.is_contiguous():  # what stands for zeros has no address
                    return kept.shape == tensor.shape and c.same(kept.data_ptr(), at, kept.nbytes)
                now = tensor.detach() if tensor.requires_grad else tensor
                return torch.equal(kept.view(bits), now.view(bits))
        now = tensor.detach()
        if type(tensor) not in _PLAIN:
            now = local(now)
        if now.shape != kept.shape or now.dtype != kept.dtype or now.device != kept.device:
            return False
        if not _is_strided(now) or kept.layout is not torch.strided:
            return False
        a, b = _bits(kept), _bits(now)
        return torch.equal(a, b) if now.device.type == "cpu" else torch.ne(a, b).any()

    def items(self, value: object) -> list[tuple[str, object]] | None:
        if isinstance(value, nn.Module):
            return _parts_of(value)
        if isinstance(value, Tensor):
            if value.dim() == 0 or value.is_nested:
                return []
            return [(str(n), value[n]) for n in range(min(len(value), _MAX_ROWS))]
        return None

    def member(self, value: object, name: str) -> tuple[object] | None:
        if isinstance(value, Tensor) and name.lstrip("-").isdecimal() and value.dim():
            n = int(name)
            return (value[n],) if -len(value) <= n < len(value) else None
        return None


def local(tensor: Tensor) -> Tensor:
    """The part of a distributed tensor that lies in this process, or the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return to_local() if to_local is not None else tensor


def map_tensors(value: object, change: Callable[[Tensor], object]) -> object:
    """A kept value, nested as it was traced, with each tensor in it replaced."""
    if isinstance(value, Tensor):
        return change(value)
    match value:
        case dict():
            return {k: map_tensors(v, change) for k, v in value.items()}
        case tuple() if hasattr(value, "_fields"):
            return tuple.__new__(type(value), [map_tensors(v, change) for v in value])
        case list() | tuple() | set() | frozenset():
            return type(value)(map_tensors(v, change) for v in value)
        case ObjectCopy():
            fields = {k: map_tensors(v, change) for k, v in value.fields.items()}
            return ObjectCopy(value.type_name, fields, value.text)
    return value


def tensors_in(value: object) -> list[Tensor]:
    """All tensors in a kept value."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def plain(tensor: Tensor) -> Tensor:
    """The same values in a dense tensor on the host, for writing."""
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(0.0)
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.dtype is torch.complex32:
        tensor = tensor.to(torch.complex64)
    return tensor.resolve_conj().resolve_neg().cpu().contiguous()


def to_numpy(tensor: Tensor) -> tuple[NDArray[np.generic], str]:
    """The values, with what numpy has no dtype for as float32, and the name of the true dtype."""
    found = plain(tensor)
    name = name_of(found.dtype)
    if found.dtype is torch.bfloat16 or name.startswith("float8"):
        found = found.to(torch.float32)
    return found.numpy(), name


def raw(tensor: Tensor) -> NDArray[np.generic]:
    """The bytes of a plain tensor."""
    if tensor.numel() == 0:
        return np.empty(0, np.uint8)
    return tensor.reshape(-1).view(torch.uint8).numpy()


def from_raw(dtype: str, shape: tuple[int, ...], data: bytes | bytearray | memoryview) -> Tensor:
    """A tensor from its bytes."""
    kind = getattr(torch, dtype)
    array = np.frombuffer(bytearray(data), np.uint8)
    if array.size == 0:
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(array).view(kind).reshape(shape)


def _copy(tensor: Tensor) -> Tensor:
    found = local(tensor.detach())
    return (
        found.clone(memory_format=torch.contiguous_format) if _is_strided(found) else found.clone()
    )


def _is_strided(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_quantized


def _bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that NaN equals NaN and equality is that of bits."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.view(_INTEGERS[tensor.element_size()])


def _parts_of(module: nn.Module) -> list[tuple[str, object]]:
    """Parameters, buffers, children and public attributes, in that order."""
    found: dict[str, object] = {}
    for group in (own_parameters(module), own_buffers(module), children(module)):
        found.update(group)
    for name, value in vars(module).items():
        if not name.startswith("_"):
            found.setdefault(name, value)
    return list(found.items())
