"""`sonde trace`: what was traced, and the source of methods with what their lines assign."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from sonde.store import Run
    from sonde.views.traced.source import AnnotatedMethod, AssignedValue

HELP = "show traced variables, or source lines with their latest values"
GROUP = "Read"
EXAMPLES = ("sonde trace show runs/latest",)

_SHOWN: Final = 8
_WIDTH: Final = 60
"""Of source beside values; what is longer is cut."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("show", "ls"), help="source with values, or variables")
    parser.add_argument(
        "run", metavar="RUN", nargs="?", default="runs/latest", help="default: runs/latest"
    )
    parser.add_argument(
        "method", metavar="METHOD", nargs="?", default="**", help="such as `layers.*.attn.forward`"
    )
    parser.add_argument("--step", type=int, help="as it was at that step (default: the last)")
    parser.add_argument("--rank", type=int, help="of that rank (default: the first that has it)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde.store import open_run

    with open_run(arguments.run, frame="arrow") as found:
        if arguments.what == "ls":
            _list(found, as_json=arguments.json)
        else:
            _show(found, arguments)
    return 0


def _show(found: Run, arguments: argparse.Namespace) -> None:
    from sonde.cli import _text
    from sonde.views.traced import source

    methods = source.methods(found, arguments.method, step=arguments.step, rank=arguments.rank)
    if arguments.json:
        _text.print_json([asdict(method) for method in methods])
        return
    console = _text.console()
    for method in methods[:_SHOWN]:
        console.print(_heading(method), style="bold")
        for line in method.lines:
            _print_line(console, line.number, line.text, line.assigned)
        for each in method.elsewhere:
            _print_line(console, 0, "(on a line that is not here)", [each])
        console.print()
    rest = [_text.clean(method.name) for method in methods[_SHOWN:]]
    if rest:
        console.print(f"and {len(rest)} more: {', '.join(rest[:_SHOWN])}. Name one to see it.")


def _heading(method: AnnotatedMethod) -> str:
    from sonde.cli import _text

    steps = [a.step for line in method.lines for a in line.assigned]
    when = f"  up to step {max(steps)}" if steps else "  nothing was seen"
    return f"{_text.clean(method.name)}{when}"


def _print_line(console: Console, number: int, text: str, assigned: list[AssignedValue]) -> None:
    from sonde.cli import _text

    shown = _text.clean(text.replace("\t", "    ")).rstrip()
    head = f"{number or '':>5} │ {shown}"
    if not assigned:
        console.print(head, no_wrap=True, overflow="ellipsis", crop=True)
        return
    if len(shown) > _WIDTH:
        shown = shown[: _WIDTH - 1] + "…"
    for n, each in enumerate(assigned):
        source = f"{number or '':>5} │ {shown:{_WIDTH}}" if n == 0 else f"{'':5} │ {'':{_WIDTH}}"
        console.print(_beside(source, each), soft_wrap=True)


def _beside(source: str, each: AssignedValue) -> Text:
    from rich.text import Text

    from sonde.cli import _text

    line = Text(f"{source} ")
    line.append(f"{_text.clean(each.variable)} ", style="bold")
    if each.shape is None:
        line.append(_text.clean(each.text), style="cyan")
        return line
    size = "×".join(str(n) for n in each.shape) or "scalar"
    line.append(f"{_text.clean(each.dtype)} {size}", style="cyan")
    if each.mean is not None:
        mean, std = _text.number(each.mean), _text.number(each.std)
        low, high = _text.number(each.low), _text.number(each.high)
        line.append(f"  {mean} ± {std}  [{low}, {high}]" if size != "scalar" else f"  {mean}")
    if each.not_finite:
        line.append(f"  {each.not_finite} not finite", style="bold red")
    return line


def _list(found: Run, *, as_json: bool) -> None:
    from rich.table import Table

    from sonde.cli import _text

    rows = found.traces.to_pylist()
    if as_json:
        _text.print_json(rows)
        return
    if not rows:
        _text.say(f"Nothing was traced in `{found.name}`. `sonde.trace(model, [...])` does.")
        return
    table = Table("variable", "values", "steps", "ranks", "dtype", "shape", "size", box=None)
    for row in rows:
        table.add_row(
            _text.clean(row["name"]),
            _text.number(row["values"]),
            f"{row['first_step']}–{row['last_step']}",
            str(len(row["ranks"])),
            _text.clean(row["dtype"] or ""),
            "×".join(str(n) for n in row["shape"] or ()),
            _text.bytes_text(row["nbytes"]),
        )
    _text.console().print(table)
