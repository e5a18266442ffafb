"""Files of Weights & Biases, `run-….wandb`: history and config of offline and synced runs."""

from __future__ import annotations

import fnmatch
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from sonde._errors import SondeError
from sonde.imports.foreign import Buckets, ForeignRun
from sonde.imports.wire import fields, first, messages, text

_BLOCK, _HEADER = 32768, 7
_HISTORY, _CONFIG, _METRIC, _RUN = 2, 5, 12, 17
_WHOLE, _LAST = 1, 4
_OWN: Final = "_"
"""Keys that begin so are W&B's own: `_step`, `_runtime`, `_timestamp`."""


def read(name: str, path: Path) -> ForeignRun:
    """One file as a run.

    The step of a number is the metric that the run defined as its x axis, if that is a whole
    number, else the step of the row.
    """
    run = ForeignRun("Weights & Biases", name)
    axes: dict[str, str] = {}
    try:
        for record in _records(path.read_bytes()):
            for number, value in fields(record):
                if isinstance(value, bytes):
                    _take(run, number, value, axes)
    except SondeError:
        run.notes.append(f"`{path.name}` is cut short. What comes after that is left out.")
    return run


def _take(run: ForeignRun, number: int, value: bytes, axes: dict[str, str]) -> None:
    if number == _METRIC:
        pattern = text(first(value, 1)) or text(first(value, 2))
        axis = text(first(value, 4))
        if axis:
            axes[pattern] = axis
    elif number == _CONFIG:
        run.config |= {k: v for k, v in _items(value, 1).items() if not k.startswith(_OWN)}
    elif number == _RUN:
        for config in messages(value, 4):
            run.config |= {k: v for k, v in _items(config, 1).items() if not k.startswith(_OWN)}
    elif number == _HISTORY:
        _take_row(run, _items(value, 1), axes)


def _take_row(run: ForeignRun, row: Mapping[str, Any], axes: dict[str, str]) -> None:
    flat = dict(_flat(row))
    own = flat.get("_step", 0)
    for key, value in flat.items():
        if key.startswith(_OWN) or key in axes.values():
            continue
        axis = flat.get(_axis(key, axes))
        step = axis if isinstance(axis, int) and not isinstance(axis, bool) else own
        run.add(step, key, _buckets(value) if isinstance(value, dict) else value)


def _axis(key: str, axes: dict[str, str]) -> str:
    if key not in axes:
        found = (axis for pattern, axis in axes.items() if fnmatch.fnmatchcase(key, pattern))
        axes[key] = next(found, "")
    return axes[key]


def _buckets(value: Mapping[str, Any]) -> Buckets | None:
    if value.get("_type") != "histogram":
        return None
    packed = value.get("packedBins")
    edges = value.get("bins")
    if packed:
        edges = packed["min"] + packed["size"] * np.arange(packed["count"] + 1)
    return Buckets(np.array(edges, np.float64), np.array(value.get("values", ()), np.float64))


def _flat(row: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Nested dicts with a dot between their keys, as W&B shows them."""
    for key, value in row.items():
        if isinstance(value, dict) and "_type" not in value:
            yield from _flat(value, f"{above}{key}.")
        else:
            yield above + key, value


def _items(data: bytes, number: int) -> dict[str, object]:
    """Keys and values of a history, a summary or a config."""
    found: dict[str, object] = {}
    for item in messages(data, number):
        nested = [text(key) for key in messages(item, 2)] or [text(first(item, 1))]
        at = found
        for key in nested[:-1]:
            inside = at.setdefault(key, {})
            at = inside if isinstance(inside, dict) else {}
        at[nested[-1]] = _json(text(first(item, 16)))
    return found


def _json(given: str) -> object:
    try:
        return json.loads(given)
    except ValueError:
        return None


def _records(data: bytes) -> Iterator[bytes]:
    """Records of the log: whole, or in parts that end with a block."""
    if data[:4] != b":W&B":
        raise SondeError("This is no file of W&B.")
    at, parts = _HEADER, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + size > len(data):
            raise SondeError("A record is cut short.")
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {_WHOLE, _LAST}:
            yield parts
            parts = b""
