"""Python itself: frames, and processes that Sonde starts.

No such process imports from the current directory.

`python -m` puts the current directory first on the path, so a `queue.py` in a folder of runs that a
stranger shared would be executed. `-P` leaves it out; the environment does the same for whatever
the process starts itself.
"""

from __future__ import annotations

import os
import sys
from sys import _getframe as frame_at

__all__ = ["command", "environment", "frame_at"]  # `frame_at(1)`: the frame of who called


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of ours."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Return the environment for it: this one, with a safe path, and `more`."""
    found = {**os.environ, "PYTHONSAFEPATH": "1", **more}
    path = found.get("PYTHONPATH", "")
    # An empty entry, as `PYTHONPATH=lib:$PYTHONPATH` often leaves, is the current directory.
    kept = os.pathsep.join(entry for entry in path.split(os.pathsep) if entry)
    if kept != path:
        found["PYTHONPATH"] = kept
    return found
