"""`sonde coord-check`: does what training does to a model depend on its width?"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from typing import Any

HELP = "check whether updates depend on the width of a model"
GROUP = "Record"
EXAMPLES = ("sonde coord-check examples/coordinates.py:standard --widths 64,128",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "make",
        metavar="FILE.py:FUNCTION",
        help="makes a model, an optimizer and a loss for a width; or package.module:FUNCTION",
    )
    parser.add_argument(
        "--widths", default="128,256,512,1024", metavar="N,N,...", help="default: 128 to 1024"
    )
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="updates; default: 3")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument(
        "--where", metavar="PATTERN", help="which modules; default: with parameters"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw it into this image")
    parser.add_argument("--dir", metavar="FOLDER", help="keep the runs in this folder")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 if updates depend on the width."""
    from sonde._errors import SondeError
    from sonde._require import require
    from sonde.cli import _text

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        require("torch", extra="torch")
        if arguments.plot:
            require("matplotlib", extra="plots")
    except ImportError as error:
        raise SondeError(str(error)) from None
    from sonde.coordinates import matplotlib
    from sonde.coordinates.torch.training import coord_check

    found = coord_check(
        _function(arguments.make),
        widths=_widths(arguments.widths),
        steps=arguments.steps,
        seeds=arguments.seeds,
        where=arguments.where,
        dir=arguments.dir,
        progress=lambda text: print(text, file=sys.stderr),
    )
    if arguments.plot:
        matplotlib.plot(found, arguments.plot)
    if arguments.json:
        _text.print_json(found.as_dict())
    else:
        print(found)
    return 0 if found.is_stable else 1


def _widths(text: str) -> list[int]:
    from sonde._errors import SondeError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SondeError(f"`--widths` must be numbers such as 64,128,256, got {text!r}.") from None


def _function(text: str) -> Callable[..., Any]:
    """The function that `FILE.py:FUNCTION` or `package.module:FUNCTION` names. `Any`: unchecked."""
    from sonde._errors import SondeError

    where, _, name = text.rpartition(":")
    if not where or not name.isidentifier():
        raise SondeError(f"Name a function as FILE.py:FUNCTION, got {text!r}.")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location("sonde_coord_check", where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(where)
        found: Callable[..., Any] = getattr(module, name)
    except (OSError, ImportError, AttributeError) as error:
        raise SondeError(f"Cannot load `{text}`: {error}.") from error
    return found
