"""`sonde diff`: where two runs part, and what differs most."""

from __future__ import annotations

import argparse

HELP = "compare two runs: the first difference and the ten tensors farthest apart"
GROUP = "Read"
EXAMPLES = ("sonde diff runs/before runs/after",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a run")
    parser.add_argument("b", metavar="B", help="the run to compare it with")
    parser.add_argument(
        "--map",
        metavar="OLD=NEW",
        action="append",
        default=[],
        help="a module's path in A and its path in B; may be given several times",
    )
    parser.add_argument("--twin", metavar="RUN", help="A with another seed: measures the noise")
    parser.add_argument("--phase", default="train", help="default: train")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde._errors import SondeError
    from sonde.cli import _text
    from sonde.comparison import compare

    names = {}
    for pair in arguments.map:
        old, equals, new = pair.partition("=")
        if not equals:
            raise SondeError(f"`--map {pair}` must be OLD=NEW, two paths of modules.")
        names[old] = new
    found = compare(
        arguments.a, arguments.b, names=names, twin=arguments.twin, phase=arguments.phase
    )
    if arguments.json:
        _text.print_json(found.to_dict())
    else:
        for line in found.lines():
            print(_text.clean(line))
    return 0 if found.verdict in {"identical", "alike"} else 1
