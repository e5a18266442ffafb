"""The safetensors format: arrays in one file, written and read without any library and any trust.

Eight bytes with the length of a JSON header, the header, then the arrays one after the other. What
the format has no dtype for is written as bytes (`U8`); the reader knows from elsewhere what it is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sonde.store.documents import DamagedError
from sonde.store.packing import SIZES, PackedArray, view_of

MAX_HEADER_BYTES: Final = 64 << 20
MAX_ENTRIES: Final = 100_000

_ALIGNMENT: Final = 8
_METADATA: Final = "__metadata__"
_NAMES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
}
_DTYPES: Final = {name: dtype for dtype, name in _NAMES.items()}


def encode(
    arrays: Sequence[tuple[str, PackedArray]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, list[int]]:
    """The file, and where in it each array begins."""
    header: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    at, begins = 0, []
    for name, array in arrays:
        size = array.size_bytes
        dtype, shape = _NAMES.get(array.dtype), list(array.shape)
        if dtype is None:
            dtype, shape = "U8", [size]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        begins.append(at)
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=True).encode("ascii")
    text += b" " * (-len(text) % _ALIGNMENT)
    first = 8 + len(text)
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    parts += [view_of(a.data).cast("B") if a.size_bytes else b"" for _, a in arrays]
    return b"".join(parts), [first + n for n in begins]


def decode(data: bytes) -> tuple[dict[str, PackedArray], dict[str, str]]:
    """The arrays by name, as views of `data`, and the metadata.

    Raises DamagedError if anything about it is not as the format says.
    """
    header, first = parse_header(data[: 8 + MAX_HEADER_BYTES], len(data))
    body = memoryview(data)[first:]
    metadata = header.pop(_METADATA, {})
    found = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        found[name] = PackedArray(_DTYPES[entry["dtype"]], tuple(entry["shape"]), body[begin:end])
    return found, metadata


def parse_header(head: bytes, size_bytes: int) -> tuple[dict[str, Any], int]:
    """The checked header of a file of that size, and where the arrays begin.

    `head` is the beginning of the file, or all of it. Raises DamagedError.
    """
    if len(head) < 8:
        raise DamagedError("is too short for safetensors")
    length = int.from_bytes(head[:8], "little")
    if length > min(MAX_HEADER_BYTES, size_bytes - 8) or len(head) < 8 + length:
        raise DamagedError(f"declares a header of {length} bytes")
    try:
        header = json.loads(head[8 : 8 + length].decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"has a broken header ({type(error).__name__})") from None
    if not isinstance(header, dict) or len(header) > MAX_ENTRIES:
        raise DamagedError("has a header that is no list of arrays")
    _check(header, size_bytes - 8 - length)
    return header, 8 + length


def _check(header: Mapping[str, Any], body_bytes: int) -> None:
    """Each entry says what it must, and together they fill the body without gap or overlap."""
    spans = []
    for name, entry in header.items():
        if name == _METADATA:
            if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
                raise DamagedError("has metadata that is not text")
            continue
        try:
            dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise DamagedError(f"has a broken entry `{name[:40]}`") from None
        numbers = [*shape, begin, end] if isinstance(shape, list) else [None]
        if dtype not in _DTYPES or not all(type(n) is int and n >= 0 for n in numbers):
            raise DamagedError(f"has a broken entry `{name[:40]}`")
        if math.prod(shape) * SIZES[_DTYPES[dtype]] != end - begin:
            raise DamagedError(f"has an entry `{name[:40]}` whose size does not fit its shape")
        spans.append((begin, end))
    at = 0
    for begin, end in sorted(spans):
        if begin != at or end > body_bytes:
            raise DamagedError("has arrays that overlap, leave a gap or lie outside the file")
        at = end
    if at != body_bytes:
        raise DamagedError("is longer or shorter than its arrays")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found
