"""Memory that was freed and is still with the process."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Return to the system what allocators keep for later: those of Python, Arrow and C."""
    _clear_type_cache()
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # not the GNU C library, which needs to be asked
        return


def _clear_type_cache() -> None:
    """Drop the cache of attributes of types.

    It keeps the names that C code has asked for, up to 4,096 strings, each made when it was asked
    for. A string keeps the megabyte around it from being returned: 40 MB after a large model.
    """
    clear = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", None)
    if clear is not None:
        clear()
