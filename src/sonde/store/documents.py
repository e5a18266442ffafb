"""The JSON files of a run: written with a checksum inside, read with limits and without trust."""

from __future__ import annotations

import json
import math
import numbers
import os
import stat
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from sonde._signals import pass_on
from sonde.store import limits

MAX_BYTES: Final = limits.ABOUT_BYTES
_MAX_DEPTH: Final = 32
_ITEM_BYTES: Final = 100
_MAX_INTEGER: Final = 1 << 512
_MAX_TEXT: Final = 64 << 10
_MAX_ITEMS: Final = 10_000

Document = dict[str, object]
"""A parsed JSON object. It comes from a file: whoever reads a field checks its type."""


class DamagedError(Exception):
    """A file is not what its name or checksum says. The message says how."""


def dump(document: Mapping[str, object]) -> bytes:
    """The document as bytes, with its checksum. Whatever JSON cannot hold is kept as its repr."""
    plain = {str(k): to_plain(v) for k, v in document.items()}
    data = _encoded(plain)
    if len(data) > MAX_BYTES or _items(data) > limits.DOCUMENT_ITEMS:
        largest = max(plain, key=lambda name: len(json.dumps(plain[name])))
        return dump({**plain, largest: f"left out: {len(data)} bytes are too many"})
    return data


def load(path: str, *, limit_bytes: int = MAX_BYTES) -> Document:
    """The document at `path`.

    Raises FileNotFoundError when there is none and `DamagedError` when it is not a file, too
    large, not an object, nested too deep, or when its checksum is wrong.
    """
    return parse(read_regular(path, limit_bytes=limit_bytes))


def parse(data: bytes) -> Document:
    """The document in `data`, checked. A whole number that no float holds comes as text."""
    items = _items(data)
    if items > limits.DOCUMENT_ITEMS:
        raise DamagedError(f"holds {items} items; at most {limits.DOCUMENT_ITEMS} are read")
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=lambda _: None)
    except (ValueError, RecursionError, MemoryError) as error:
        raise DamagedError(f"is not valid JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise DamagedError("does not hold a JSON object")
    expected = found.pop("crc32", None)
    try:
        actual = _checksum(found)
        if expected != actual:
            raise DamagedError("has a wrong checksum")
        plain: Document = {key: _bounded(value) for key, value in found.items()}
    except (RecursionError, ValueError, MemoryError):
        raise DamagedError("is nested too deep") from None
    return plain


def memory_of(data: bytes) -> int:
    """About how much memory the document in `data` takes once it is parsed."""
    return len(data) + _ITEM_BYTES * _items(data)


def read_regular(path: str, *, limit_bytes: int | None = None) -> bytes:
    """All bytes of a regular file. Links, pipes, folders and devices are not opened."""
    with open_regular(path, limit_bytes=limit_bytes) as file:
        return file.read()


def open_regular(path: str, *, limit_bytes: int | None = None) -> BinaryIO:
    """A regular file, opened for reading. Links, pipes, folders and devices are not opened."""
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"is a {_kind_of(status.st_mode)}, not a file")
    if limit_bytes is not None and status.st_size > limit_bytes:
        raise DamagedError(f"has {status.st_size} bytes; at most {limit_bytes} are read")
    # Not blocking and not following, in case the name was given to something else just now.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    return os.fdopen(fd, "rb", buffering=0)


def to_plain(value: object, depth: int = 0) -> object:
    """The value in JSON types: what JSON has no word for becomes its repr, cut to a sane length."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else repr(number)
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    if isinstance(value, Path):
        return str(value)
    if depth >= _MAX_DEPTH:
        return "..."
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {str(k)[:_MAX_TEXT]: to_plain(v, depth + 1) for k, v in items}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray):
        return [to_plain(v, depth + 1) for v in list(value)[:_MAX_ITEMS]]
    try:
        return repr(value)[:_MAX_TEXT]
    except Exception as error:
        pass_on(error)
        return f"<{type(value).__name__}>"


def _encoded(plain: Document) -> bytes:
    text = json.dumps({"crc32": _checksum(plain), **plain}, indent=1, ensure_ascii=True)
    return text.encode("ascii")


def _items(data: bytes) -> int:
    """At most so many lists, objects and values are in the document."""
    return 1 + sum(data.count(mark) for mark in (b",", b"[", b"{"))


def _bounded(value: object) -> object:
    """The value, with numbers that would not fit anywhere as text."""
    if isinstance(value, dict):
        return {key: _bounded(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_bounded(v) for v in value]
    if type(value) is int and abs(value) >= _MAX_INTEGER:
        return str(value)
    return value


def _checksum(plain: Document) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"{zlib.crc32(text.encode('ascii')):08x}"


def _kind_of(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "symbolic link"
    if stat.S_ISDIR(mode):
        return "folder"
    if stat.S_ISFIFO(mode):
        return "pipe"
    return "special file"
