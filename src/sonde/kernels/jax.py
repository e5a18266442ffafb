"""The JAX dialect: sketches of arrays as an operation inside `jit`.

`sketch` returns rows as `layout` has them, as pairs of uint32 words: JAX has no 64-bit integers
unless asked. On the CPU and on CUDA XLA calls the kernels behind `c` and `cuda` through its foreign
function interface; elsewhere, and where there is no compiler, `xla.py` does it with plain
operations. Every way gives the same counts, extrema and bins.
"""

from __future__ import annotations

import ctypes
import logging
import math
from collections.abc import Callable, Collection, Sequence
from functools import cache, partial, reduce
from typing import Final, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from sonde.kernels import c, cuda, xla
from sonde.kernels.layout import WORDS, Table

_LOG: Final = logging.getLogger("sonde")

Kernel = Literal["c", "cuda", "xla"]

ROW: Final = 2 * WORDS
"""uint32 words of a row."""

_TARGET: Final = "sonde_sketch"

_WIDENED: Final = frozenset(
    {
        *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float4_e2m1fn"),
        *("int2", "uint2", "int4", "uint4"),
    }
)
"""Formats that the fused kernels do not read; float32 holds all their values."""


class Unreadable(Exception):  # noqa: N818  # not an error: a reason to skip, counted in the run
    """An array that cannot be sketched; the text says why."""


def kernel_for(platform: str) -> Kernel:
    """The best kernel for a platform of JAX's: `cpu`, `cuda` (or `gpu`), `tpu`."""
    if platform == "cpu":
        return "c" if _registered_cpu() else "xla"
    if platform in ("cuda", "gpu"):
        return "cuda" if _registered_cuda() else "xla"
    return "xla"


def check(x: Array) -> None:
    """Raise `Unreadable` if there is no way to sketch an array like that, traced or not."""
    dtype = x.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        raise Unreadable(f"dtype {dtype}: it has no numbers")
    if dtype.name == "float0":
        raise Unreadable("dtype float0: it has no values")


def sketch(*arrays: Array, kernel: Kernel, parts: int = 1) -> Array:
    """Rows of the sketches of arrays, (n, ROW) words. Every array must pass `check`.

    With `parts`, each array has that many rows, one for each part of its first dimension.
    """
    if not arrays:
        return jnp.zeros((0, ROW), jnp.uint32)
    if kernel == "xla":
        pieces = [p for x in arrays for p in (jnp.split(x, parts) if parts > 1 else [x])]
        return jnp.stack([xla.sketch(x) for x in pieces])
    _REGISTER[kernel]()
    ready = [_readable(jnp.asarray(x), kernel) for x in arrays]
    result = jax.ShapeDtypeStruct((len(ready) * parts, ROW), jnp.uint32)
    rows: Array = jax.ffi.ffi_call(_TARGET, result)(*ready)
    return rows


def table_of(rows: Array) -> Table:
    """Rows on the host as a table; a view where they already lie there.

    Waits for the device.
    """
    words: NDArray[np.uint32] = np.ascontiguousarray(np.asarray(rows), dtype=np.uint32)
    return words.reshape(-1, ROW).view(np.int64)


def _readable(x: Array, kernel: Kernel) -> Array:
    name = x.dtype.name
    if name in _WIDENED:
        return x.astype(jnp.float32)
    if kernel == "cuda":
        if jnp.iscomplexobj(x):
            return xla.modulus(x)
        if name == "float8_e8m0fnu":
            return xla.powers_of_two(x)
    return x


@cache
def _registered_cpu() -> bool:
    if not c.available():
        return False
    return _register(c.xla_handlers()[0], "cpu")


@cache
def _registered_cuda() -> bool:
    if not c.available():
        return False
    try:
        for device in jax.local_devices(backend="cuda"):
            _load(device)
    except (cuda.Unavailable, RuntimeError, OSError) as error:
        _LOG.warning("arrays on CUDA devices are sketched by plain XLA operations: %s", error)
        return False
    return _register(c.xla_handlers()[1], "CUDA")


_REGISTER: Final = {"c": _registered_cpu, "cuda": _registered_cuda}


