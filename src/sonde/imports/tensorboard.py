"""Event files of TensorBoard: scalars and histograms, of old and new style."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.imports.foreign import Buckets, ForeignRun
from sonde.imports.wire import Field, fields, first, messages, real, reals, text, varints, whole

_STEP, _SUMMARY, _SESSION = 2, 5, 7
_TAG, _SIMPLE, _HISTO, _TENSOR, _METADATA = 1, 2, 5, 8, 9
_FLOATS: Final = {1: (5, "<f4"), 2: (6, "<f8")}
"""Field and type of the numbers of a tensor, by its dtype."""


def read(name: str, files: Sequence[Path]) -> ForeignRun:
    """A folder of event files as one run."""
    run = ForeignRun("TensorBoard", name)
    plugins: dict[str, str] = {}
    for path in sorted(files):
        try:
            for event in _records(path.read_bytes()):
                _take(run, event, plugins)
        except SondeError:
            run.notes.append(f"`{path.name}` is damaged. What comes after the damage is left out.")
    return run


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        if at + 16 + size > len(data):
            raise SondeError("A record is cut short.")
        yield data[at + 12 : at + 12 + size]
        at += 16 + size


def _take(run: ForeignRun, event: bytes, plugins: dict[str, str]) -> None:
    found = dict(fields(event))
    step = whole(found.get(_STEP))
    if _SESSION in found and first(_bytes(found[_SESSION]), 1) == 1:  # started, perhaps again
        run.forget_from(step)
    for value in messages(_bytes(found.get(_SUMMARY)), 1):
        parts = dict(fields(value))
        tag = text(parts.get(_TAG))
        if _METADATA in parts:
            plugins[tag] = text(first(_bytes(first(_bytes(parts[_METADATA]), 1)), 1))
        run.add(step, tag, _value(parts, plugins.get(tag, "")))


def _value(parts: dict[int, Field], plugin: str) -> object:
    if _SIMPLE in parts:
        return real(parts[_SIMPLE])
    if _HISTO in parts:
        return _histogram(_bytes(parts[_HISTO]))
    if _TENSOR in parts:
        shape, numbers = _tensor(_bytes(parts[_TENSOR]))
        if plugin == "scalars" and len(numbers) == 1:
            return float(numbers[0])
        if plugin == "histograms" and len(shape) == 2 and shape[1] == 3:
            left, right, counts = numbers.reshape(-1, 3).T
            return Buckets(np.append(left, right[-1:]), counts) if len(counts) else None
    return None


def _histogram(data: bytes) -> Buckets:
    found = dict(fields(data))
    low, high = real(found.get(1)), real(found.get(2))
    limits, counts = reals(data, 6), reals(data, 7)
    n = min(len(limits), len(counts))
    edges = np.clip(np.append(low, limits[:n]), low, high)
    return Buckets(edges, counts[:n], real(found.get(4)), real(found.get(5)))


def _tensor(data: bytes) -> tuple[list[int], NDArray[np.float64]]:
    found = dict(fields(data))
    dims = messages(_bytes(found.get(2)), 2)
    shape = [whole(first(dim, 1)) for dim in dims]
    dtype = whole(found.get(1))
    if dtype not in _FLOATS:
        return shape, np.array(varints(data, 7), np.float64)
    number, kind = _FLOATS[dtype]
    content = found.get(4)
    if isinstance(content, bytes) and content:
        return shape, np.frombuffer(content, kind).astype(np.float64)
    values = reals(data, number, kind)
    size = int(np.prod(shape)) if shape else 1
    return shape, np.repeat(values, size) if len(values) == 1 < size <= 1 << 20 else values


def _bytes(value: Field | None) -> bytes:
    return value if isinstance(value, bytes) else b""
