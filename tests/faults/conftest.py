"""Fault tests share the made runs and the faulty file systems of the store's tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "store"))