def _register(address: int, platform: str) -> bool:
    handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)
    try:
        jax.ffi.register_ffi_target(_TARGET, jax.ffi.pycapsule(handler), platform=platform)
    except Exception as error:  # of whichever kind: XLA does not take it
        _LOG.warning("XLA does not take Sonde's kernel, plain operations serve: %s", error)
        return False
    return True


def _load(device: jax.Device) -> None:
    """Load the kernel into the context that JAX uses on a device, its primary one."""
    driver = ctypes.CDLL("libcuda.so.1")
    number, context = ctypes.c_int(), ctypes.c_void_p()
    ordinal = int(device.local_hardware_id or 0)
    major, _, minor = str(device.compute_capability).partition(".")
    for failed in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(number), ordinal),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), number),
        driver.cuCtxPushCurrent_v2(context),
    ):
        if failed:
            raise cuda.Unavailable(f"CUDA has no context on device {ordinal}: error {failed}")
    try:
        loaded = cuda.load(ordinal, (int(major), int(minor)), int(device.core_count))
        c.xla_device(np.array(loaded.for_xla(), dtype=np.int64))
    finally:
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


# -- several devices ---------------------------------------------------------------------------


def sketch_shards(x: Array, *, kernel: Kernel, mesh: Mesh) -> Array:
    """Rows of an array that may be spread over the devices of a mesh: one row per device, and the
    sketch of the array is what they merge to.

    Each device reads the part that it holds and keeps its row. Where parts are copies of each
    other, one has a row and the others are empty.
    """
    if kernel != "xla":
        x = _readable(x, kernel)
    rows = _sharded(kernel, mesh.size)(x)
    apart = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    kept: Array = jax.lax.with_sharding_constraint(rows, apart)
    return kept


def once(rows: Array, copies: Collection[str]) -> Array:
    """The rows of a device inside `shard_map`; empty where it has a copy along these axes of what
    another device has."""
    if not copies:
        return rows
    is_first = reduce(jnp.logical_and, [jax.lax.axis_index(a) == 0 for a in sorted(copies)])
    return jnp.where(is_first, rows, xla.empty_rows(1)[0])


@cache
def _sharded(kernel: Kernel, n_devices: int) -> Callable[[Array], Array]:
    def local(x: Array, n_rows: int) -> Array:
        own = sketch(x, kernel=kernel)
        return jnp.concatenate([own, xla.empty_rows(n_rows - 1)]) if n_rows > 1 else own

    def spec_of(mesh: Mesh, x: Array) -> PartitionSpec:
        """How an array is split. A dimension that the mesh does not divide is left whole: parts
        would be filled up with values that are not the array's."""
        found = []
        for size, part in zip(x.shape, getattr(x.sharding, "spec", ()), strict=False):
            n = math.prod(mesh.shape[axis] for axis in _names(part))
            found.append(part if size % n == 0 else None)
        return PartitionSpec(*found)

    def rows_of(mesh: Mesh, x: Array) -> tuple[NamedSharding, int]:
        """Where rows are, and in how many parts the array is."""
        axes = tuple(axis for part in spec_of(mesh, x) for axis in _names(part))
        n_parts = math.prod(mesh.shape[axis] for axis in axes)
        return NamedSharding(mesh, PartitionSpec(axes or None)), n_parts

    def partition(mesh: Mesh, args: Sequence[Array], _result: Array) -> tuple[object, ...]:
        where, n_parts = rows_of(mesh, args[0])
        there = NamedSharding(mesh, spec_of(mesh, args[0]))
        return mesh, partial(local, n_rows=n_devices // n_parts), where, (there,)

    def infer(mesh: Mesh, args: Sequence[Array], _result: Array) -> NamedSharding:
        return rows_of(mesh, args[0])[0]

    def rule(_mesh: Mesh, values: Sequence[Array], _results: object) -> str:
        rank = len(values[0].shape)
        return f"{' '.join(f'd{i}' for i in range(rank))} -> rows words"

    made = custom_partitioning(lambda x: local(x, n_devices))
    made.def_partition(partition=partition, infer_sharding_from_operands=infer, sharding_rule=rule)
    sharded: Callable[[Array], Array] = made
    return sharded


def _names(part: object) -> tuple[str, ...]:
    """The axes of a mesh that one dimension is split over."""
    if part is None:
        return ()
    return part if isinstance(part, tuple) else (str(part),)
