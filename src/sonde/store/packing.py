"""Packing: nested values as JSON, with the arrays in them set apart.

    tree, arrays = flatten({"q": array, "n": 3})
    flatten's tree is plain JSON; `unflatten(tree, arrays)` gives the value back.

What JSON has no word for is an object with the key `$`: tuples, sets, bytes, numbers that are not
finite, dicts with other keys than strings, and objects, of which the name of the type and the
attributes are kept. Nothing that is read is ever executed or imported.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from sonde.store.documents import DamagedError

SIZES: Final[dict[str, int]] = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""Bytes of an element, for every dtype that can be stored."""

_MAX_DEPTH: Final = 64
_MAX_DIMS: Final = 64


Bytes = bytes | bytearray | memoryview | NDArray[np.uint8]
"""Bytes, and what can be read as such."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedArray:
    """The bytes of a tensor, as they lie in memory: little-endian, last dimension fastest."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes

    @property
    def size_bytes(self) -> int:
        return view_of(self.data).nbytes

    def numpy(self) -> NDArray[np.generic]:
        """The values. What numpy has no dtype for (bfloat16, float8) comes as float32, exactly."""
        return decode(self.dtype, self.shape, self.data)


@dataclass(frozen=True, slots=True)
class PackedObject:
    """What was kept of an object: the name of its type, its attributes, a short text."""

    type_name: str
    fields: Mapping[str, object] = field(default_factory=dict)
    text: str = ""


def view_of(data: Bytes) -> memoryview:
    """The bytes, without a copy."""
    return memoryview(cast("bytes", data))


MakeObject = Callable[[str, Mapping[str, object], str], object]
"""Makes what stands for an object: of the name of its type, its attributes and a short text."""


def check_shape(dtype: str, shape: Sequence[int], size_bytes: int) -> tuple[int, ...]:
    """The shape, if so many bytes can be an array of it. Raises DamagedError if not."""
    if dtype not in SIZES:
        raise DamagedError(f"holds an array of unknown dtype `{dtype[:40]}`")
    if len(shape) > _MAX_DIMS or not all(type(n) is int and n >= 0 for n in shape):
        raise DamagedError(f"holds an array of impossible shape {list(shape)[:8]}")
    if math.prod(shape) * SIZES[dtype] != size_bytes:
        raise DamagedError(f"holds an array of shape {list(shape)[:8]} in {size_bytes} bytes")
    return tuple(shape)


def decode(dtype: str, shape: Sequence[int], data: Bytes) -> NDArray[np.generic]:
    """Bytes as an array of its own; see `Array.numpy`."""
    raw = np.frombuffer(data, np.uint8) if view_of(data) else np.empty(0, np.uint8)
    if dtype == "bfloat16":
        found = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    elif dtype in _FLOAT8:
        found = _table(*_FLOAT8[dtype])[raw]
    elif dtype == "float8_e8m0fnu":
        found = _powers()[raw]
    else:
        found = raw.view(np.dtype(dtype)).copy()
    return found.reshape(tuple(shape))


def flatten(value: object) -> tuple[object, list[PackedArray]]:
    """JSON for the value, and the arrays that it refers to."""
    arrays: list[PackedArray] = []
    return _to_json(value, arrays, _MAX_DEPTH), arrays


def unflatten(
    tree: object, arrays: Sequence[object], make_object: MakeObject = PackedObject
) -> Any:
    """The value. Arrays appear as they are given; `make_object` makes what stands for objects.

    Raises DamagedError if the tree is none of ours.
    """
    return _from_json(tree, arrays, make_object, _MAX_DEPTH)


def _to_json(value: object, arrays: list[PackedArray], depth: int) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if isinstance(value, complex):
        return {"$": "complex", "v": [repr(value.real), repr(value.imag)]}
    if isinstance(value, bytes | bytearray):
        return {"$": "bytes", "v": base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, np.ndarray):
        dense = np.ascontiguousarray(value)
        value = PackedArray(str(dense.dtype), value.shape, dense.reshape(-1).view(np.uint8))
        return {**_place(value, arrays), "numpy": True}
    if isinstance(value, PackedArray):
        return _place(value, arrays)
    if depth == 0:
        return {"$": "object", "type": "...", "fields": {}, "text": "deeper"}
    return _container_to_json(value, arrays, depth - 1)


def _place(array: PackedArray, arrays: list[PackedArray]) -> dict[str, object]:
    """JSON in place of an array, which goes to the others."""
    arrays.append(array)
    place = {"dtype": array.dtype, "shape": list(array.shape)}
    return {"$": "array", "v": len(arrays) - 1, **place}


