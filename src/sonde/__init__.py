"""Sonde looks inside neural networks while they train."""

from importlib import import_module
from typing import TYPE_CHECKING

from sonde._errors import RunError as RunError
from sonde._errors import SondeError as SondeError
from sonde._errors import SondeWarning as SondeWarning
from sonde._version import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from sonde.store.reader import Run as Run
    from sonde.store.reader import open_run as open  # noqa: A004  # sonde.open reads as intended

_LAZY = {
    "Run": ("sonde.store.reader", "Run"),
    "open": ("sonde.store.reader", "open_run"),
}
"""Names that are looked up on first use, so that `import sonde` loads nothing heavy."""


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
