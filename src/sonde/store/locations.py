"""Where runs lie: making a run directory, finding one by path, and listing those in a folder."""

from __future__ import annotations

import os
import re
import stat
import time
import unicodedata
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sonde._errors import RunError, SondeError
from sonde.store import documents, provenance
from sonde.store.documents import DamagedError, Document
from sonde.store.files import Files, publish
from sonde.store.schemas import FORMAT_VERSION

RUN_FILE: Final = "run.json"
LATEST: Final = "latest"

_LONGEST_NAME_BYTES: Final = 255
"""What common file systems allow."""

_MAJOR: Final = int(FORMAT_VERSION.split(".")[0])


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run in a folder. `problem` says why its `run.json` cannot be read, if so."""

    path: str
    created_ns: int
    problem: str | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)


def create(
    files: Files, path: str, config: Mapping[str, object], run_id: str | None = None
) -> Document:
    """Make the directory a run, or join the run that it already is. Returns its `run.json`."""
    root = os.path.abspath(path)
    _refuse_precious(root)
    _make_folder(root, path)
    if not os.path.lexists(os.path.join(root, RUN_FILE)):
        _refuse_foreign(root, path)
        now_ns = time.time_ns()
        about = {
            "format_version": FORMAT_VERSION,
            "run_id": run_id or uuid.uuid4().hex,
            "created_ns": now_ns,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ns / 1e9)),
            "config": dict(config),
            "versions": provenance.versions(),
            "command": provenance.command(),
            "git": provenance.git(),
            "host": provenance.host(),
        }
        try:
            publish(files, root, RUN_FILE, documents.dump(about))
        except OSError as error:
            raise RunError(
                f"Cannot write to `{path}`: {error.strerror or error}. "
                "Choose a directory that is writable and has space."
            ) from error
    return _own_run_file(root, path)


def check_name(name: object, *, resume: bool = False) -> str:
    """The name of a run, if it can be one: a single folder inside the folder of runs.

    `latest` stands for the newest run, so it can only be resumed.
    """
    problem = _problem_of(name, resume=resume)
    if problem is not None:
        raise SondeError(
            f"`name` {problem}, got {name!r}. It names one new folder inside `dir`. "
            "To write somewhere else, pass `dir`."
        )
    return str(name)


def _problem_of(name: object, *, resume: bool) -> str | None:
    if not isinstance(name, str):
        return "must be a string"
    if not name.strip():
        return "must not be empty"
    if "/" in name or "\\" in name or re.match("[A-Za-z]:", name):
        return "must not be a path"
    if name.startswith("."):
        return "must not begin with a dot"
    if any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in name):
        return "must not contain control characters"
    if len(name.encode()) > _LONGEST_NAME_BYTES:
        return f"must have at most {_LONGEST_NAME_BYTES} bytes"
    if name == LATEST and not resume:
        return f"must not be `{LATEST}`, which stands for the newest run"
    return None


def read_run_file(root: str) -> Document:
    """`run.json`, refused if a newer Sonde wrote it. Raises DamagedError or FileNotFoundError."""
    about = documents.load(os.path.join(root, RUN_FILE))
    version = about.get("format_version")
    major = version.split(".")[0] if isinstance(version, str) else ""
    if not major.isdecimal():
        raise DamagedError("has no format version")
    if int(major[:9]) > _MAJOR:
        raise RunError(
            f"The run `{root}` has format version {version}, this Sonde reads up to {_MAJOR}.x. "
            "Install a newer Sonde to read it."
        )
    return about


def read_about(root: str) -> tuple[Document, str | None]:
    """`run.json`, or nothing and why it cannot be read. Raises if there is none."""
    try:
        return read_run_file(root), None
    except FileNotFoundError:
        raise RunError(f"`{root}` is not a run: it has no `{RUN_FILE}`.") from None
    except (DamagedError, OSError) as error:
        return {}, str(error)


def resolve(path: str | os.PathLike[str]) -> str:
    """The directory of the run meant by `path`; `<folder>/latest` is the newest run in it."""
    given = os.path.expanduser(os.fspath(path))
    root = os.path.abspath(given)
    if os.path.basename(root) == LATEST and not os.path.isdir(root):
        return _newest(os.path.dirname(root))
    if not os.path.lexists(root):
        raise RunError(f"There is no run at `{given}`.{_nearby(root)}")
    if not os.path.isdir(root):
        raise RunError(
            f"`{given}` is a file, not a run directory. Pass the folder with `run.json`."
        )
    if os.path.lexists(os.path.join(root, RUN_FILE)):
        return root
    inside = find_runs(root)
    if inside:
        names = ", ".join(f"`{run.name}`" for run in inside[:8])
        more = f" and {len(inside) - 8} more" if len(inside) > 8 else ""
        raise RunError(
            f"`{given}` is a folder of runs, not a run. It holds {names}{more}. "
            f"Open one of them, or `{os.path.join(given, LATEST)}`."
        )
    raise RunError(f"`{given}` is not a run: it has no `run.json`.")


def find_runs(folder: str) -> list[FoundRun]:
    """The runs directly inside a folder, newest first."""
    runs = []
    try:
        with os.scandir(folder) as entries:
            paths = [entry.path for entry in entries if _is_folder(entry)]
    except OSError as error:
        raise RunError(f"Cannot list `{folder}`: {error.strerror or error}.") from error
    for path in paths:
        found = _found(path)
        if found is not None:
            runs.append(found)
    return sorted(runs, key=lambda run: (run.created_ns, run.name), reverse=True)


def _found(path: str) -> FoundRun | None:
    try:
        created = read_run_file(path).get("created_ns")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except Exception as error:  # a stranger's run may be wrong in any way, and hides no other
        return FoundRun(path, _modified_ns(path), str(error) or type(error).__name__)
    if not isinstance(created, int) or not 0 <= created < 1 << 63:
        created = _modified_ns(path)
    return FoundRun(path, created)


def _newest(folder: str) -> str:
    if not os.path.isdir(folder):
        raise RunError(f"There is no folder `{folder}` to find the latest run in.")
    runs = find_runs(folder)
    if not runs:
        raise RunError(f"There is no run in `{folder}` yet.")
    return runs[0].path


def _refuse_precious(root: str) -> None:
    home = os.path.abspath(os.path.expanduser("~"))
    if root in {os.path.abspath(os.sep), home}:
        raise RunError(f"`{root}` cannot be a run directory. Choose a folder of its own below it.")


def _make_folder(root: str, path: str) -> None:
    try:
        os.makedirs(root, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise RunError(f"`{path}` is a file or lies below one. Choose another directory.") from None
    except OSError as error:
        raise RunError(f"Cannot make the directory `{path}`: {error.strerror or error}.") from error


def _refuse_foreign(root: str, path: str) -> None:
    try:
        inside = [name for name in os.listdir(root) if not name.startswith(".tmp-")]
    except OSError as error:
        raise RunError(f"Cannot list `{path}`: {error.strerror or error}.") from error
    # Another rank may have made it a run since we looked; then it is no stranger's.
    if inside and RUN_FILE not in inside and not os.path.lexists(os.path.join(root, RUN_FILE)):
        raise RunError(
            f"`{path}` is not empty and not a run (it holds `{min(inside)}`). "
            "Choose an empty or new directory."
        )


def _own_run_file(root: str, path: str) -> Document:
    try:
        about = read_run_file(root)
    except (DamagedError, OSError) as error:
        raise RunError(
            f"`{path}` cannot be continued: `{RUN_FILE}` {error}. Choose another directory."
        ) from error
    if not isinstance(about.get("run_id"), str):
        raise RunError(f"`{path}` cannot be continued: `{RUN_FILE}` has no run id.")
    return about


def _nearby(root: str) -> str:
    folder = os.path.dirname(root)
    if not os.path.isdir(folder):
        return ""
    runs = find_runs(folder)
    return f" The newest one there is `{runs[0].name}`." if runs else ""


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _modified_ns(path: str) -> int:
    try:
        status = os.lstat(path)
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISDIR(status.st_mode) else 0
