"""The shelf: the runs in a folder, by id, and what can be told of each without opening it.

A shelf reads names, `run.json` and the small files of ranks; segments stay closed. An id is looked
up among the runs that are there: nothing that a question holds becomes part of a path.
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sonde.store import attempts, locations
from sonde.store.attempts import AttemptReader, AttemptRecord
from sonde.store.documents import Document
from sonde.views import ids
from sonde.views.runs.opened_run import MAX_LABEL, shown
from sonde.views.specs import Fact, RunRow, Runs, RunStatus

_MAX_RUNS: Final = 1000
_MAX_SETTINGS: Final = 60
_APART: Final = frozenset({"tags", "note", "notes"})

HOW_TO_RECORD: Final = """\
import sonde

with sonde.watch(model, optimizer=optimizer, every=10) as watch:
    for x, y in loader:
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        watch.log(loss=loss)
"""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run on the shelf. `problem` says why it cannot be opened, if so."""

    id: str
    path: str
    name: str
    run_id: str | None
    created_ns: int
    model: str | None
    problem: str | None
    settings: tuple[Fact, ...] = ()
    tags: tuple[str, ...] = ()
    note: str = ""


class RunList:
    """The runs in a folder; or the one run that the folder is."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(os.path.expanduser(folder))
        self._readers: dict[str, AttemptReader] = {}
        self._abouts: dict[str, tuple[tuple[int, int, int], ListedRun]] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[ListedRun]:
        """All runs, newest first. A folder that is not there has none."""
        with self._lock:
            paths = self._paths()
            found = [self._shelved(path) for path in paths]
            for known in (self._abouts, self._readers):
                for gone in known.keys() - set(paths):
                    del known[gone]
        kept = {run.id: run for run in found if run is not None}
        return sorted(kept.values(), key=lambda run: (run.created_ns, run.name), reverse=True)

    def find(self, id: str) -> ListedRun | None:
        """The run with that id, if it is there."""
        return next((run for run in self.runs() if run.id == id), None)

    def table(self) -> Runs:
        """The list as a page shows it."""
        runs = self.runs()
        return Runs(
            folder=shown(self.folder, 500),
            runs=tuple(self._row_or_problem(run) for run in runs[:_MAX_RUNS]),
            left_out=max(len(runs) - _MAX_RUNS, 0),
            how_to_record=HOW_TO_RECORD,
        )

    def stamp(self, run: ListedRun) -> str:
        """Changes whenever a file of the run came or went, or its writers ended."""
        told = repr((_status(self._records(run.path)), _listing(run.path), run.problem))
        return f"{zlib.crc32(told.encode('utf-8', 'replace')):08x}"

    def version(self) -> str:
        """Changes whenever the list would look different."""
        told = [(r.id, r.problem, _status(self._records(r.path))) for r in self.runs()]
        return f"{zlib.crc32(repr(told).encode('utf-8', 'replace')):08x}"

    def _paths(self) -> list[str]:
        if os.path.lexists(os.path.join(self.folder, locations.RUN_FILE)):
            return [self.folder]
        try:
            with os.scandir(self.folder) as entries:
                names = [e.path for e in entries if _is_folder(e)]
        except OSError:
            return []
        return sorted(names)

    def _shelved(self, path: str) -> ListedRun | None:
        try:
            status = os.lstat(os.path.join(path, locations.RUN_FILE))
        except OSError:
            return None
        stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
        known = self._abouts.get(path)
        if known is None or known[0] != stamp:
            known = self._abouts[path] = (stamp, _read(path))
        return known[1]

    def _records(self, path: str) -> Sequence[AttemptRecord]:
        reader = self._readers.setdefault(path, AttemptReader(path))
        try:
            with self._lock:
                return list(reader.read()[0].values())
        except Exception:  # a stranger's run may be wrong in any way, and hides no other
            return []

    def _row_or_problem(self, run: ListedRun) -> RunRow:
        """A run that is wrong in a way that nothing foresees is listed too, and hides no other."""
        try:
            return self._row(run)
        except Exception as error:
            problem = run.problem or f"cannot be listed ({type(error).__name__})"
            return RunRow(
                id=run.id,
                name=shown(run.name, MAX_LABEL),
                status="unknown",
                stamp="",
                created_ms=run.created_ns / 1e6,
                last_seen_ms=None,
                last_step=None,
                records=0,
                dropped=0,
                ranks=0,
                size_bytes=0,
                model=None,
                problem=shown(problem, 300),
                settings=(),
                tags=(),
                note="",
            )

    def _row(self, run: ListedRun) -> RunRow:
        records = self._records(run.path)
        latest = [record.latest for record in records]
        seen = [record.heartbeat_ns for record in records if record.heartbeat_ns]
        steps = [n for d in latest if isinstance(n := d.get("step"), int)]
        dropped = [d.get("dropped") for d in latest]
        lost = [n for d in dropped if isinstance(d, dict) for n in d.values() if isinstance(n, int)]
        written = [n for d in latest if isinstance(n := d.get("written"), int)]
        return RunRow(
            id=run.id,
            name=shown(run.name, MAX_LABEL),
            status=_status(records),
            stamp=self.stamp(run),
            created_ms=run.created_ns / 1e6,
            last_seen_ms=max(seen) / 1e6 if seen else None,
            last_step=max(steps, default=None),
            records=sum(written),
            dropped=sum(lost),
            ranks=len({record.attempt.rank for record in records}),
            size_bytes=sum(size for _, size in _listing(run.path)),
            model=run.model,
            problem=None if run.problem is None else shown(run.problem, 300),
            settings=run.settings,
            tags=run.tags,
            note=run.note,
        )


def _read(path: str) -> ListedRun:
    name = os.path.basename(path)
    try:
        about = locations.read_run_file(path)
    except Exception as error:  # a stranger's run may be wrong in any way, and hides no other
        modified = int(os.path.getmtime(path) * 1e9) if os.path.isdir(path) else 0
        return ListedRun(ids.of_run(name, None), path, name, None, modified, None, str(error))
    run_id, created = about.get("run_id"), about.get("created_ns")
    config = about.get("config")
    given = config.get("user") if isinstance(config, dict) else None
    user: Document = given if isinstance(given, dict) else {}
    return ListedRun(
        id=ids.of_run(name, run_id if isinstance(run_id, str) else None),
        path=path,
        name=name,
        run_id=run_id if isinstance(run_id, str) else None,
        created_ns=created if isinstance(created, int) and abs(created) < 1 << 62 else 0,
        model=_model(about),
        problem=None,
        settings=tuple(_settings(user)),
        tags=_tags(user.get("tags")),
        note=shown(str(user.get("note") or user.get("notes") or ""), 500),
    )


def _model(about: Document) -> str | None:
    config = about.get("config")
    watch = config.get("watch") if isinstance(config, dict) else None
    model = watch.get("model") if isinstance(watch, dict) else None
    return shown(model, MAX_LABEL) if isinstance(model, str) else None


def _settings(config: Document, prefix: str = "") -> list[Fact]:
    """What the user configured, nested names joined by dots."""
    found: list[Fact] = []
    for key, value in config.items():
        if not prefix and key in _APART:
            continue
        if isinstance(value, dict):
            found += _settings(value, f"{prefix}{key}.")
        elif value is not None:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            found.append(Fact(shown(f"{prefix}{key}", MAX_LABEL), shown(text, 120)))
    return found[:_MAX_SETTINGS]


def _tags(given: object) -> tuple[str, ...]:
    several = given if isinstance(given, list) else [given] if isinstance(given, str) else []
    return tuple(shown(str(tag), 60) for tag in several[:20])


def _status(records: Sequence[AttemptRecord]) -> RunStatus:
    if not records:
        return "unknown"
    return attempts.run_status({record.attempt: record for record in records})


def _listing(path: str) -> list[tuple[str, int]]:
    """Names and sizes of the files of a run, two folders deep; heartbeats are left out."""
    found = []
    for folder in _folders(path):
        for rank in _folders(folder):
            found += [(f"{rank}/{name}", size) for name, size in _files(rank)]
    return sorted(found)


def _folders(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [e.path for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _files(path: str) -> list[tuple[str, int]]:
    try:
        with os.scandir(path) as entries:
            return [
                (e.name, e.stat(follow_symlinks=False).st_size)
                for e in entries
                if e.name.endswith(".parquet") and not e.name.startswith(".")
            ]
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
