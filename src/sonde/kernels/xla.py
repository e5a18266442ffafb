"""A kernel of plain XLA operations: where no other can be had, and the same numbers as `reference`.

Everything that counts is decided on bit patterns, because XLA flushes subnormal numbers on most
devices; sums are float64, for which 64-bit numbers are enabled around single operations. Histograms
are a scatter, which is slow on a GPU: the fused kernels are for that.
"""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from sonde.kernels.layout import WORDS
from sonde.record import N_BINS

_SMALLEST: Final = 2.0**-149


def sketch(x: Array) -> Array:
    """The row of an array's sketch, as uint32 words."""
    with jax.enable_x64(True):
        return _sketch(jnp.asarray(x).reshape(-1))


def empty_rows(n: int) -> Array:
    """Rows of the empty sketch, without a constant: `custom_partitioning` takes none."""
    word = lax.broadcasted_iota(jnp.int32, (n, 2 * WORDS), 1)
    positive, negative = jnp.uint32(0x7FF00000), jnp.uint32(0xFFF00000)
    # The upper halves of words 10 to 12: infinity, its negative, infinity.
    is_positive = (word == 21) | (word == 25)
    return jnp.where(is_positive, positive, jnp.where(word == 23, negative, jnp.uint32(0)))


def merged(a: Array, b: Array) -> Array:
    """Rows of what the arrays behind two of them hold together. The last dimension is a row's."""
    with jax.enable_x64(True):
        whole = [
            lax.bitcast_convert_type(x.reshape(*x.shape[:-1], WORDS, 2), jnp.int64) for x in (a, b)
        ]
        real = [lax.bitcast_convert_type(x, jnp.float64) for x in whole]
        word = lax.broadcasted_iota(jnp.int32, whole[0].shape, whole[0].ndim - 1)
        sums = lax.bitcast_convert_type(real[0] + real[1], jnp.int64)
        least = lax.bitcast_convert_type(jnp.minimum(*real), jnp.int64)
        most = lax.bitcast_convert_type(jnp.maximum(*real), jnp.int64)
        joined = jnp.where((word == 10) | (word == 12), least, whole[0] + whole[1])
        joined = jnp.where(word == 11, most, joined)
        joined = jnp.where((word >= 6) & (word < 10), sums, joined)
        return lax.bitcast_convert_type(joined, jnp.uint32).reshape(a.shape)


def modulus(x: Array) -> Array:
    """Moduli of complex numbers in float64: two parts that float32 holds may have one that it does
    not."""
    with jax.enable_x64(True):
        real, imag = lax.real(x).astype(jnp.float64), lax.imag(x).astype(jnp.float64)
        size = jnp.hypot(real, imag)
        is_inf = jnp.isinf(real) | jnp.isinf(imag)
        return jnp.where(is_inf, jnp.inf, size)


def powers_of_two(x: Array) -> Array:
    """`float8_e8m0fnu` as float32, without an operation that flushes the smallest."""
    bits = lax.bitcast_convert_type(x, jnp.uint8).astype(jnp.uint32)
    wide = jnp.where(bits == 0, jnp.uint32(1 << 22), bits << 23)
    return lax.bitcast_convert_type(
        jnp.where(bits == 255, jnp.uint32(0x7FC00000), wide), jnp.float32
    )


def _sketch(x: Array) -> Array:
    value, bits = _wide(x)
    size_bits = bits & np.uint32(0x7FFFFFFF)
    order = lax.bitcast_convert_type(value, jnp.int64)
    size_order = order & np.int64(0x7FFFFFFFFFFFFFFF)
    infinite = np.int64(0x7FF0000000000000)
    is_nan = size_order > infinite
    is_inf = size_order == infinite
    is_negative = order < 0
    is_finite = ~(is_nan | is_inf)
    is_zero = size_order == 0
    is_small = (size_bits > 0) & (size_bits < np.uint32(0x00800000))
    counts = [
        jnp.full((), x.size, jnp.int64),
        *(
            flag.sum(dtype=jnp.int64)
            for flag in (is_zero, is_nan, is_inf & ~is_negative, is_inf & is_negative, is_small)
        ),
    ]
    finite = jnp.where(is_finite, value, 0.0)
    size = jnp.abs(finite)
    square = size * size
    sums = [finite.sum(), size.sum(), square.sum(), (square * square).sum()]
    # Of bit patterns: in order by themselves for numbers of one sign, reversed for the other.
    ranks = jnp.where(is_negative, np.int64(-1) - size_order, size_order)
    ranks = jnp.where(is_zero, 0, ranks)
    lowest = jnp.where(is_finite, ranks, infinite).min(initial=infinite)
    highest = jnp.where(is_finite, ranks, -1 - infinite).max(initial=-1 - infinite)
    least = jnp.where(is_finite & ~is_zero, size_order, infinite).min(initial=infinite)
    extrema = [_of_rank(lowest), _of_rank(highest), least]
    # NaN goes to a bin past the last one, which is then dropped.
    ids = jnp.where(is_nan, N_BINS, bits >> 21).astype(jnp.int32)
    bins = jnp.zeros(N_BINS + 1, jnp.int64).at[ids].add(1)[:N_BINS]
    header = [
        jnp.stack(counts),
        lax.bitcast_convert_type(jnp.stack(sums), jnp.int64),
        jnp.stack(extrema),
        jnp.zeros(3, jnp.int64),
    ]
    row = jnp.concatenate([*header, bins])
    return lax.bitcast_convert_type(row, jnp.uint32).reshape(2 * WORDS)


def _of_rank(rank: Array) -> Array:
    """The bit pattern of the float64 of that rank."""
    return jnp.where(rank < 0, (np.int64(-1) - rank) | np.int64(-(2**63)), rank)


def _wide(x: Array) -> tuple[Array, Array]:
    """Values as float64, and the bit patterns of their float32 images."""
    if jnp.iscomplexobj(x):
        x = modulus(x)
    if x.dtype.name == "float8_e8m0fnu":
        x = powers_of_two(x)
    if x.dtype == jnp.bfloat16:
        bits = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32) << 16
        return _value_of(bits), bits
    if x.dtype == jnp.float64 or (jnp.issubdtype(x.dtype, jnp.integer) and x.dtype.itemsize >= 4):
        value = x.astype(jnp.float64)
        return value, _image_of(value)
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    return _value_of(bits), bits


def _value_of(bits: Array) -> Array:
    """The float64 of a float32's bit pattern, exact for subnormal ones too."""
    plain = lax.bitcast_convert_type(bits, jnp.float32).astype(jnp.float64)
    sign = jnp.where(bits >> 31 == 0, 1.0, -1.0)
    small = (bits & np.uint32(0x7FFFFF)).astype(jnp.float64) * _SMALLEST * sign
    return jnp.where((bits >> 23) & np.uint32(0xFF) == 0, small, plain)


def _image_of(value: Array) -> Array:
    """The bit pattern of the float32 nearest to a float64, subnormal ones too."""
    plain = lax.bitcast_convert_type(value.astype(jnp.float32), jnp.uint32)
    sign = (lax.bitcast_convert_type(value, jnp.int64) < 0).astype(jnp.uint32) << 31
    small = jnp.round(jnp.abs(value) / _SMALLEST).astype(jnp.uint32) | sign
    return jnp.where(jnp.abs(value) < 2.0**-126, small, plain)
