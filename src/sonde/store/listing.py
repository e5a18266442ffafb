"""Listing: which files of a run have the name of a segment, before one is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sonde.store import segments
from sonde.store.schemas import Table
from sonde.store.segments import Attempt, SegmentName

Stamp = tuple[int, int, int]
"""Size, time of change and inode: while they stay the same, the file does."""


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """A file that is not what it should be, or a segment that is gone: `file` `problem`."""

    file: str
    problem: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file with the name of a segment, in the right place."""

    path: str
    name: SegmentName
    stamp: Stamp
    is_compacted: bool


def list_segments(root: str, table: Table, damages: list[Damage]) -> dict[Attempt, list[Candidate]]:
    """All candidates of a table by attempt: rising, of those that begin together the longest first.

    The live folder is listed before the compacted one: a row is in a live segment until a compacted
    one that holds it has its name. Raises FileNotFoundError if a file vanishes meanwhile.
    """
    found: dict[Attempt, list[Candidate]] = {}
    for folder in table.folders:
        for rank, path in _rank_folders(root, folder, damages):
            for entry in _entries(root, path, damages):
                if entry.name.startswith(".") or not entry.name.endswith(".parquet"):
                    continue
                name = segments.parse_name(entry.name, rank)
                if name is None:
                    where = os.path.relpath(entry.path, root)
                    damages.append(Damage(where, "does not have the name of a segment"))
                    continue
                status = entry.stat(follow_symlinks=False)
                stamp = (status.st_size, status.st_mtime_ns, status.st_ino)
                candidate = Candidate(entry.path, name, stamp, folder == table.compacted)
                found.setdefault(name.attempt, []).append(candidate)
    for candidates in found.values():
        candidates.sort(key=_order)
    return found


def _order(c: Candidate) -> tuple[int, int, bool, str]:
    return (c.name.first, -c.name.last, not c.is_compacted, c.path)


def _rank_folders(root: str, folder: str, damages: list[Damage]) -> list[tuple[int, str]]:
    above = os.path.join(root, folder)
    if os.path.islink(above):
        damages.append(Damage(folder, "is a symbolic link"))
        return []
    found = []
    for entry in _entries(root, above, damages):
        rank = segments.parse_rank_folder(entry.name)
        if rank is None:
            continue
        if entry.is_dir(follow_symlinks=False):
            found.append((rank, entry.path))
        else:
            damages.append(Damage(os.path.relpath(entry.path, root), "is not a folder"))
    return sorted(found)


def _entries(root: str, folder: str, damages: list[Damage]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        where = os.path.relpath(folder, root)
        damages.append(Damage(where, f"cannot be listed ({error.strerror or error})"))
        return []
