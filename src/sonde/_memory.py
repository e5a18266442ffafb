"""Memory that was freed and is still with the process."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Return to the system what allocators keep for later: that of Arrow, and that of C."""
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):  # not the GNU C library, which needs to be asked
        return
