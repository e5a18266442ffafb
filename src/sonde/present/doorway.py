"""A doorway: a private file that takes a browser to an address which holds the token.

Every user of a machine can read the arguments of its processes, so a browser is started with the
name of this file instead of the address. Only its owner can read it.
"""

from __future__ import annotations

import html
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Final, Self

KEPT_S: Final = 60.0
"""A browser that takes longer to start finds nothing; the address is on the terminal."""

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sonde</title>
<meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0; url={address}"></head>
<body><a href="{address}">Sonde</a></body></html>
"""


class RedirectFile:
    """Makes such a file with `open`; it is removed after a while, and when this is closed."""

    def __init__(self, kept_s: float = KEPT_S) -> None:
        self._kept_s = kept_s
        self._folder: str | None = None
        self._timer: threading.Timer | None = None

    def open(self, address: str) -> str:
        """Write a file that leads to the address and return its `file:` URL."""
        self.close()
        self._folder = tempfile.mkdtemp(prefix="sonde-")  # 0700
        path = os.path.join(self._folder, "open.html")
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(_PAGE.format(address=html.escape(address, quote=True)))
        self._timer = threading.Timer(self._kept_s, self._remove)
        self._timer.daemon = True
        self._timer.start()
        return Path(path).as_uri()

    def close(self) -> None:
        """Remove the file, if it is still there."""
        if self._timer is not None:
            self._timer.cancel()
        self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
