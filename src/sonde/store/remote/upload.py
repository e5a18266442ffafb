"""Upload: a thread that copies a run from its spool to an object store, behind the training.

What a heartbeat speaks of is uploaded before the heartbeat is, so that a reader of the store finds
every segment that it is told of. A store that is slow or down is asked again, less and less often;
the spool keeps all until it answers.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sonde._signals import pass_on
from sonde.store import attempts
from sonde.store.documents import DamagedError, read_regular
from sonde.store.home import FOLDERS
from sonde.store.locations import RUN_FILE
from sonde.store.remote import names
from sonde.store.remote.objects import Objects, StoredObjects, shown
from sonde.store.schemas import TABLES
from sonde.store.segments import parse_name, parse_rank_folder, rank_folder

_PASS_S: Final = 2.0
_BEAT_S: Final = 10.0
_LONGEST_PAUSE_S: Final = 60.0
_LAST_TRIES: Final = 3
"""How often a store that fails is asked at the end of a run."""

_LATE_S: Final = 60.0
"""A file that has waited for so long is told of in the run."""


@dataclass(frozen=True, slots=True)
class UploadState:
    """How far an upload has come: files and bytes that wait, and what went wrong last."""

    url: str
    uploaded: int
    waiting: int
    waiting_bytes: int
    failures: int
    error: str | None


class Uploader:
    """Copies the run at `root` to the objects of a URL, of one rank or of all."""

    def __init__(
        self,
        root: str,
        url: str,
        *,
        rank: int | None = None,
        tell: Callable[[str, str], None] = lambda _code, _message: None,
        on_state: Callable[[UploadState], None] = lambda _state: None,
        objects: Objects | None = None,
    ) -> None:
        self._root = root
        self._url = shown(url)
        self._rank = rank
        self._tell = tell
        self._on_state = on_state
        self._objects = objects or StoredObjects(url)
        self._stored: dict[str, int] | None = None
        self._beats: dict[str, bytes] = {}
        self._beaten_s = 0.0
        self._uploaded = 0
        self._failures = 0
        self._error: str | None = None
        self._waiting: dict[str, int] = {}
        self._behind_since_s: float | None = None
        self._wake = threading.Event()
        self._is_closing = False
        self._is_whole = False
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread."""
        self._thread = threading.Thread(target=self._run, name="sonde-upload", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> bool:
        """Upload what is left, for at most `timeout_s`; whether all of it is in the store."""
        self._is_closing = True
        self._wake.set()
        self._is_over.wait(timeout_s)
        if not self._is_whole:
            self._tell("upload_unfinished", self.left_over)
        return self._is_whole

    @property
    def state(self) -> UploadState:
        waiting = list(self._waiting.values())
        return UploadState(
            self._url, self._uploaded, len(waiting), sum(waiting), self._failures, self._error
        )

    @property
    def left_over(self) -> str:
        """What is said of a run that is not in the store when its process ends."""
        why = f" ({self._error})" if self._error else ""
        return (
            f"Files of the run are not in `{self._url}` yet{why}. They are safe in `{self._root}`: "
            f"upload them with `sonde upload {self._root}`."
        )

    def upload(self) -> None:
        """Copy what is new, once. Raises OSError if the store does not take it."""
        if self._stored is None:
            self._stored = self._found_in_store()
        # Read first, stored last: by then all that they speak of is there.
        beats = self._documents()
        files = self._files()
        new = {name: size for name, size in files.items() if self._stored.get(name) != size}
        self._waiting = dict(new)
        self._on_state(self.state)
        for name, size in new.items():
            data = self._read(name)
            if data is not None and len(data) == size:
                self._put(name, data)
        for name, data in beats.items():
            if self._beats.get(name) != data:
                self._put(name, data)
                self._beats[name] = data
        self._remove_compacted(self._stored, files)

    def _run(self) -> None:
        pause_s, tries = _PASS_S, _LAST_TRIES
        while tries:
            is_last = self._is_closing
            try:
                self.upload()
            except Exception as error:  # of any library that reaches a store
                self._failed(error)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                tries -= is_last
            else:
                self._error, pause_s = None, _PASS_S
                if is_last:
                    self._is_whole = True
                    break
            self._report()
            if is_last:
                time.sleep(_PASS_S / 2)
            else:
                self._wake.wait(pause_s)
        self._is_over.set()

    def _report(self) -> None:
        """Tell how far it is; and once, that the store does not keep up."""
        self._on_state(self.state)
        now_s = time.monotonic()
        if not self._waiting:
            self._behind_since_s = None
        elif self._behind_since_s is None:
            self._behind_since_s = now_s
        elif now_s - self._behind_since_s > _LATE_S:
            self._tell(
                "upload_late",
                f"`{self._url}` does not keep up: {len(self._waiting)} files wait in "
                f"`{self._root}`. Training and recording continue.",
            )

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self._error = f"{type(error).__name__}: {error}"[:300]
        self._tell(
            "upload",
            f"Cannot upload to `{self._url}`: {self._error}. Training and recording continue; the "
            f"files wait in `{self._root}`, and the upload is tried again.",
        )

    def _put(self, name: str, data: bytes) -> None:
        self._objects.put(name, data)
        assert self._stored is not None
        self._stored[name] = len(data)
        self._waiting.pop(name, None)
        self._uploaded += 1
        self._on_state(self.state)

    def _found_in_store(self) -> dict[str, int]:
        """What is there already: of a run that goes on, or of an upload that was cut off."""
        if self._rank is None:
            found = self._objects.find()
        else:
            own = rank_folder(self._rank)
            places = (f"{name}/{own}" for name in FOLDERS if name != attempts.FOLDER)
            found = self._objects.find(attempts.FOLDER)
            for place in places:
                found |= self._objects.find(place)
            about = self._objects.info(RUN_FILE)
            found |= {} if about is None else {RUN_FILE: about}
        return {
            name: info.size_bytes
            for name, info in found.items()
            if names.is_of_run(name, self._rank) and not names.changes(name)
        }

    def _documents(self) -> dict[str, bytes]:
        """The files of this rank that say how far it is, and how it ended."""
        is_due = self._is_closing or time.monotonic() - self._beaten_s > _BEAT_S
        listed = _listed(os.path.join(self._root, attempts.FOLDER))
        found = {}
        for file in listed:
            name = f"{attempts.FOLDER}/{file}"
            if names.changes(name) and names.is_document(name, self._rank):
                data = self._read(name) if is_due or file.endswith(".end.json") else None
                if data is not None:
                    found[name] = data
        if is_due:
            self._beaten_s = time.monotonic()
        return found

    def _files(self) -> dict[str, int]:
        """Files that are written once, with their sizes, in the order in which they go up."""
        found = dict(self._sized(RUN_FILE))
        for folder in FOLDERS:
            for inner in _listed(os.path.join(self._root, folder)):
                name = f"{folder}/{inner}"
                if parse_rank_folder(inner) is None:
                    found |= self._sized(name)
                    continue
                for file in _listed(os.path.join(self._root, name)):
                    found |= self._sized(f"{name}/{file}")
        return found

    def _sized(self, name: str) -> dict[str, int]:
        if not names.is_of_run(name, self._rank) or names.changes(name):
            return {}
        try:
            size = os.lstat(os.path.join(self._root, name)).st_size
        except OSError as error:
            pass_on(error)
            return {}  # compacted away
        # Whoever came first has written what was run.
        stored = (self._stored or {}).get(name)
        return {} if name == RUN_FILE and stored is not None else {name: size}

    def _read(self, name: str) -> bytes | None:
        try:
            return read_regular(os.path.join(self._root, name))
        except (OSError, DamagedError) as error:
            pass_on(error)
            return None  # compacted away, or replaced just now: the next pass has it

    def _remove_compacted(self, stored: dict[str, int], files: Mapping[str, int]) -> None:
        """Delete the objects of segments whose rows are in a larger one that is stored."""
        gone = [name for name in stored if name not in files and names.is_data(name, self._rank)]
        for name in gone:
            if _is_covered(name, stored):
                self._objects.delete(name)
                del stored[name]


def _is_covered(name: str, stored: Mapping[str, int]) -> bool:
    folder, ranked, file = name.split("/")
    table = next((t for t in TABLES if t.compacted and folder in t.folders), None)
    rank = parse_rank_folder(ranked) or 0
    segment = parse_name(file, rank)
    if table is None or segment is None:
        return False
    above = f"{table.compacted}/{ranked}/"
    for other in stored:
        larger = parse_name(other[len(above) :], rank) if other.startswith(above) else None
        if (
            larger is not None
            and larger.attempt == segment.attempt
            and larger.first <= segment.first
            and larger.last >= segment.last
            and other != name
        ):
            return True
    return False


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        pass_on(error)
        return []
