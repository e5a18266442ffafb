"""The wire format of protocol buffers: fields by number, without a schema."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError

Field = int | bytes
"""A varint or fixed number (its bits), or the bytes of a text, a message or a packed list."""


def fields(data: bytes) -> Iterator[tuple[int, Field]]:
    """The fields of a message in the order in which they lie.

    Raises:
        SondeError: The bytes are no message.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind, value = tag & 7, 0
        size = {1: 8, 5: 4}.get(kind)
        if kind == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise SondeError("A message is cut short, or is none.")
        yield tag >> 3, data[at : at + size]
        at += size


def messages(data: bytes, number: int) -> Iterator[bytes]:
    """The messages or texts in the fields of that number."""
    for found, value in fields(data):
        if found == number and isinstance(value, bytes):
            yield value


def first(data: bytes, number: int) -> Field | None:
    """The first field of that number."""
    return next((value for found, value in fields(data) if found == number), None)


def text(value: Field | None) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def whole(value: Field | None) -> int:
    """A signed whole number."""
    found = value if isinstance(value, int) else 0
    return found - (1 << 64) if found >= 1 << 63 else found


def real(value: Field | None) -> float:
    """A double or a float; 0 if there is none, as the format has it."""
    if isinstance(value, bytes) and len(value) in {4, 8}:
        found: float = struct.unpack("<d" if len(value) == 8 else "<f", value)[0]
        return found
    return 0.0


def reals(data: bytes, number: int, dtype: str = "<f8") -> NDArray[np.float64]:
    """A packed list of numbers."""
    parts = [p[: len(p) - len(p) % int(dtype[-1])] for p in messages(data, number)]
    return np.frombuffer(b"".join(parts), dtype).astype(np.float64)


def varints(data: bytes, number: int) -> list[int]:
    """A packed list of whole numbers."""
    found = []
    for part in messages(data, number):
        at = 0
        while at < len(part):
            value, at = _varint(part, at)
            found.append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 127) << shift
        at += 1
        if not data[at - 1] & 128:
            return value, at
        shift += 7
    raise SondeError("A message is cut short, or is none.")
