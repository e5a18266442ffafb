"""`python -m sonde.compat train.py ...`: run a program on the drop-ins, with nothing edited."""

from __future__ import annotations

import runpy
import sys

from sonde.compat import NAMES, install
from sonde.compat.script import run_as_main

USAGE = f"""usage: python -m sonde.compat SCRIPT [ARGUMENT ...]
       python -m sonde.compat -m MODULE [ARGUMENT ...]

Run a program with Sonde's drop-ins in place of: {", ".join(NAMES)}.
With several processes: torchrun --nproc-per-node=2 -m sonde.compat SCRIPT ..."""


def main(arguments: list[str]) -> int:
    """Run the program that the arguments name."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "-m" and len(arguments) > 1:
        sys.argv[:] = arguments[1:]
        install()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return 0
    try:
        run_as_main(arguments)
    except FileNotFoundError as error:
        if error.filename != arguments[0]:
            raise
        print(f"There is no file `{arguments[0]}`.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
