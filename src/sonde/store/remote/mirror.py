"""A mirror: a copy of a run in an object store, with what was verified, brought up to date.

A reader works on the copy. What a heartbeat speaks of is copied before the heartbeat is, as it was
uploaded. Nothing is copied twice, and a name that no file of a run has is left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sonde._errors import RunError
from sonde.store import attempts, limits, locations
from sonde.store.documents import DamagedError, read_regular
from sonde.store.home import FOLDERS
from sonde.store.locations import RUN_FILE
from sonde.store.remote import caches, names
from sonde.store.remote.objects import (
    ObjectInfo,
    Objects,
    StoredObjects,
    above,
    below,
    is_url,
    shown,
)

_FRESH_S: Final = 2.0
"""A copy that is younger is taken as it is."""

_COPIES: Final = 8
_MIRRORS: Final[dict[str, RunMirror]] = {}
"""Those of this process: what one of them knows need not be asked for again."""


def local(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    """The path itself; of a URL, the path of its copy on this machine, brought up to date.

    Raises:
        RunError: if the store does not answer and there is no copy.
    """
    if not isinstance(path, str) or not is_url(path):
        return path
    folder, name = above(path)
    if name == locations.LATEST:
        refresh_folder(folder)
        return os.path.join(caches.mirror(folder), name)
    root = os.path.join(caches.mirror(folder), locations.check_name(name))
    mirror = mirror_of(root)
    assert mirror is not None, "it was just made"
    mirror.refresh()
    if os.path.lexists(os.path.join(root, RUN_FILE)):
        return root
    raise RunError(f"There is no run at `{shown(path)}`.{_inside(path)}")


def local_folder(url: str) -> str:
    """The folder of copies of the runs below a URL, or the copy of the run that it is."""
    try:
        is_run = StoredObjects(url).info(RUN_FILE) is not None
    except Exception as error:
        raise RunError(f"Cannot read `{shown(url)}`: {error}.") from error
    if is_run:
        return str(local(url))
    refresh_folder(url)
    return str(caches.mirror(url))


@contextlib.contextmanager
def followed(url: str, every_s: float = 5.0) -> Iterator[str]:
    """The folder of copies of the runs below a URL, brought up to date again and again."""
    folder = local_folder(url)
    is_over = threading.Event()

    def follow() -> None:
        while not is_over.wait(every_s):
            with contextlib.suppress(Exception):  # asked again; a run says what is wrong with it
                local_folder(url)

    threading.Thread(target=follow, name="sonde-follow", daemon=True).start()
    try:
        yield folder
    finally:
        is_over.set()


def mirror_of(root: str) -> RunMirror | None:
    """The mirror whose copy is at this path; None for a run that lies here."""
    url = caches.origin_of(os.path.dirname(root), "mirror")
    if url is None:
        return None
    return _MIRRORS.setdefault(root, RunMirror(root, below(url, os.path.basename(root))))


def refresh_folder(url: str) -> dict[str, int]:
    """Bring the copies of all runs below a URL up to date; returns their sizes in the store.

    Of a run that has never been opened, only what it says of itself is copied.
    """
    root = str(caches.mirror(url))
    try:
        found = [n for n in StoredObjects(url).folders() if not n.startswith(".")]
    except Exception as error:
        raise RunError(f"Cannot list `{shown(url)}`: {error}.") from error
    for gone in set(os.listdir(root)) - {*found, caches.ORIGIN}:
        shutil.rmtree(os.path.join(root, gone), ignore_errors=True)
    mirrors = [m for name in found if (m := mirror_of(os.path.join(root, name))) is not None]
    with ThreadPoolExecutor(_COPIES) as pool:
        sizes = list(pool.map(lambda m: m.pull(whole=m.is_opened), mirrors))
    return dict(zip(found, sizes, strict=True))


class RunMirror:
    """The copy at `root` of the run at a URL. What is not in the store any more goes from the copy
    too, unless it `keeps` files of its own that wait for their upload."""

    def __init__(
        self, root: str, url: str, *, keeps: bool = False, objects: Objects | None = None
    ) -> None:
        self._root = root
        self._url = url
        self._keeps = keeps
        self._lock = threading.Lock()
        self._objects = objects or StoredObjects(url)
        self._known: dict[str, ObjectInfo] = {}
        self._pulled_s: float | None = None
        self.problem: str | None = None
        """Why the copy may be older than the run."""

    @property
    def is_opened(self) -> bool:
        """Whether rows of the run have been copied before."""
        inside = os.listdir(self._root) if os.path.isdir(self._root) else []
        return any(name in FOLDERS and name != attempts.FOLDER for name in inside)

    def refresh(self) -> None:
        """Bring the copy up to date, unless that has just been done.

        A store that does not answer leaves the copy as it is.
        """
        now_s = time.monotonic()
        if self._pulled_s is not None and now_s - self._pulled_s < _FRESH_S:
            return
        try:
            self.pull()
            self.problem = None
        except Exception as error:  # of any library that reaches a store
            self.problem = f"`{shown(self._url)}` cannot be read: {type(error).__name__}: {error}"
            if not os.path.lexists(os.path.join(self._root, RUN_FILE)):
                raise RunError(f"{self.problem}.") from error
        self._pulled_s = time.monotonic()

    def pull(self, *, whole: bool = True) -> int:
        """Copy what is new; returns the size of the run in the store.

        Without `whole`, only `run.json` and the files of ranks.
        """
        with self._lock:
            return self._pull(whole=whole)

    def _pull(self, *, whole: bool) -> int:
        self._pull_about()
        ranks = self._listed(attempts.FOLDER)
        changed = [n for n, info in ranks.items() if self._is_new(n, info)]
        documents = {name: self._get(name) for name in changed}
        every = self._listed()
        if whole:
            data = [n for n in every if names.is_data(n) and self._is_new(n, every[n])]
            with ThreadPoolExecutor(_COPIES) as pool:
                list(pool.map(lambda name: self._copy(name, every[name]), data))
        for name, found in documents.items():
            self._place(name, found, ranks[name])
        return sum(info.size_bytes for info in every.values())

    def _pull_about(self) -> None:
        """Copy `run.json`. If it is another run's, what was copied of the first one goes."""
        info = self._objects.info(RUN_FILE)
        path = os.path.join(self._root, RUN_FILE)
        if self._keeps and os.path.lexists(path):
            return
        if info is None:
            shutil.rmtree(self._root, ignore_errors=True)
            self._known.clear()
            return
        if not self._is_new(RUN_FILE, info):
            return
        data = self._get(RUN_FILE)
        if os.path.lexists(path) and read_regular(path) != data:
            shutil.rmtree(self._root)
            self._known.clear()
        self._place(RUN_FILE, data, info)

    def _listed(self, folder: str = "") -> dict[str, ObjectInfo]:
        found = self._objects.find(folder)
        return {name: info for name, info in found.items() if names.is_of_run(name)}

    def _is_new(self, name: str, info: ObjectInfo) -> bool:
        """Whether there is no copy of this object yet. The first time, a copy is verified."""
        path = os.path.join(self._root, name)
        if name in self._known:
            has_changed = self._known[name] != info and not names.is_data(name)
            return has_changed or not os.path.lexists(path)
        if names.changes(name) or name == RUN_FILE:
            return True
        try:
            data = read_regular(path, limit_bytes=limits.SEGMENT_BYTES)
        except (OSError, DamagedError):
            return True
        if len(data) != info.size_bytes or not names.is_sound(name, data):
            return True
        self._known[name] = info
        return False

    def _copy(self, name: str, info: ObjectInfo) -> None:
        try:
            data = self._get(name)
            if not names.is_sound(name, data):
                data = self._get(name)  # once more; readers name what stays damaged
        except FileNotFoundError:
            return  # compacted away: the larger segment was listed, or is the next time
        self._place(name, data, info)

    def _get(self, name: str) -> bytes:
        return self._objects.get(name, limits.SEGMENT_BYTES)

    def _place(self, name: str, data: bytes, info: ObjectInfo) -> None:
        """Give the copy its name, whole, with the time that the store has for it."""
        path = os.path.join(self._root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        temporary = os.path.join(os.path.dirname(path), f".tmp-{os.urandom(6).hex()}")
        with open(temporary, "xb") as file:
            file.write(data)
        os.utime(temporary, ns=(info.modified_ns, info.modified_ns))
        os.replace(temporary, path)
        self._known[name] = info


def _inside(url: str) -> str:
    """What there is instead, for a message."""
    try:
        found = sorted(StoredObjects(url).folders())
    except OSError:
        return ""
    return f" It holds {_listed(found)}." if found else ""


def _listed(found: Iterable[str]) -> str:
    several = list(found)
    more = f" and {len(several) - 8} more" if len(several) > 8 else ""
    return ", ".join(f"`{name}`" for name in several[:8]) + more
