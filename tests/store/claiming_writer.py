"""A program that claims a rank of a run when told to. Run by `test_store_claims.py`.

Usage: claiming_writer.py RUN RESUME. Prints `ready`, waits for a line, claims the rank, and prints
`took NUMBER` or `refused MESSAGE`. One that took it writes step 0 and waits for another line.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(__file__))

import made

from sonde import RunError
from sonde.store.writing.writer import Writer


def main(path: str, resume: str) -> None:
    print("ready", flush=True)
    input()
    try:
        writer = Writer(path, resume_from_step=None if resume == "new" else int(resume))
    except RunError as error:
        print("refused", error, flush=True)
        return
    writer.sites(made.sites(4))
    writer.sketches(made.batch(0))
    writer.flush()
    print("took", writer.attempt.number, flush=True)
    input()
    writer.close()


main(*sys.argv[1:])
