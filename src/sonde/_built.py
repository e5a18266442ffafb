"""Whether a C extension was built from the sources beside it.

An extension that is older than its sources may take other arguments, or mean others. An install
has both of one version; a checkout, after a pull, may not.
"""

from __future__ import annotations

import logging
import warnings
import zlib
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def stamp_of(package: str) -> str:
    """What all C sources of a package are, as a checksum; empty if they did not come along.

    `setup.py` builds it into the extensions.
    """
    folder = Path(package)
    sources = sorted(path for path in folder.glob("*/c/*") if path.suffix in (".c", ".h"))
    found = 0
    for path in sources:
        found = zlib.crc32(path.name.encode() + path.read_bytes(), found)
    return f"{found:08x}" if sources else ""


def is_current(extension: ModuleType) -> bool:
    """Whether the extension was built from the sources beside it, or there are no sources."""
    stamp = stamp_of(str(Path(__file__).parent))
    return not stamp or getattr(extension, "SOURCES", "") == stamp


def refuse_stale(extension: ModuleType) -> None:
    """Warn and raise ImportError if the extension was built from other sources than there are."""
    from sonde._errors import SondeWarning  # `setup.py` runs this file without the package

    if is_current(extension):
        return
    text = (
        f"`{extension.__name__}` was built from other C sources than those beside it. It is not "
        "used, and recording is slower. Build it again: `pip install -e .`"
    )
    try:
        warnings.warn(text, SondeWarning, stacklevel=2)
    except SondeWarning:  # where warnings are errors, an import still works
        logging.getLogger("sonde.warnings").warning("%s", text)
    raise ImportError(text, name=extension.__name__)
