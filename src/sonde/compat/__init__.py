"""Drop-ins for five tools: their names, arguments and results, on the engine of Sonde.

A program uses one by changing an import: `from sonde.compat.torchexplorer import watch`. With
nothing changed, `python -m sonde.compat train.py` or `install()` serve them under their own names:

import sonde.compat

sonde.compat.install()
import torchexplorer  # Sonde's
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from sonde._errors import SondeError

NAMES: Final = {
    "neptune_torchwatcher": "torchwatcher",
    "tandv": "tandv",
    "tensortrace": "tensortrace",
    "torch_module_monitor": "torch_module_monitor",
    "torchexplorer": "torchexplorer",
    "torchwatcher": "torchwatcher",
}
"""Names that programs import, and the drop-in of each."""


def install(names: str | Iterable[str] | None = None) -> None:
    """Serve the drop-ins under the names of the original packages, from now on, in this process.

    Call it before these packages are imported. The first import of one prints a line to stderr.

    Args:
        names: Which of `sonde.compat.NAMES`; all by default.

    Raises:
        SondeError: A name has no drop-in, or the original has been imported already.
    """
    wanted = list(NAMES) if names is None else [names] if isinstance(names, str) else list(names)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise SondeError(f"`{unknown[0]}` has no drop-in. Drop-ins are: {', '.join(NAMES)}.")
    if late := [name for name in wanted if _is_original(sys.modules.get(name))]:
        raise SondeError(
            f"`{late[0]}` has been imported already, so its drop-in would not be used. "
            f"Call `sonde.compat.install()` first, or run `python -m sonde.compat SCRIPT`."
        )
    found = next((f for f in sys.meta_path if isinstance(f, DropInFinder)), None)
    if found is None:
        found = DropInFinder()
        sys.meta_path.insert(0, found)
    found.names |= set(wanted)


def uninstall() -> None:
    """Undo `install`: later imports find the original packages."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, DropInFinder)]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in NAMES and not _is_original(module):
            del sys.modules[name]


def close_when_dropped(close: Callable[[], None], thread: int) -> None:
    """Close something that nothing refers to any more, and that was made in this thread.

    The garbage collector runs in any thread, also in one that closing waits for: then it is closed
    in a thread of its own. At the end of the interpreter it is closed in any case.
    """
    with suppress(Exception):
        if threading.get_ident() == thread:
            close()
        else:
            threading.Thread(target=close, name="sonde-close", daemon=True).start()


class DropInFinder(MetaPathFinder):
    """Finds the drop-in of a package, and of each of its modules, under the original name."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._has_told = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The spec of a module that is another one: the drop-in."""
        package, _, rest = fullname.partition(".")
        if package not in self.names:
            return None
        ours = f"{__name__}.{NAMES[package]}{'.' if rest else ''}{rest}"
        try:
            found = find_spec(ours)
        except ModuleNotFoundError:  # of a module whose parent is no package
            found = None
        if found is None:
            return None
        if not self._has_told:
            self._has_told = True
            names = ", ".join(sorted(self.names))
            print(
                f"sonde: `import {package}` imports `{__name__}.{NAMES[package]}`. "
                f"The same holds for: {names}.",
                file=sys.stderr,
            )
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _DropInLoader(ours), is_package=is_package)


class _DropInLoader(Loader):
    """Puts the drop-in itself in the place of a module, so that both names mean one object."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._ours)


def _is_original(module: ModuleType | None) -> bool:
    return module is not None and not module.__name__.startswith(f"{__name__}.")
