"""A program that writes known data and says so, until it is killed. Run by `test_kill.py`.

Prints one line per hand-over on standard output, unbuffered: `h STEP NANOSECONDS` after handing a
step over, `f STEP` after a flush that held everything so far.
"""

import itertools
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "store"))

import made

from sonde.store.writing.writer import Writer

N_SITES = 8


def main(path: str, resume: str, flush_s: str, how: str) -> None:
    writer = Writer(
        path,
        resume_from_step=None if resume == "new" else int(resume),
        flush_s=float(flush_s),
        heartbeat_s=0.2,
        compact=False,
    )
    writer.sites(made.sites(N_SITES))
    writer.flush()
    for step in itertools.count(0 if resume == "new" else int(resume)):
        writer.sketches(made.batch(step, N_SITES))
        writer.numbers(made.loss(step))
        os.write(1, f"h {step} {time.monotonic_ns()}\n".encode())
        if how == "flushing" and writer.flush():
            os.write(1, f"f {step}\n".encode())
        time.sleep(0.004)
