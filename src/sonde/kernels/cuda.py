"""The CUDA kernel: one fused pass over a tensor in GPU memory that adds its sketch into a row.

The source ships with the package (cuda/sketch.cu) and is compiled at first use by NVRTC, which
every CUDA build of torch brings; the result is cached on disk. No framework is known here: tensors,
rows and streams are addresses, so it serves whoever has them. All entries only launch; none waits.

    kernel = load(device=0)
    kernel.one("float32", x, n, row, repeat=1, stream=stream)
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
import tempfile
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

from sonde.kernels.row import ROW_BYTES, WORDS

DTYPES: Final[dict[str, int]] = {
    name: code
    for code, name in enumerate(
        (
            *("float32", "float64", "float16", "bfloat16"),
            *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
            *("int8", "uint8", "bool", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
        )
    )
}
"""Number formats by name, with their codes in the source."""

_VECTORS: Final = {
    "float32": "one_F32",
    "float16": "one_F16",
    "bfloat16": "one_BF16",
    "float8_e4m3fn": "one_E4M3FN",
    "float8_e5m2": "one_E5M2",
}
"""Formats with an entry that reads 16 bytes at a time; the others go value by value."""

THREADS: Final = 384
"""Threads per block, as in the source."""

VALUES_PER_BLOCK: Final = 8192
LARGE: Final = 12 << 20
"""Values from which on two blocks per multiprocessor pay for their end: 25M float32 31.7 us against
36.6 us with one, 6M bfloat16 13.0 us against 11.7 us; H200, 2026-11."""

STRETCH: Final = 32768
"""Values per stretch of a table: fine enough to share 100M values out evenly over 264 blocks."""

MAX_DIMENSIONS: Final = 5
STRETCH_WORDS: Final = 6
PLAIN, COPY, DIFFERENCE = range(3)


class Unavailable(Exception):  # noqa: N818  # a reason to use another kernel, not an error
    """There is no way to compile or load the kernel here; the text says why."""


@dataclass(slots=True)
class _Entry:
    """A function on the device with room for its arguments, so that a launch allocates nothing."""

    function: c_void_p
    values: list[Any]
    pointers: Any


class Kernel:
    """The compiled kernel on one device. Not thread-safe: the owner serialises launches."""

    def __init__(
        self,
        device: int,
        library: Any,
        image: bytes,
        capability: tuple[int, int],
        multiprocessors: int,
    ) -> None:
        self.device = device
        self._multiprocessors = multiprocessors
        self._cuda = library
        self._launch = library.cuLaunchKernel
        module = c_void_p()
        _check(library, library.cuModuleLoadData(byref(module), c_char_p(image)), "load")
        pointer, long, number = c_void_p, c_uint64, c_int
        signature = [pointer, long, pointer, long, pointer]
        self._one = {
            name: self._entry(module, entry, signature)
            for name, entry in _VECTORS.items()
            if name != "float8_e4m3fn" or capability >= (8, 9)
        }
        self._view = self._entry(
            module, "view", [pointer, long, number, _Shape, pointer, long, pointer]
        )
        self._many = [
            self._entry(module, name, [pointer, number, pointer])
            for name in ("many_plain", "many_copy", "many_difference")
        ]
        self._take = self._entry(module, "take", [pointer, pointer, long])

    def one(
        self, dtype: str, x: int, n: int, row: int, *, repeat: int, stream: int, gate: int = 0
    ) -> None:
        """Add `n` values that lie dense in memory to a row, each seen `repeat` times."""
        entry = self._one.get(dtype)
        if entry is None:
            self.view(dtype, x, (n,), (1,), row, repeat=repeat, stream=stream, gate=gate)
            return
        values = entry.values
        values[0].value = x
        values[1].value = n
        values[2].value = row
        values[3].value = repeat
        values[4].value = gate
        self._run(entry, self._blocks(n), stream)

    def view(
        self,
        dtype: str,
        x: int,
        sizes: tuple[int, ...],
        strides: tuple[int, ...],
        row: int,
        *,
        repeat: int,
        stream: int,
        gate: int = 0,
    ) -> None:
        """Add the values of a view of up to five dimensions to a row."""
        n = 1
        shape = _Shape()
        for i in range(MAX_DIMENSIONS):
            inner = i - MAX_DIMENSIONS + len(sizes)
            shape.size[i] = sizes[inner] if inner >= 0 else 1
            shape.stride[i] = strides[inner] if inner >= 0 else 0
            n *= shape.size[i]
        values = self._view.values
        values[0].value = x
        values[1].value = n
        values[2].value = DTYPES[dtype]
        ctypes.memmove(byref(values[3]), byref(shape), ctypes.sizeof(shape))
        values[4].value = row
        values[5].value = repeat
        values[6].value = gate
        self._run(self._view, self._blocks(n), stream)

    def many(self, mode: int, table: int, n_stretches: int, *, stream: int, gate: int = 0) -> None:
        """Add all stretches of a table (in device memory) to their rows.

        A stretch is six words: address, address of the copy or of the older version (or 0), length,
        address of the row, format, nothing. Stretches of one tensor follow each other.
        """
        entry = self._many[mode]
        values = entry.values
        values[0].value = table
        values[1].value = n_stretches
        values[2].value = gate
        self._run(entry, min(n_stretches, 2 * self._multiprocessors), stream)

    def take(self, rows: int, n_rows: int, to: int, *, stream: int) -> None:
        """Copy rows to another place in device memory (or nowhere, 0) and empty them."""
        values = self._take.values
        values[0].value = rows
        values[1].value = to
        values[2].value = n_rows * WORDS
        self._run(self._take, min(n_rows * 4, 8 * self._multiprocessors), stream)

    def _entry(self, module: c_void_p, name: str, types: list[Any]) -> _Entry:
        function = c_void_p()
        found = self._cuda.cuModuleGetFunction(byref(function), module, name.encode())
        _check(self._cuda, found, name)
        values = [t() for t in types]
        addresses = [ctypes.cast(ctypes.pointer(v), c_void_p) for v in values]
        return _Entry(function, values, (c_void_p * len(values))(*addresses))

    def _blocks(self, n: int) -> int:
        most = self._multiprocessors * (2 if n > LARGE else 1)
        return min(max(n // VALUES_PER_BLOCK, 1), most)

    def _run(self, entry: _Entry, blocks: int, stream: int) -> None:
        failed = self._launch(
            entry.function, blocks, 1, 1, THREADS, 1, 1, 0, stream, entry.pointers, None
        )
        if failed:
            _check(self._cuda, failed, "launch")


class _Shape(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_int64 * MAX_DIMENSIONS),
        ("stride", ctypes.c_int64 * MAX_DIMENSIONS),
    )


@cache
def load(device: int, capability: tuple[int, int], multiprocessors: int) -> Kernel:
    """The kernel on that device, compiled or taken from the cache.

    The device's context must exist and be current (any allocation on it makes it so).

    Raises:
        Unavailable: if NVRTC or the driver cannot be used.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Unavailable("the CUDA driver is not there") from error
    driver.cuLaunchKernel.argtypes = [
        c_void_p,
        *[ctypes.c_uint] * 7,
        c_void_p,
        c_void_p,
        c_void_p,
    ]
    return Kernel(device, driver, image(capability), capability, multiprocessors)


