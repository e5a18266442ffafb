"""The command line: `sonde VERB ...`, one file of this package per verb.

A verb is a module here whose name does not begin with `_`; elsewhere in a name, `_` stands for `-`,
and at its end for nothing (`import_`).
It has `HELP` (a line), `add_arguments(parser)` and `run(arguments) -> int`, and imports what is
heavy inside of `run`. Exit codes: 0 all is well, 1 found problems, 2 bad usage.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from sonde._errors import SondeError, SondeWarning
from sonde._version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SondeWarning)  # verbs print what is damaged themselves
            code: int = parsed.verb(parsed)
            sys.stdout.flush()
            return code
    except SondeError as error:
        from sonde.cli import _text

        lines = str(error).splitlines() or [""]
        print("\n".join(map(_text.clean, [f"sonde: {lines[0]}", *lines[1:]])), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def verbs() -> dict[str, ModuleType]:
    """All verbs by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return {
        name.rstrip("_").replace("_", "-"): import_module(f"{__name__}.{name}")
        for name in names
        if not name.startswith("_")
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="sonde", description="Looks inside networks in training.")
    parser.add_argument("--version", action="version", version=f"sonde {VERSION}")
    choices = parser.add_subparsers(metavar="VERB", required=True)
    for name, module in verbs().items():
        verb = choices.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(verb)
        verb.set_defaults(verb=module.run)
    return parser
