"""`sonde show`: what a run has seen, on one screen."""

from __future__ import annotations

import argparse

HELP = "summarize a run: status, cost, NaN and Inf, tensors, scalars"
GROUP = "Read"
EXAMPLES = ("sonde show runs/latest",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default="runs/latest", help="default: runs/latest"
    )
    parser.add_argument("--sites", action="store_true", help="list every site")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde.cli import _summary, _text
    from sonde.store import open_run

    with open_run(arguments.run, frame="arrow") as found:
        summary = _summary.summarise(found)
        if arguments.json:
            _text.print_json(summary)
        else:
            from sonde.cli import _screen

            _screen.draw(summary, shown_as=arguments.run, all_sites=arguments.sites)
        info = summary["info"]
        return 1 if info["damaged"] or info["dropped"] else 0
