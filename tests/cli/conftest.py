"""Tests of the command line share the made runs of the store's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
