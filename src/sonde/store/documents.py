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
from typing import Any, BinaryIO, Final

MAX_BYTES: Final = 16 << 20
_MAX_DEPTH: Final = 32
_MAX_TEXT: Final = 64 << 10
_MAX_ITEMS: Final = 10_000

Document = dict[str, Any]
"""A parsed JSON object. Any: it comes from a file; whoever reads a field checks its type."""


class DamagedError(Exception):
    """A file is not what its name or checksum says. The message says how."""


def dump(document: Mapping[str, object]) -> bytes:
    """The document as bytes, with its checksum. Whatever JSON cannot hold is kept as its repr."""
    plain = {str(k): to_plain(v) for k, v in document.items()}
    text = json.dumps({"crc32": _checksum(plain), **plain}, indent=1, ensure_ascii=True)
    return text.encode("ascii")


def load(path: str) -> Document:
    """The document at `path`.

    Raises FileNotFoundError when there is none and `DamagedError` when it is not a file, too
    large, not an object, nested too deep, or when its checksum is wrong.
    """
    return parse(read_regular(path, limit_bytes=MAX_BYTES))


def parse(data: bytes) -> Document:
    """The document in `data`, checked."""
    try:
        found = json.loads(data.decode("utf-8"), parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"is not valid JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise DamagedError("does not hold a JSON object")
    expected = found.pop("crc32", None)
    try:
        actual = _checksum(found)
    except RecursionError:
        raise DamagedError("is nested too deep") from None
    if expected != actual:
        raise DamagedError("has a wrong checksum")
    return found


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


def to_plain(value: object, depth: int = 0) -> Any:  # Any: the JSON types, nested
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
    except Exception:
        return f"<{type(value).__name__}>"


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