def _container_to_json(value: object, arrays: list[PackedArray], depth: int) -> object:
    if isinstance(value, list):
        return [_to_json(v, arrays, depth) for v in value]
    if isinstance(value, tuple | set | frozenset):
        kind = next(k for k in (tuple, frozenset, set) if isinstance(value, k))
        return {"$": kind.__name__, "v": [_to_json(v, arrays, depth) for v in value]}
    if isinstance(value, Mapping):
        if all(isinstance(k, str) for k in value) and "$" not in value:
            return {k: _to_json(v, arrays, depth) for k, v in value.items()}
        pairs = [[_to_json(k, arrays, depth), _to_json(v, arrays, depth)] for k, v in value.items()]
        return {"$": "dict", "v": pairs}
    fields = getattr(value, "fields", None)
    if isinstance(fields, Mapping) and hasattr(value, "type_name"):
        inside = {str(k): _to_json(v, arrays, depth) for k, v in fields.items()}
        found = {"$": "object", "type": str(value.type_name), "fields": inside}
        return {**found, "text": str(getattr(value, "text", ""))}
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"$": "object", "type": name, "fields": {}, "text": _text(value)}


def _text(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # a user's repr may do anything
        return ""


def _from_json(tree: object, arrays: Sequence[object], make: MakeObject, depth: int) -> object:
    if depth == 0:
        raise DamagedError("holds a value that is nested too deep")
    if isinstance(tree, list):
        return [_from_json(v, arrays, make, depth - 1) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if "$" not in tree:
        return {k: _from_json(v, arrays, make, depth - 1) for k, v in tree.items()}
    try:
        return _special(tree, arrays, make, depth - 1)
    except DamagedError:
        raise
    except Exception as error:  # a stranger's file may be wrong in any way
        raise DamagedError(f"holds a value that is none ({type(error).__name__})") from None


def _special(
    tree: dict[str, Any], arrays: Sequence[object], make: MakeObject, depth: int
) -> object:
    inner: Any = tree.get("v")
    match tree["$"]:
        case "float" if isinstance(inner, str) and len(inner) < 40:
            return float(inner)
        case "complex":
            return complex(float(inner[0]), float(inner[1]))
        case "bytes":
            return base64.b64decode(inner, validate=True)
        case "tuple":
            return tuple(_from_json(v, arrays, make, depth) for v in inner)
        case "set":
            return {_from_json(v, arrays, make, depth) for v in inner}
        case "frozenset":
            return frozenset(_from_json(v, arrays, make, depth) for v in inner)
        case "dict":
            pairs = [(_from_json(k, arrays, make, depth), v) for k, v in inner]
            return {k: _from_json(v, arrays, make, depth) for k, v in pairs}
        case "array" if type(inner) is int and 0 <= inner < len(arrays):
            return arrays[inner]
        case "object":
            inside = {str(k): _from_json(v, arrays, make, depth) for k, v in tree["fields"].items()}
            return make(str(tree["type"]), inside, str(tree.get("text", "")))
    raise DamagedError(f"holds a value of unknown kind `{str(tree['$'])[:40]}`")


_FLOAT8: Final[dict[str, tuple[int, int, str]]] = {
    "float8_e4m3fn": (3, 7, "fn"),
    "float8_e5m2": (2, 15, "ieee"),
    "float8_e4m3fnuz": (3, 8, "fnuz"),
    "float8_e5m2fnuz": (2, 16, "fnuz"),
}
"""Bits of the mantissa, bias of the exponent, and what stands for NaN and infinity."""


def _table(mantissa_bits: int, bias: int, kind: str) -> NDArray[np.float32]:
    """The value of each of the 256 patterns."""
    bits = np.arange(256)
    exponent = (bits & 0x7F) >> mantissa_bits
    fraction = (bits & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    size = np.where(
        exponent == 0,
        fraction * 2.0 ** (1 - bias),
        (1 + fraction) * 2.0 ** (exponent - float(bias)),
    )
    value = np.where(bits & 0x80, -size, size)
    top = exponent == 0x7F >> mantissa_bits
    if kind == "ieee":
        value = np.where(top & (fraction == 0), np.copysign(np.inf, value), value)
        value = np.where(top & (fraction != 0), np.nan, value)
    elif kind == "fn":
        value = np.where((bits & 0x7F) == 0x7F, np.nan, value)
    else:
        value = np.where(bits == 0x80, np.nan, value)
    return value.astype(np.float32)


def _powers() -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        value = 2.0 ** (np.arange(256) - 127.0)
    value[255] = np.nan
    return value.astype(np.float32)
