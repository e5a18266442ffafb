"""Names of the files of a run, as objects: which there are, and in which order they travel."""

from __future__ import annotations

import re
import zlib
from typing import Final

from sonde.store import attempts
from sonde.store.home import FOLDERS
from sonde.store.locations import RUN_FILE
from sonde.store.segments import parse_rank_folder

_KEPT: Final = re.compile(r"a\d{4,9}-[0-9a-f]{4}-[0-9-]+-([0-9a-f]{8})\.(?:parquet|safetensors)")
_DATA: Final = tuple(name for name in FOLDERS if name != attempts.FOLDER)


def is_of_run(name: str, rank: int | None = None) -> bool:
    """Whether a file of a run has this name, one of this rank if a rank is given."""
    return name == RUN_FILE or is_document(name, rank) or is_data(name, rank)


def is_document(name: str, rank: int | None = None) -> bool:
    """Whether this is a file of `ranks/`."""
    folder, _, file = name.partition("/")
    found = attempts.FILE_NAME.fullmatch(file) if folder == attempts.FOLDER else None
    return found is not None and rank in (None, int(found[1]))


def is_data(name: str, rank: int | None = None) -> bool:
    """Whether this is a segment or a file of tensors: written once, with its checksum."""
    parts = name.split("/")
    if len(parts) != 3 or parts[0] not in _DATA or not _KEPT.fullmatch(parts[2]):
        return False
    found = parse_rank_folder(parts[1])
    return found is not None and rank in (None, found)


def is_sound(name: str, data: bytes) -> bool:
    """Whether these bytes are those that the name promises."""
    found = _KEPT.fullmatch(name.rpartition("/")[2])
    return found is None or found[1] == f"{zlib.crc32(data):08x}"


def changes(name: str) -> bool:
    """Whether a file of this name is replaced while a run is written, or says that it is over."""
    return name.endswith((".hb.json", ".end.json"))


def is_compacted_away(name: str) -> bool:
    """Whether a file of this name may make room for a larger one."""
    return is_data(name) and not name.endswith(".safetensors")