def image(capability: tuple[int, int]) -> bytes:
    """Machine code for that compute capability: from the cache, else compiled and cached."""
    source = (resources.files("sonde.kernels") / "cuda" / "sketch.cu").read_bytes()
    library = _nvrtc()
    major, minor = c_int(), c_int()
    library.nvrtcVersion(byref(major), byref(minor))
    key = hashlib.sha256(source + repr((capability, major.value, minor.value)).encode())
    path = _cache_folder() / f"sketch-{key.hexdigest()[:24]}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass
    compiled = _compile(library, source, capability)
    _keep(path, compiled)
    return compiled


def _compile(library: Any, source: bytes, capability: tuple[int, int]) -> bytes:
    program = c_void_p()
    made = library.nvrtcCreateProgram(byref(program), source, b"sketch.cu", 0, None, None)
    if made:
        raise Unavailable(f"NVRTC failed with error {made}")
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17"]
    encoded = (c_char_p * len(options))(*[o.encode() for o in options])
    failed = library.nvrtcCompileProgram(program, len(options), encoded)
    if failed:
        raise Unavailable(f"NVRTC could not compile the kernel: {_log(library, program)}")
    size = c_size_t()
    library.nvrtcGetCUBINSize(program, byref(size))
    compiled = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, compiled)
    library.nvrtcDestroyProgram(byref(program))
    return compiled.raw


def _log(library: Any, program: c_void_p) -> str:
    size = c_size_t()
    library.nvrtcGetProgramLogSize(program, byref(size))
    text = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")[:2000]


def _nvrtc() -> Any:
    """NVRTC, wherever it lies: loaded already, beside torch, or where the system looks."""
    for name in _nvrtc_places():
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        library.nvrtcCreateProgram.argtypes = [
            POINTER(c_void_p),
            c_char_p,
            c_char_p,
            c_int,
            c_void_p,
            c_void_p,
        ]
        library.nvrtcCompileProgram.argtypes = [c_void_p, c_int, c_void_p]
        for entry in ("nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetProgramLogSize"):
            getattr(library, entry).argtypes = [c_void_p, c_void_p]
        library.nvrtcGetProgramLog.argtypes = [c_void_p, c_void_p]
        return library
    raise Unavailable("NVRTC was not found")


def _nvrtc_places() -> Iterator[str]:
    for folder in sys.path:
        packages = Path(folder) / "nvidia"
        if packages.is_dir():
            found = packages.glob("*/lib/libnvrtc.so.*")
            yield from (str(p) for p in sorted(found, reverse=True) if "builtins" not in p.name)
    yield from ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sonde"


def _keep(path: Path, compiled: bytes) -> None:
    """Put the result into the cache; without a place to write, it is compiled again next time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(compiled)
        os.replace(file.name, path)
    except OSError:
        return


def _check(library: Any, result: int, doing: str) -> None:
    if result:
        text = c_char_p()
        library.cuGetErrorString(result, byref(text))
        said = text.value.decode() if text.value else f"error {result}"
        raise Unavailable(f"CUDA could not {doing}: {said}")


def row_address(base: int, index: int) -> int:
    """Address of a row in a table that begins at `base`."""
    return base + index * ROW_BYTES
