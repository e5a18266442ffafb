"""The envelope: an answer as bytes, with its arrays as they are in memory.

    4 bytes   "SND1"
    4 bytes   length of the header, little-endian
    header    JSON: {"api", "version", "view", "run", "spec", "arrays"}, padded with spaces
    arrays    one after the other, each beginning at a multiple of 8, little-endian

`arrays` says for each array its `path` in the spec, `dtype` (f64, f32, i32, u8), `shape`, and
`offset` from the end of the header. An answer without arrays is sent as the JSON alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from sonde._version import VERSION
from sonde.views.specs import RunState

API: Final = 2
"""Grows when an older page cannot understand an answer any more."""

MAGIC: Final = b"SND1"
JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/vnd.sonde"

_DTYPES: Final = {"<f8": "f64", "<f4": "f32", "<i4": "i32", "|u1": "u8"}
_ALIGNMENT: Final = 8

Array = NDArray[np.generic]  # of one of _DTYPES


def pack(view: str, spec: object, run: RunState | None = None) -> tuple[str, bytes]:
    """The content type and the bytes of an answer."""
    arrays: list[tuple[list[str | int], Array]] = []
    plain = to_plain(spec, arrays, [])
    header: dict[str, object] = {
        "api": API,
        "version": VERSION,
        "view": view,
        "run": None if run is None else to_plain(run, [], []),
        "spec": plain,
    }
    if not arrays:
        return JSON_TYPE, _json(header)
    places, offset = [], 0
    for path, array in arrays:
        places.append(
            {
                "path": path,
                "dtype": _DTYPES[array.dtype.str],
                "shape": list(array.shape),
                "offset": offset,
            }
        )
        offset += _padded(array.nbytes)
    head = _json({**header, "arrays": places})
    head += b" " * (-(len(head) + len(MAGIC) + 4) % _ALIGNMENT)
    parts = [MAGIC, len(head).to_bytes(4, "little"), head]
    for _, array in arrays:
        parts += [array.tobytes(), bytes(_padded(array.nbytes) - array.nbytes)]
    return BINARY_TYPE, b"".join(parts)


def unpack(data: bytes) -> dict[str, Any]:
    """What `pack` was given, as plain dictionaries with arrays in their places. `Any`: JSON."""
    if data[:4] != MAGIC:
        found: dict[str, Any] = json.loads(data)
        return found
    size = int.from_bytes(data[4:8], "little")
    answer: dict[str, Any] = json.loads(data[8 : 8 + size])
    dtypes = {short: long for long, short in _DTYPES.items()}
    for place in answer.pop("arrays"):
        count = math.prod(place["shape"])
        dtype = np.dtype(dtypes[place["dtype"]])
        array = np.frombuffer(data, dtype, count, 8 + size + place["offset"])
        inside = answer["spec"]
        for key in place["path"][:-1]:
            inside = inside[key]
        inside[place["path"][-1]] = array.reshape(place["shape"])
    return answer


def to_plain(
    value: object, arrays: list[tuple[list[str | int], Array]], path: list[str | int]
) -> object:
    """JSON types only; arrays are taken out and noted with their place, null in their stead.

    Numbers that JSON has no word for (NaN, infinities) become null.
    """
    if isinstance(value, np.ndarray):
        arrays.append((path, _little(value)))
        return None
    if is_dataclass(value) and not isinstance(value, type):
        return {
            f.name: to_plain(getattr(value, f.name), arrays, [*path, f.name]) for f in fields(value)
        }
    if isinstance(value, Mapping):
        return {str(k): to_plain(v, arrays, [*path, str(k)]) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(v, arrays, [*path, i]) for i, v in enumerate(value)]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    number = float(cast("float", value))
    return number if math.isfinite(number) else None


def _little(array: Array) -> Array:
    wanted = array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype
    if wanted.str not in _DTYPES:
        raise TypeError(f"An array of {array.dtype} cannot be sent; f64, f32, i32 and u8 can.")
    return np.ascontiguousarray(array, dtype=wanted)


def _padded(size: int) -> int:
    return size + (-size % _ALIGNMENT)


def _json(value: object) -> bytes:
    # Lone surrogates may be in names; escaped they are valid JSON and harmless text.
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
