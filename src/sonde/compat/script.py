"""A script that runs with the drop-ins installed, here and in the processes that it spawns.

`python -m sonde.compat` makes this module the spec of `__main__`. A process that is spawned imports
the spec of its parent's `__main__`, so it comes here and runs the same script in the same way.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from sonde.compat import install

_SCRIPT: Final = "SONDE_COMPAT_SCRIPT"


def run_as_main(arguments: list[str]) -> None:
    """Run `arguments[0]` as `python` would, with the rest as its arguments."""
    path = arguments[0]
    main = ModuleType("__main__")
    main.__file__ = path
    main.__spec__ = find_spec(__name__)
    sys.modules["__main__"] = main
    os.environ[_SCRIPT] = os.path.abspath(path)
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    _run(path, main.__dict__)


def _run(path: str, namespace: dict[str, object]) -> None:
    install()
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, namespace)  # noqa: S102  # the user's own script, as Python itself runs it


if __name__ == "__mp_main__":  # a spawned process: `runpy` has put this module in its place
    __file__ = sys.argv[0] = os.environ[_SCRIPT]
    _run(__file__, globals())
