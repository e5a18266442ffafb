"""`python -m sonde` is the command line."""

import sys

from sonde.cli import main

sys.exit(main())
