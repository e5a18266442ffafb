"""Where runs of object stores lie on this machine: spools on their way up, mirrors to read."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sonde.store.remote.objects import shown

ORIGIN: Final = ".origin"
"""The file of a spool or mirror that has the URL of its folder, for its owner's eyes only."""

_WEB: Final = re.compile("[^A-Za-z0-9._-]+")


def cache_folder() -> Path:
    """`SONDE_CACHE`, or a folder in the user's cache."""
    given = os.environ.get("SONDE_CACHE")
    if given:
        return Path(os.path.abspath(os.path.expanduser(given)))
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return Path(os.path.expanduser(home)) / "sonde"


def spool(url: str) -> Path:
    """The folder in which runs wait for their upload to this folder of runs."""
    return _folder("spool", url)


def mirror(url: str) -> Path:
    """The folder of copies of the runs in this folder of runs."""
    return _folder("mirror", url)


def origin_of(path: str, use: str) -> str | None:
    """The URL of the folder that this folder is the spool or mirror of; None if it is neither.

    Only folders of the cache are asked: a run from elsewhere names no address.
    """
    folder = Path(path)
    if folder.parent != cache_folder() / use:
        return None
    try:
        return (folder / ORIGIN).read_text().strip() or None
    except OSError:
        return None


def _folder(use: str, url: str) -> Path:
    plain = urlsplit(url)._replace(path=urlsplit(url).path.rstrip("/")).geturl()
    digest = hashlib.sha256(plain.encode()).hexdigest()[:12]
    name = _WEB.sub("-", shown(url).partition("://")[2]).strip("-")[-60:]
    folder = cache_folder() / use / f"{name}-{digest}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    origin = folder / ORIGIN
    if not origin.exists():
        temporary = folder / f"{ORIGIN}-{os.urandom(4).hex()}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(plain)
        temporary.rename(origin)
    return folder
