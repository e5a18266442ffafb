"""`sonde compact`: many small segments into few large ones."""

from __future__ import annotations

import argparse
import os
import sys

HELP = "merge the small files of a run; reading gets faster and nothing is lost"
GROUP = "Manage"
EXAMPLES = ("sonde compact runs/latest",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory, or FOLDER/latest")
    parser.add_argument("--rank", type=int, help="only this rank")
    parser.add_argument("--background", action="store_true", help="with low priority, one thread")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    import pyarrow as pa

    from sonde._errors import RunError
    from sonde.cli import _text
    from sonde.store import locations
    from sonde.store.writing import compaction

    if arguments.background:
        os.nice(19)
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
    path = locations.resolve(arguments.run)
    try:
        report = compaction.compact(path, rank=arguments.rank)
    except OSError as error:
        raise RunError(f"Cannot compact `{path}`: {error.strerror or error}.") from error
    if arguments.json:
        _text.print_json(
            {
                "segments_before": report.segments_before,
                "segments_after": report.segments_after,
                "removed": report.removed,
                "damaged": [{"file": d.file, "problem": d.problem} for d in report.damages],
            }
        )
    else:
        before, after = report.segments_before, report.segments_after
        print(f"{before:,} segments became {after:,}." if before else "Nothing to compact.")
    for damage in report.damages:
        said = _text.clean(f"sonde: not compacted: {damage.file} {damage.problem}")
        print(said, file=sys.stderr)
    return 1 if report.damages else 0
