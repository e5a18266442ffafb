"""`sonde export`: a table of a run as Parquet, CSV or HDF5, its numbers as HDF5 groups, or a
report as one HTML file."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

    from sonde.store import Run

HELP = "write a run as one HTML file, or one of its tables as Parquet, CSV or HDF5"
GROUP = "Manage"
EXAMPLES = (
    "sonde export runs/latest --html report.html",
    "sonde export runs/latest --to stats.parquet",
)

ENDINGS: Final = (".parquet", ".csv", ".h5", ".hdf5")
PAGES: Final = (".html", ".htm")
TABLES: Final = ("stats", "bins", "scalars", "metrics", "sites", "events")
_ROWS_AT_ONCE: Final = 250_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="run directory, or FOLDER/latest")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--to", metavar="FILE", help="FILE.parquet, .csv or .h5: one table")
    where.add_argument(
        "--hdf5", metavar="FILE", help="FILE.h5: scalars and metrics, a group for each"
    )
    where.add_argument("--html", metavar="FILE", help="FILE.html: the page with the run inside")
    parser.add_argument("--max-mb", type=float, metavar="N", help="size of the HTML (default: 20)")
    parser.add_argument(
        "--include",
        metavar="PATTERN",
        action="append",
        help="tensors whose histograms the HTML holds (default: all); may be given again",
    )
    parser.add_argument(
        "--kind",
        metavar="KIND",
        action="append",
        help="kinds of tensors whose histograms the HTML holds (default: all); may be given again",
    )
    parser.add_argument(
        "--compare-with",
        metavar="RUN",
        action="append",
        default=[],
        help="a run that the HTML compares this one with; may be given again",
    )
    parser.add_argument("--table", choices=TABLES, default="stats", help="default: stats")
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde.cli import _damage, _text
    from sonde.store import open_run

    with open_run(arguments.run, frame="arrow") as found:
        if arguments.html is not None:
            return _report(found, arguments)
        if arguments.hdf5 is not None:
            target = _checked_target(arguments.hdf5, found.path, force=arguments.force)
            series = found.to_hdf5(target)
            if arguments.json:
                _text.print_json({"file": target, "series": series})
            else:
                size = _text.bytes_text(os.path.getsize(target))
                print(f"{series:,} series of numbers to {target} ({size})")
            return _damage.mention(found)
        target = _checked_target(arguments.to, found.path, force=arguments.force)
        rows = _export(found, arguments.table, target)
        if arguments.json:
            _text.print_json({"file": target, "table": arguments.table, "rows": rows})
        else:
            size = _text.bytes_text(os.path.getsize(target))
            print(f"{_text.plural(rows, 'row')} of {arguments.table} to {target} ({size})")
        return _damage.mention(found)


def _report(found: Run, arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from sonde._errors import SondeError
    from sonde.cli import _damage, _text
    from sonde.present.report import writing

    max_mb = writing.MAX_MB if arguments.max_mb is None else arguments.max_mb
    if not max_mb > 0:
        raise SondeError(f"`--max-mb` must be larger than 0, got {max_mb:g}.")
    target = _checked_target(arguments.html, found.path, PAGES, force=arguments.force)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("report")
        made = writing.write(
            found,
            target,
            max_mb=max_mb,
            include=arguments.include,
            kinds=arguments.kind,
            compare_with=arguments.compare_with,
            on_progress=lambda done, of: bar.update(task, completed=done, total=of),
        )
    if arguments.json:
        _text.print_json(
            {"file": target, "bytes": made.size_bytes, "left_out": list(made.left_out)}
        )
    else:
        print(
            f"Report of {_text.clean(found.name)} to {target} "
            f"({_text.bytes_text(made.size_bytes)}). Left out:"
        )
        for sentence in made.left_out:
            print(f"  - {sentence}")
    return _damage.mention(found)


def _checked_target(
    path: str, run_path: str, endings: tuple[str, ...] = ENDINGS, *, force: bool
) -> str:
    from sonde._errors import SondeError

    target = os.path.abspath(path)
    if _ending(target) not in endings:
        known = ", ".join(endings)
        raise SondeError(f"Cannot infer the format of `{path}`. Its name must end in {known}.")
    inside = os.path.realpath(run_path)
    if os.path.commonpath([os.path.realpath(target), inside]) == inside:
        raise SondeError(f"`{path}` lies inside the run. Choose a file outside it.")
    if os.path.lexists(target) and not force:
        raise SondeError(f"`{path}` exists. Choose another name, or `--force` to overwrite it.")
    if not os.path.isdir(os.path.dirname(target)):
        raise SondeError(f"There is no folder `{os.path.dirname(target)}`.")
    return target


def _export(found: Run, table: str, target: str) -> int:
    """Write to a file beside the target and move it there when it is complete."""
    from sonde._errors import SondeError
    from sonde.cli._formats import FORMATS

    part = f"{target}.part"
    rows = 0
    try:
        batches = _batches(found, table)
        first = next(batches)
        with FORMATS[_ending(target)](part, table, first.schema) as append:
            for batch in chain([first], batches):
                append(batch)
                rows += batch.num_rows
        os.replace(part, target)
    except OSError as error:
        raise SondeError(f"Cannot write `{target}`: {error.strerror or error}.") from error
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    return rows


def _batches(found: Run, table: str) -> Iterator[pa.Table]:
    """The table a range of steps at a time, so that a large run fits in memory. At least one."""
    if table in {"sites", "events"}:
        yield found.sql(f"select * from {table}")
        return
    counts = found.sql(f"select step, count(*) as n from {table} group by step order by step")
    steps, sizes = counts["step"].to_pylist(), counts["n"].to_pylist()
    query = f"select * from {table} where step between ? and ? order by step"
    if not steps:
        yield found.sql(query, [0, -1])
    first = held = 0
    for i, n in enumerate(sizes):
        held += n
        if held >= _ROWS_AT_ONCE or i == len(sizes) - 1:
            yield found.sql(query, [steps[first], steps[i]])
            first, held = i + 1, 0


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()
