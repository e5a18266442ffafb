"""The built page: the files of `static/`, by name. Server, report and widget take it from here."""

from __future__ import annotations

from importlib import resources
from typing import Final

TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "ico": "image/x-icon",
    "woff2": "font/woff2",
    "txt": "text/plain; charset=utf-8",
    "map": "application/json",
    "json": "application/json",
}
"""Content types by suffix. A file with another suffix is not offered."""

SCRIPT: Final = "app.js"
FONT: Final = "inter.woff2"


def names() -> tuple[str, ...]:
    """The files that are there; none where the page was not built into this installation."""
    folder = resources.files("sonde.present") / "static"
    if not folder.is_dir():
        return ()
    found = [entry.name for entry in folder.iterdir() if entry.is_file()]
    return tuple(sorted(n for n in found if n.rpartition(".")[2] in TYPES and n[0] != "."))


def read(name: str) -> bytes | None:
    """The content of a file; None if it is not there."""
    try:
        return (resources.files("sonde.present") / "static" / name).read_bytes()
    except OSError:
        return None
