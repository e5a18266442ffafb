"""The store: what keeps a run on disk and reads it back. `FORMAT.md` is the contract.

Names are looked up on first use: who writes a run does not load what reads one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sonde.store.limits import Limits as Limits
    from sonde.store.reading.run import Run as Run
    from sonde.store.reading.run import open_run as open_run
    from sonde.store.writing.writer import Writer as Writer

_LAZY = {
    "Limits": "limits",
    "Run": "reading.run",
    "open_run": "reading.run",
    "Writer": "writing.writer",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'sonde.store' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
