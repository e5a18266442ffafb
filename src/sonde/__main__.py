"""`python -m sonde` is the command line.

`-m` puts the current directory first on the path. It is taken off before anything else is imported,
so that a folder of runs cannot replace a module. Python itself imports a few modules earlier than
that: in a stranger's folder use the command `sonde`, or `python -P -m sonde`.
"""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] in ([""], [os.getcwd()]):
    del sys.path[0]

from sonde.cli import main  # after the path is right

sys.exit(main())
