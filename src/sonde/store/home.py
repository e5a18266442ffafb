"""The home of a run: its directory, looked at again before anything is put into it.

A user may delete the run and begin another one in its place while its writer lives, or put a
symbolic link where a folder was. A writer and a compactor refuse what a reader refuses.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, field
from typing import Final

from sonde._errors import RunError
from sonde.store import attempts, documents, locations
from sonde.store.documents import DamagedError
from sonde.store.schemas import TABLES
from sonde.store.segments import parse_rank_folder

TENSORS: Final = "tensors"
FOLDERS: Final = (attempts.FOLDER, TENSORS, *(name for table in TABLES for name in table.folders))
"""All folders of a run."""


class ReplacedError(OSError):
    """There is another run in the directory now."""


@dataclass(slots=True)
class Home:
    """The directory of the run with this id."""

    root: str
    run_id: str
    _known: tuple[int, ...] = field(default=(), init=False)
    """What `run.json` looked like when it last had our run id."""

    def folder(self, *parts: str) -> str:
        """The path of a folder in the run, which need not exist.

        Raises OSError if the run is gone or another one, or if the path leads through a link.
        """
        self._check_run()
        path = self.root
        for part in parts:
            path = os.path.join(path, part)
            if is_link(path):
                raise OSError(errno.ELOOP, f"`{os.path.relpath(path, self.root)}` is a link", path)
        return path

    def _check_run(self) -> None:
        file = os.path.join(self.root, locations.RUN_FILE)
        status = os.lstat(file)
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if seen == self._known:
            return
        try:
            found = documents.load(file).get("run_id")
        except DamagedError as error:
            raise OSError(errno.EIO, f"`{locations.RUN_FILE}` {error}", file) from error
        if found != self.run_id:
            raise ReplacedError(errno.ESTALE, "another run has been begun in its directory", file)
        self._known = seen


def refuse_links(root: str, rank: int | None, verb: str) -> None:
    """Raise RunError if a folder of the run is a symbolic link, or one of the rank (or of any)."""
    for name in FOLDERS:
        folder = os.path.join(root, name)
        inside = [] if is_link(folder) or not os.path.isdir(folder) else os.listdir(folder)
        found = {name: parse_rank_folder(name) for name in inside}
        ranks = [n for n, r in found.items() if r is not None and rank in (None, r)]
        for path in (folder, *(os.path.join(folder, n) for n in ranks)):
            if is_link(path):
                where = os.path.relpath(path, root)
                raise RunError(
                    f"`{root}` cannot be {verb}: `{where}` is a symbolic link, and might lead "
                    "anywhere. Put the folder itself in its place."
                )


def is_link(path: str) -> bool:
    """Whether something has this name and is a symbolic link."""
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False
