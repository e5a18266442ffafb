"""A program that compacts a run again and again, until it is killed. Run by `test_kill.py`."""

import os
import time

from sonde import RunError
from sonde.store.writing.compaction import compact


def main(path: str) -> None:
    while True:
        try:
            compact(path)
            os.write(1, b"compacted\n")
        except RunError:
            pass  # not a run yet
        time.sleep(0.01)
