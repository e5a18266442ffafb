"""Optional dependencies: import them where they are used, or say how to install them."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(module: str, *, extra: str) -> ModuleType:
    """The imported module, or an ImportError that names the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ImportError(
            f"{name} is not installed. Install it with: pip install 'sonde[{extra}]'"
        ) from error
