"""`sonde import`: runs of TensorBoard, W&B and Neptune as runs that the page and the verbs show."""

from __future__ import annotations

import argparse
import os

HELP = "convert TensorBoard, W&B or Neptune files to runs"
GROUP = "Record"
EXAMPLES = ("sonde import wandb/offline-run-20260301_101500-abcd --name first",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path", metavar="PATH", help="event files, .wandb file, run_operations.sqlite3, or a folder"
    )
    parser.add_argument("--dir", default="runs", help="folder of runs (default: runs)")
    parser.add_argument("--name", help="name of the run, if there is one")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde.cli import _text
    from sonde.imports import import_runs

    made = import_runs(arguments.path, dir=arguments.dir, name=arguments.name)
    if arguments.json:
        _text.print_json({"runs": [os.fspath(path) for path in made]})
    else:
        for path in made:
            print(_text.clean(f"Imported {path}"))
    return 0
