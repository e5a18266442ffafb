"""A program that compacts a run again and again, until it is killed. Run by `test_kill.py`."""

import sys
import time

from sonde import RunError
from sonde.store.writing.compaction import compact

while True:
    try:
        compact(sys.argv[1])
        print("compacted", flush=True)
    except RunError:
        pass  # not a run yet
    time.sleep(0.01)
