"""The torch dialect: what tensors can be sketched and how they are read, and a kernel of plain
operations that works on any device.

`readable` turns any tensor into one that a fused kernel can read as it lies in memory: strided,
real, of a known dtype, without repetition. `add` is the kernel: no host synchronisation, no
data-dependent shapes, the same numbers as `reference` on every device with float64 (on one without,
sums are float32). Being plain arithmetic, it sees what arithmetic sees: on a processor that was
told to flush subnormals they are zeros.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from sonde._torch_internals.tensors import (
    HAS_TRANSFORMS,
    OutOfReachError,
    is_wrapped,
    outside_transforms,
    stands_for_zeros,
    transform_level,
    unwrapped,
)
from sonde.kernels.layout import HEADER
from sonde.record import N_BINS

_STRIDED: Final = torch.strided

_CHUNK: Final = 1 << 22
"""Values per chunk of the plain kernel: bounds its temporaries to about 200 MB."""

DTYPES: Final[dict[torch.dtype, str]] = {
    dtype: name
    for name in (
        *("float32", "float64", "float16", "bfloat16"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"),
    )
    if (dtype := getattr(torch, name, None)) is not None
}
"""What fused kernels read, with the names that they know it by."""


Unsupported = OutOfReachError
"""A tensor that cannot be sketched; the text says why. A reason to skip, counted in the run."""


class Readable(NamedTuple):
    """A tensor as it lies in memory; each value counts `repeat` times, and `zeros` zeros more."""

    tensor: Tensor
    repeat: int
    zeros: int


def readable(x: Tensor) -> Readable:
    """The same values in a form that kernels read: strided, real, known dtype, nothing expanded.

    Copies only where there is no way around it (complex, quantised, uncoalesced sparse). Of a
    tensor inside a `torch.func` transformation, all values are read: of the whole batch that
    `vmap` hides, at any level.

    Raises:
        Unsupported: if there are no values to read, or no way to read them.
    """
    if is_plain(x):
        return Readable(x, 1, 0) if x.is_contiguous() else _without_expansion(x)
    with torch.no_grad(), outside_transforms():
        return _unusual(x)


def is_plain(x: Tensor) -> bool:
    """Whether the values can be read where they lie, given sizes and strides."""
    return (
        type(x) in _PLAIN
        and x.dtype in DTYPES
        and x.layout is _STRIDED
        and not x.is_meta
        and not x.is_nested
        and not x.is_neg()
        and not stands_for_zeros(x)
        and transform_level() is None
        and (HAS_TRANSFORMS or not is_wrapped(x))
    )


def is_dense(x: Tensor) -> bool:
    """Whether the values fill one stretch of memory, in whichever order."""
    if x.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def name_of(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def add(table: Tensor, row: int, x: Tensor) -> None:
    """Add the sketch of `x` to a row of an int64 table on the same device.

    `x` may be any tensor for which `readable` does not raise.
    """
    values, repeat, zeros = readable(x)
    with torch.no_grad(), outside_transforms():
        flat = values.detach().reshape(-1)
        for chunk in flat.split(_CHUNK) if flat.numel() > _CHUNK else (flat,):
            if chunk.numel():
                _add_chunk(table[row], chunk, repeat)
        if zeros:
            add_zeros(table[row], zeros)


def add_zeros(row: Tensor, n: int) -> None:
    """Add `n` zeros to a row: what a sparse tensor leaves out."""
    real = row.view(torch.float64)
    row[:2] += n
    row[HEADER] += n
    real[10].clamp_(max=0.0)
    real[11].clamp_(min=0.0)


def _add_chunk(row: Tensor, x: Tensor, repeat: int) -> None:
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    v = x.to(wide)
    bits = v.to(torch.float32).view(torch.int32)
    nan = v.isnan()
    finite = v.isfinite()
    size = torch.where(finite, v.abs(), 0)
    square = size * size
    inf = torch.inf

    # NaN goes to a bin past the last one, which is then dropped: no data-dependent shape.
    ids = torch.where(nan, N_BINS, (bits >> 21) & (N_BINS - 1)).to(torch.int64)
    bins = torch.zeros(N_BINS + 1, dtype=torch.int64, device=x.device)
    bins.scatter_add_(0, ids, torch.ones((), dtype=torch.int64, device=x.device).expand_as(ids))
    small = ((bits >> 23) & 0xFF == 0) & (bits & 0x7FFFFF != 0)
    counts = torch.stack(
        [
            torch.full((), x.numel(), dtype=torch.int64, device=x.device),
            (v == 0).sum(),
            nan.sum(),
            (v == inf).sum(),
            (v == -inf).sum(),
            small.sum(),
        ]
    )
    sums = torch.stack(
        [torch.where(finite, v, 0).sum(), size.sum(), square.sum(), (square * square).sum()]
    )
    lowest = torch.stack(
        [
            torch.where(finite, v, inf).amin(),
            torch.where(size > 0, size, inf).amin(),
        ]
    )
    highest = torch.where(finite, v, -inf).amax()

    real = row.view(torch.float64)
    row[:6] += counts * repeat
    real[6:10] += sums.to(real.dtype) * repeat
    real[10] = torch.minimum(real[10], lowest[0].to(real.dtype))
    real[11] = torch.maximum(real[11], highest.to(real.dtype))
    real[12] = torch.minimum(real[12], lowest[1].to(real.dtype))
    row[HEADER:] += bins[:N_BINS] * repeat


_PLAIN: Final = (Tensor, torch.nn.Parameter)

_SPARSE: Final = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)

_WIDENED: Final = frozenset({getattr(torch, "float8_e8m0fnu", None)})
"""Formats that float32 holds exactly and that not every kernel reads."""


def _unusual(x: Tensor) -> Readable:
    """Everything that is not a plain strided tensor of a known dtype."""
    while is_wrapped(x):
        x = unwrapped(x)
    if x.is_meta:
        raise Unsupported("meta tensor: it has no values")
    if x.is_nested:
        return _nested(x)
    if type(x) not in _PLAIN:
        if type(x).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            raise Unsupported(f"tensor subclass {type(x).__name__}")
        return _unusual(x.as_subclass(Tensor))
    return _unusual_format(x) if x.layout is torch.strided else _sparse(x)


def _unusual_format(x: Tensor) -> Readable:
    """A strided tensor whose values may be quantized, complex, or of any other dtype."""
    if x.is_quantized:
        return _unusual(x.dequantize())
    if x.is_complex():
        return _unusual(_moduli(x))
    if x.dtype in _WIDENED:
        return _unusual(x.to(torch.float32))
    if x.dtype not in DTYPES:
        raise Unsupported(f"dtype {name_of(x.dtype)}")
    if stands_for_zeros(x):
        return _unusual(x.clone())  # it stands for zeros; its copy has them
    return _without_expansion(x.resolve_neg())


def _sparse(x: Tensor) -> Readable:
    """The values that a sparse tensor holds, and how many zeros it stands for besides."""
    if x.layout is torch.sparse_coo:
        values = (x if x.is_coalesced() else x.coalesce()).values()
        return _with_zeros(values, x.numel() - values.numel())
    if x.layout in _SPARSE:
        return _with_zeros(x.values(), x.numel() - x.values().numel())
    raise Unsupported(f"layout {str(x.layout).removeprefix('torch.')}")


def _moduli(x: Tensor) -> Tensor:
    """In the next wider type: two parts that float32 holds may have a modulus that it does not."""
    if x.dtype is torch.complex32:
        return x.to(torch.complex64).abs()
    if x.dtype is torch.complex64 and x.device.type != "mps":  # which has no float64
        return x.to(torch.complex128).abs()
    return x.abs()


def _nested(x: Tensor) -> Readable:
    """The values of a nested tensor lie in one buffer, unless it is a view with holes."""
    if x.layout is torch.jagged:
        if x.lengths() is not None:  # type: ignore[attr-defined]  # of the jagged subclass
            raise Unsupported("nested tensor with holes")
        return _unusual(x.values())
    if not x.is_contiguous():
        raise Unsupported("nested tensor that is not contiguous")
    return _unusual(x.values())


def _with_zeros(values: Tensor, zeros: int) -> Readable:
    inner = _unusual(values)
    return Readable(inner.tensor, inner.repeat, inner.zeros + zeros)


def _without_expansion(x: Tensor) -> Readable:
    repeat = 1
    for dim, stride in enumerate(x.stride()):
        if stride == 0 and x.size(dim) > 1:
            repeat *= x.size(dim)
            x = x.narrow(dim, 0, 1)
    return Readable(x, repeat, 0)
