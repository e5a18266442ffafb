"""Which runs of other trackers lie at a path, and how each becomes a run of ours."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from sonde._errors import SondeError
from sonde.imports import neptune, tensorboard, wandb
from sonde.imports.foreign import ForeignRun

_EVENTS, _WANDB, _NEPTUNE = "*tfevents*", "*.wandb", "run_operations*.sqlite3"
_STRANGE: Final = re.compile(r"[^\w.-]+", re.ASCII)

Reader = Callable[[], ForeignRun]


def import_runs(
    path: str | os.PathLike[str],
    *,
    dir: str | os.PathLike[str] = "runs",
    name: str | None = None,
) -> list[Path]:
    """Make a run of ours of each run of TensorBoard, W&B or Neptune at a path. Returns their paths.

    `path` is a file or a folder. `name` is for a path with one run.

    Raises:
        SondeError: There is none, or a run of that name exists.
    """
    given = Path(path)
    if not given.exists():
        raise SondeError(f"There is no file or folder `{path}`.")
    readers = dict(_found(given))
    if not readers:
        raise SondeError(
            f"Found no run to import in `{path}`. Known are event files of TensorBoard "
            "(`*tfevents*`), files of W&B (`*.wandb`) and of Neptune (`run_operations.sqlite3`)."
        )
    if name is not None and len(readers) > 1:
        raise SondeError(f"`{path}` has {len(readers)} runs. Leave out the name, or choose one.")
    made = []
    for own, reader in readers.items():
        target = Path(dir) / (name or own)
        if target.exists():
            raise SondeError(f"`{target}` exists. Choose another name, or remove it.")
        run = reader()
        if not (run.numbers or run.histograms):
            raise SondeError(f"`{own}` has neither numbers nor histograms to import.")
        made.append(run.write(target))
    return made


def _found(given: Path) -> Iterator[tuple[str, Reader]]:
    files = [given] if given.is_file() else sorted(p for p in given.rglob("*") if p.is_file())
    root = given.parent if given.is_file() else given
    folders: dict[Path, list[Path]] = {}
    for file in files:
        if file.match(_EVENTS):
            folders.setdefault(file.parent, []).append(file)
    for folder, several in folders.items():
        name = _name(folder, root)
        yield name, partial(tensorboard.read, name, several)
    for file in files:
        if file.match(_WANDB):
            name = _name(file.with_suffix(""), root)
            yield name, partial(wandb.read, name, file)
        elif file.match(_NEPTUNE):
            name = _name(file.parent, root)
            yield name, partial(neptune.read, name, file)


def _name(path: Path, root: Path) -> str:
    """The path below the root, or its own name, as the name of a run."""
    below = path.relative_to(root).as_posix() if path != root else path.resolve().name
    return _STRANGE.sub("-", below).strip("-.") or "imported"
