"""`sonde query`: a question to a run in SQL."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

HELP = "run SQL on a run: stats, bins, scalars, metrics, sites, events"
GROUP = "Read"
EXAMPLES = (
    "sonde query runs/latest \"select step, name, rms from stats where kind = 'param_grad'\"",
)
_SHOWN = 50


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory, or FOLDER/latest")
    parser.add_argument("sql", metavar="SQL", help="for instance: select step, value from scalars")
    parser.add_argument("--limit", type=int, default=_SHOWN, help="rows to print (default: 50)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print all rows as JSON")
    how.add_argument("--csv", action="store_true", help="print all rows as CSV")


def run(arguments: argparse.Namespace) -> int:
    from sonde.cli import _damage, _text
    from sonde.store import open_run

    with open_run(arguments.run, frame="arrow") as found:
        table = found.sql(arguments.sql)
        if arguments.json:
            _text.print_json(table.to_pylist())
        elif arguments.csv:
            _write_csv(table)
        else:
            _print(table, max(arguments.limit, 1))
        return _damage.mention(found)


def _write_csv(table: pa.Table) -> None:
    from pyarrow import csv

    from sonde.cli import _cells

    sys.stdout.flush()
    shown = _cells.for_terminal(table) if sys.stdout.isatty() else table
    csv.write_csv(_cells.for_csv(shown), sys.stdout.buffer)


def _print(table: pa.Table, limit: int) -> None:
    from rich import box
    from rich.table import Table

    from sonde.cli import _text

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for field in table.schema:
        is_number = str(field.type) in {"double", "float", "int64", "int32", "int16"}
        shown.add_column(_text.clean(field.name), justify="right" if is_number else "left")
    for row in table.slice(0, limit).to_pylist():
        shown.add_row(*(_cell(value) for value in row.values()))
    console = _text.console()
    console.print(shown)
    if table.num_rows > limit:
        console.print(
            f"{table.num_rows - limit:,} more rows: --limit N, --json or --csv", style="dim"
        )


def _cell(value: object) -> str:
    from sonde.cli import _text

    if value is None:
        return "–"
    if isinstance(value, float):
        return "nan" if value != value else f"{value:.6g}"  # noqa: PLR0124  # NaN is data here
    return _text.clean(value)
