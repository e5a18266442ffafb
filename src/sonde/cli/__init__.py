"""The command line: `sonde VERB ...`, one file of this package per verb.

A verb is a module here whose name does not begin with `_`; elsewhere in a name, `_` stands for `-`,
and at its end for nothing (`import_`).
It has `HELP` (a line), `GROUP`, `EXAMPLES`, `add_arguments(parser)` and `run(arguments) -> int`,
and imports what is heavy inside `run`. Exit codes: 0 all is well, 1 found problems, 2 bad usage.
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
from typing import Final

from sonde._errors import SondeError, SondeWarning
from sonde._version import VERSION

GROUPS: Final = ("Record", "Read", "Manage", "Set up")
"""Headings of `sonde --help`, in order."""

_ABOUT: Final = "Record what happens inside neural networks while they train."
_MORE: Final = """\
Run `sonde VERB --help` for the options of a verb and an example.
`sonde demo` is a good start. A RUN is a run directory, or FOLDER/latest for the newest run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    parsed = parsers()[""].parse_args(arguments)
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


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each verb, by name, and that of the whole command line, as the name `""`."""
    found = verbs()
    whole = argparse.ArgumentParser(
        prog="sonde",
        usage="sonde [--version] [--help] VERB ...",
        description=f"{_ABOUT}\n\n{_overview(found)}",
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"sonde {VERSION}")
    choices = whole.add_subparsers(metavar="VERB", required=True, help=argparse.SUPPRESS)
    made = {"": whole}
    for name, module in found.items():
        verb = made[name] = choices.add_parser(
            name,
            description=f"{module.HELP[0].upper()}{module.HELP[1:]}.",
            epilog="\n".join(["examples:", *(f"  {line}" for line in module.EXAMPLES)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.set_defaults(verb=module.run)
    return made


def _overview(found: dict[str, ModuleType]) -> str:
    """The verbs with a line each, by group."""
    width = max(map(len, found))
    parts = []
    for group in GROUPS:
        lines = [
            f"  {name:{width}}  {module.HELP}"
            for name, module in found.items()
            if group == module.GROUP
        ]
        parts.append("\n".join([f"{group}:", *lines]))
    return "\n\n".join(parts)
