"""Spilling: the private folder in which queries go on that do not fit in memory.

One per process, made when it is first needed, with a name that cannot be guessed and for its owner
alone; removed when the process ends.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading

_lock = threading.Lock()
_made: tuple[int, str | None] | None = None


def folder() -> str | None:
    """The folder of this process; None where none can be made."""
    global _made
    with _lock:
        if _made is None or _made[0] != os.getpid():  # a forked child makes its own
            try:
                path = tempfile.mkdtemp(prefix="sonde-")
            except OSError:
                _made = (os.getpid(), None)
            else:
                _made = (os.getpid(), path)
                atexit.register(_remove, os.getpid(), path)
        return _made[1]


def _remove(pid: int, path: str) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
