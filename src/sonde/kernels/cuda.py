"""The CUDA kernel: one fused pass over a tensor in GPU memory that adds its sketch into a row.

The source ships with the package (cuda/sketch.cu) and is compiled at first use by NVRTC, which
every CUDA build of torch brings; the result is cached on disk. No framework is known here: tensors,
rows and streams are addresses, so it serves whoever has them. All entries only launch; none waits.

    kernel = load(device=0)
    kernel.one("float32", x, n, row, 1, stream)
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Final

from sonde.kernels import c
from sonde.kernels.layout import WORDS

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

WIDTHS: Final[dict[str, int]] = {
    name: int("".join(filter(str.isdigit, name.split("_")[0])) or 8) // 8 for name in DTYPES
}
"""Bytes of a value."""

_VECTORS: Final = {
    "float32": "one_F32",
    "float16": "one_F16",
    "bfloat16": "one_BF16",
    "float8_e4m3fn": "one_E4M3FN",
    "float8_e5m2": "one_E5M2",
}
"""Formats with an entry that reads 16 bytes at a time; the others go value by value."""

VECTOR: Final = 16
"""Bytes that the fast paths read at a time."""

THREADS: Final = 768
"""Threads per block: with up to 85 registers each, one block fills a multiprocessor."""

_BYTES_PER_BLOCK: Final = 16384
_VALUES_PER_BLOCK: Final = 2048

STRETCH: Final = 32768
"""Values per stretch of a table: fine enough to share 100M values out evenly over the blocks."""

SEVERAL: Final = 16
"""Tensors that `several` takes at most."""

_PIECE: Final = 4096
"""Values of a tensor that a block of `several` takes at least."""

_TOGETHER: Final = frozenset({"float32", "float16", "bfloat16"})
"""Formats that `several` reads."""

MAX_DIMENSIONS: Final = 5
STRETCH_WORDS: Final = 6
PLAIN, COPY, DIFFERENCE = range(3)

_PORTABLE: Final = 1
"""Of pinned memory: for the contexts of all devices."""

_PACKERS: Final = 256
"""Threads that pack a row."""

_CALLED: Final[dict[str, list[type]]] = {
    "cuEventRecord": [c_void_p, c_void_p],
    "cuMemsetD8Async": [c_uint64, ctypes.c_ubyte, c_size_t, c_void_p],
}
"""Functions of the driver that are called besides `cuLaunchKernel`, with what they take."""

_MEMORY: Final[dict[str, list[type]]] = {
    "cuMemAlloc_v2": [c_void_p, c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemHostAlloc": [c_void_p, c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
}
"""Those that give memory and take it back."""


class Unavailable(Exception):  # noqa: N818  # a reason to use another kernel, not an error
    """There is no way to compile or load the kernel here; the text says why."""


class _Several(ctypes.Structure):
    """What `several` takes, as it is in the source."""

    x: ctypes.Array[c_uint64]
    first: ctypes.Array[c_uint64]
    n: ctypes.Array[c_uint64]
    row: ctypes.Array[c_uint64]
    format: ctypes.Array[c_int]
    _fields_ = (
        ("x", c_uint64 * SEVERAL),
        ("first", c_uint64 * (SEVERAL + 1)),
        ("n", c_uint64 * SEVERAL),
        ("row", c_uint64 * SEVERAL),
        ("format", c_int * SEVERAL),
    )


class Kernel:
    """The compiled kernel on one device. Arguments are addresses; nothing here waits."""

    def __init__(
        self, driver: ctypes.CDLL, image: bytes, capability: tuple[int, int], multiprocessors: int
    ) -> None:
        self._driver = driver
        self._entry: int = ctypes.cast(driver.cuLaunchKernel, c_void_p).value or 0
        self._entries = {
            name: ctypes.cast(getattr(driver, name), c_void_p).value or 0 for name in _CALLED
        }
        self._multiprocessors = multiprocessors
        self._is_native = c.available()
        module = c_void_p()
        _check(driver, driver.cuModuleLoadData(byref(module), c_char_p(image)), "load the kernel")
        self._one = {
            name: (self._function(module, entry), _BYTES_PER_BLOCK // WIDTHS[name])
            for name, entry in _VECTORS.items()
            if name != "float8_e4m3fn" or capability >= (8, 9)
        }
        self._view = self._function(module, "view")
        self._take = self._function(module, "take")
        self._pack = self._function(module, "pack")
        self._several = self._function(module, "several")
        self._many = [
            self._function(module, name) for name in ("many_plain", "many_copy", "many_difference")
        ]

    def launcher(
        self,
    ) -> tuple[int, int, int, int, int, int, int, list[tuple[int, int, int, int]]]:
        """What is needed to launch `one` and `several` without Python, in the context that
        is current: where the driver's entries to launch and to ask for the context are, that
        context, the most blocks, threads per block, the function of `several` and the values of a
        piece; per format its code in C, its function, values per block, and its code here, -1 if
        `several` does not read it."""
        current, context = self._driver.cuCtxGetCurrent, c_void_p()
        _check(self._driver, current(byref(context)), "find the context")
        functions = [
            (c.DTYPES[name], f, per_block, DTYPES[name] if name in _TOGETHER else -1)
            for name, (f, per_block) in self._one.items()
        ]
        entry = ctypes.cast(current, c_void_p).value or 0
        at = (self._entry, entry, context.value or 0)
        return *at, self._multiprocessors, THREADS, self._several, _PIECE, functions

    def for_xla(self) -> list[int]:
        """What the handler that XLA calls launches, in the order in which xla.c lists it. The
        device's context must be current."""
        driver, context = self._driver, c_void_p()
        _check(driver, driver.cuCtxGetCurrent(byref(context)), "find the context")
        of_stream = ctypes.cast(driver.cuStreamGetCtx, c_void_p).value or 0
        return [
            *(self._entry, of_stream, context.value or 0),
            *(self._multiprocessors, THREADS, _PIECE),
            *(self._take, self._view, self._several),
            *(self._one.get(name, (0, 0))[0] for name in c.DTYPES),
            *(DTYPES.get(name, -1) for name in c.DTYPES),
        ]

    def one(
        self, dtype: str, x: int, n: int, row: int, repeat: int, stream: int, gate: int = 0
    ) -> None:
        """Add `n` values that lie dense in memory to a row, each seen `repeat` times."""
        entry = self._one.get(dtype)
        if entry is None:
            self.view(dtype, x, (n,), (1,), row, repeat=repeat, stream=stream, gate=gate)
        else:
            function, per_block = entry
            blocks = min(n // per_block or 1, self._multiprocessors)
            if self._is_native:
                failed = c.launch(
                    self._entry, function, blocks, THREADS, stream, x, n, row, repeat, gate
                )
                if failed:
                    _check(self._driver, failed, "launch the kernel")
            else:
                self._launch(function, blocks, stream, x, n, row, repeat, gate)

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
        n = math.prod(sizes)
        more = MAX_DIMENSIONS - len(sizes)
        shape = (*(1,) * more, *sizes, *(0,) * more, *strides)
        code = DTYPES[dtype]
        blocks = min(n // _VALUES_PER_BLOCK or 1, self._multiprocessors)
        self._launch(self._view, blocks, stream, x, n, code, row, repeat, gate, *shape)

    def many(self, mode: int, table: int, n_stretches: int, *, stream: int, gate: int = 0) -> None:
        """Add all stretches of a table (in device memory) to their rows.

        A stretch is six words: address, address of the copy or of the older version (or 0), length,
        address of the row, format, and 0. Stretches of one tensor follow each other.

        In place of the 0, for formats of up to 32 bits and in mode `PLAIN`: how many vectors lie
        next to each other, plus 2^32 times how many are between the beginnings of two such runs.
        """
        blocks = min(n_stretches, self._multiprocessors)
        self._launch(self._many[mode], blocks, stream, table, n_stretches, gate)

    def several(self, tensors: Sequence[tuple[str, int, int, int]], *, stream: int) -> None:
        """Add up to 16 dense tensors of 16 or 32 bits each to a row: for each its format, address,
        length, and the address of its row."""
        if not 0 < len(tensors) <= SEVERAL or any(t[0] not in _TOGETHER for t in tensors):
            raise ValueError(f"`several` takes 1 to {SEVERAL} tensors of {sorted(_TOGETHER)}.")
        table = _Several()
        for i, (dtype, x, n, row) in enumerate(tensors):
            table.x[i], table.n[i], table.row[i], table.format[i] = x, n, row, DTYPES[dtype]
            table.first[i + 1] = table.first[i] + -(-n // _PIECE)
        pieces = table.first[len(tensors)]
        count, gate = c_int(len(tensors)), c_void_p(0)
        at = (c_void_p * 3)(*(ctypes.addressof(a) for a in (table, count, gate)))
        blocks = min(pieces or 1, self._multiprocessors)
        failed = self._driver.cuLaunchKernel(
            self._several, blocks, 1, 1, THREADS, 1, 1, 0, stream, at, None
        )
        _check(self._driver, failed, "launch the kernel")

    def take(self, rows: int, n_rows: int, to: int, *, stream: int) -> None:
        """Copy rows to another place in device memory (or nowhere, 0) and empty them."""
        blocks = min(n_rows * 2, 2 * self._multiprocessors)
        self._launch(self._take, blocks, stream, rows, to, n_rows * WORDS)

    def pack(
        self, rows: int, n_rows: int, heads: int, bins: int, room: int, cursor: int, *, stream: int
    ) -> None:
        """Make rows small and empty them: 16 words each to `heads`, their bins to `bins`, which has
        room for so many words; both in pinned host memory. `cursor` is a word in device memory, how
        many words of `bins` are taken. The source says what is written."""
        blocks = min(n_rows, 8 * self._multiprocessors)
        words = (rows, n_rows, heads, bins, room, cursor)
        self._launch(self._pack, blocks, stream, *words, threads=_PACKERS)

    def zero(self, memory: int, n_bytes: int, stream: int) -> None:
        """Make device memory zero."""
        self._call("cuMemsetD8Async", memory, 0, n_bytes, stream)

    def allocate(self, n_bytes: int, *, on_host: bool = False) -> RawMemory:
        """Memory of ours, of the device in whose context this is called; or of the host, pinned."""
        return RawMemory(self._driver, n_bytes, on_host=on_host)

    def record(self, event: int, stream: int) -> None:
        """Record the event on the stream, after all work queued so far."""
        self._call("cuEventRecord", event, stream)

    def _call(self, name: str, *arguments: int) -> None:
        if self._is_native:
            failed = c.call(self._entries[name], *arguments)
        else:
            failed = getattr(self._driver, name)(*arguments)
        if failed:
            _check(self._driver, failed, f"do `{name}`")

    def _function(self, module: c_void_p, name: str) -> int:
        function = c_void_p()
        found = self._driver.cuModuleGetFunction(byref(function), module, name.encode())
        _check(self._driver, found, f"find `{name}`")
        return function.value or 0

    def _launch(
        self, function: int, blocks: int, stream: int, *arguments: int, threads: int = THREADS
    ) -> None:
        if self._is_native:
            failed = c.launch(self._entry, function, blocks, threads, stream, *arguments)
        else:
            words = [c_uint64(a) for a in arguments]
            at = (c_void_p * len(words))(*(ctypes.addressof(w) for w in words))
            failed = self._driver.cuLaunchKernel(
                function, blocks, 1, 1, threads, 1, 1, 0, stream, at, None
            )
        if failed:
            _check(self._driver, failed, "launch the kernel")


class RawMemory:
    """Memory that belongs to no allocator of a framework: given back to the system when freed, at
    the latest with this object. Freeing may wait for the device."""

    def __init__(self, driver: ctypes.CDLL, n_bytes: int, *, on_host: bool) -> None:
        self._driver = driver
        self._on_host = on_host
        self.nbytes = n_bytes
        self.address = 0
        found = c_uint64()
        if on_host:
            failed = driver.cuMemHostAlloc(byref(found), n_bytes, _PORTABLE)
        else:
            failed = driver.cuMemAlloc_v2(byref(found), n_bytes)
        _check(driver, failed, f"allocate {n_bytes} bytes")
        self.address = found.value

    def view(self) -> memoryview:
        """Host memory as it is; not to be used after `free`."""
        return memoryview((ctypes.c_ubyte * self.nbytes).from_address(self.address)).cast("B")

    def free(self) -> None:
        address, self.address, self.nbytes = self.address, 0, 0
        if address:  # at the end of a process the driver may be gone: nothing can be done
            (self._driver.cuMemFreeHost if self._on_host else self._driver.cuMemFree_v2)(address)

    __del__ = free


@cache
def load(device: int, capability: tuple[int, int], multiprocessors: int) -> Kernel:  # noqa: ARG001  # the cache keeps one per device
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
    for name, types in (_CALLED | _MEMORY).items():
        getattr(driver, name).argtypes = types
    return Kernel(driver, image(capability), capability, multiprocessors)


def image(capability: tuple[int, int]) -> bytes:
    """Machine code for that compute capability: from the cache, else compiled and cached."""
    source = (resources.files("sonde.kernels") / "cuda" / "sketch.cu").read_bytes()
    library = _nvrtc()
    major, minor = c_int(), c_int()
    library.nvrtcVersion(byref(major), byref(minor))
    key = hashlib.sha256(source + repr((capability, THREADS, major.value, minor.value)).encode())
    path = _cache_folder() / f"sketch-{key.hexdigest()[:24]}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass
    compiled = _compile(library, source, capability)
    _keep(path, compiled)
    return compiled


def _compile(library: ctypes.CDLL, source: bytes, capability: tuple[int, int]) -> bytes:
    program = c_void_p()
    made = library.nvrtcCreateProgram(byref(program), source, b"sketch.cu", 0, None, None)
    if made:
        raise Unavailable(f"NVRTC failed with error {made}")
    options = [
        f"--gpu-architecture=sm_{capability[0]}{capability[1]}",
        "--std=c++17",
        f"--define-macro=THREADS={THREADS}",
    ]
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


def _log(library: ctypes.CDLL, program: c_void_p) -> str:
    size = c_size_t()
    library.nvrtcGetProgramLogSize(program, byref(size))
    text = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, text)
    return text.value.decode(errors="replace")[:2000]


def _nvrtc() -> ctypes.CDLL:
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


def _check(library: ctypes.CDLL, result: int, doing: str) -> None:
    if result:
        text = c_char_p()
        library.cuGetErrorString(result, byref(text))
        said = text.value.decode() if text.value else f"error {result}"
        raise Unavailable(f"CUDA could not {doing}: {said}")
