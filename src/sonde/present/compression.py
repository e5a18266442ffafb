"""Compression: bodies as gzip for whoever accepts it, which halves what goes through a tunnel.

Large bodies are compressed on a thread: the event loop answers others meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
from typing import Final

_LEAST: Final = 1400
"""Smaller bodies fit into one packet as they are."""

_ON_LOOP: Final = 32_768
"""Bodies up to here are compressed at once: in less time than a thread takes to start."""

_PACKED: Final = ("font/", "image/png", "image/x-icon")
"""Kinds that are compressed already."""


def accepts_gzip(header: str | None) -> bool:
    """Whether an `Accept-Encoding` header allows gzip."""
    for part in (header or "").lower().split(","):
        name, _, parameters = part.strip().partition(";")
        if name.strip() in {"gzip", "*"}:
            quality = parameters.replace(" ", "").removeprefix("q=")
            return quality.strip("0.") != "" or quality == ""
    return False


async def compressed(body: bytes, kind: str, accept: str | None) -> bytes | None:
    """The body as gzip; None where it is to be sent as it is."""
    if len(body) < _LEAST or kind.startswith(_PACKED) or not accepts_gzip(accept):
        return None
    if len(body) <= _ON_LOOP:
        return _quickly(body)
    return await asyncio.to_thread(_quickly, body)


@functools.lru_cache(maxsize=32)
def compressed_file(body: bytes, kind: str) -> bytes | None:
    """A file of the page as gzip, as small as it gets; kept, since it is asked for again."""
    if len(body) < _LEAST or kind.startswith(_PACKED):
        return None
    return gzip.compress(body, 9, mtime=0)


def _quickly(body: bytes) -> bytes:
    # Level 1: arrays of float32 shrink by a third at 100 MB/s; level 6 gains little more at a fifth
    # of the speed.
    return gzip.compress(body, 1, mtime=0)
