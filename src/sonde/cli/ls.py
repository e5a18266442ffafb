"""`sonde ls`: the runs in a folder."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from sonde.store.attempts import AttemptRecord
    from sonde.store.locations import FoundRun

HELP = "list the runs in a folder"
GROUP = "Read"
EXAMPLES = ("sonde ls runs",)
_RANKS_SHOWN = 4
_LAID_OUT = 200
"""More runs than this are listed as plain text."""


class ListedRow(TypedDict):
    """A run as `sonde ls` lists it."""

    name: str
    path: str
    status: str
    created_s: float
    step: int | None
    records: int
    dropped: int
    ranks: int
    world_size: int | None
    crashed_ranks: list[int]
    size_bytes: int
    problem: str | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        nargs="?",
        default="runs",
        help="where to look: a folder or its URL (default: runs)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    from sonde._errors import RunError
    from sonde.cli import _text
    from sonde.store import locations
    from sonde.store.remote import caches, mirror
    from sonde.store.remote.objects import is_url

    folder, sizes = arguments.folder, {}
    if is_url(folder):
        folder, sizes = str(caches.mirror(folder)), mirror.refresh_folder(folder)
    elif not os.path.isdir(folder):
        raise RunError(f"There is no folder `{folder}`.")
    rows = [_row_or_problem(found, sizes) for found in locations.find_runs(folder)]
    if arguments.json:
        _text.print_json(rows)
    elif rows:
        _print(rows, arguments.folder)
    else:
        _text.say(f"There is no run in `{arguments.folder}` yet.")
    return 1 if any(row["problem"] for row in rows) else 0


def _row_or_problem(found: FoundRun, sizes: Mapping[str, int]) -> ListedRow:
    """A run that is wrong in a way that nothing foresees is listed too, and hides no other."""
    try:
        return _row(found, sizes.get(found.name))
    except Exception as error:
        return {
            "name": found.name,
            "path": found.path,
            "status": "unknown",
            "created_s": found.created_ns / 1e9,
            "step": None,
            "records": 0,
            "dropped": 0,
            "ranks": 0,
            "world_size": None,
            "crashed_ranks": [],
            "size_bytes": 0,
            "problem": found.problem or f"cannot be listed ({type(error).__name__}: {error})"[:200],
        }


def _row(found: FoundRun, size_bytes: int | None) -> ListedRow:
    """What can be told without opening a segment; of a run that crashed, what can be read."""
    from sonde.store import attempts

    records, problems = attempts.AttemptReader(found.path).read()
    latest = [record.latest for record in records.values()]
    steps = [n for doc in latest if isinstance(n := doc.get("step"), int)]
    written = [n for doc in latest if isinstance(n := doc.get("written"), int)]
    dropped = [d for doc in latest if isinstance(d := doc.get("dropped"), dict)]
    status = attempts.run_status(records) if records else "unknown"
    step, n_records = max(steps, default=None), sum(written)
    if status == "crashed":  # its last heartbeat knows nothing of what came after
        step, n_records = _readable(found.path, step, n_records)
    problem = found.problem or next(iter(problems.values()), None)
    return {
        "name": found.name,
        "path": found.path,
        "status": status,
        "created_s": found.created_ns / 1e9,
        "step": step,
        "records": n_records,
        "dropped": sum(n for d in dropped for n in d.values() if isinstance(n, int)),
        "ranks": len({attempt.rank for attempt in records}),
        "world_size": attempts.world_size(attempts.last_of_ranks(records)),
        "crashed_ranks": _crashed(attempts.last_of_ranks(records)),
        "size_bytes": _size(found.path) if size_bytes is None else size_bytes,
        "problem": problem,
    }


def _crashed(last: Mapping[int, AttemptRecord]) -> list[int]:
    """Ranks that died; none where that is all there is to say of the run."""
    found = [rank for rank, record in last.items() if record.status() == "crashed"]
    return found if len(last) > 1 else []


def _readable(path: str, step: int | None, n_records: int) -> tuple[int | None, int]:
    """The last step and the number of records that can be read; what was given if none can."""
    from sonde._errors import RunError
    from sonde.store import open_run

    try:
        with open_run(path) as run:
            last, info = run.progress.last_step, run.info
    except (RunError, OSError):
        return step, n_records
    return last, info["records"] + info["numbers"]


def _size(path: str) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _note(row: ListedRow) -> str:
    parts = []
    if row["crashed_ranks"]:
        shown = ", ".join(str(r) for r in row["crashed_ranks"][:_RANKS_SHOWN])
        more = ", …" if len(row["crashed_ranks"]) > _RANKS_SHOWN else ""
        parts.append(f"rank {shown}{more} died")
    if row["dropped"]:
        parts.append(f"{row['dropped']:,} dropped")
    return ", ".join(parts)


def _ranks(row: ListedRow) -> str:
    """How many ranks wrote, of how many there are."""
    world = row["world_size"]
    return str(row["ranks"]) if world in (None, row["ranks"]) else f"{row['ranks']} of {world}"


def _cells(row: ListedRow) -> list[str]:
    from sonde.cli import _status, _text

    ago = _text.duration_text(max(time.time() - row["created_s"], 0))
    return [
        _text.clean(row["name"]),
        str(_status.styled(row["status"])),
        f"{ago} ago",
        _text.number(row["step"]),
        _text.number(row["records"]),
        _ranks(row),
        _text.bytes_text(row["size_bytes"]),
        _text.clean(row["problem"] or _note(row)),
    ]


def _print_plain(lines: list[list[str]]) -> None:
    """Columns without colours: rich takes 0.7 ms to lay out a line, 1.4 s for 2,000 runs."""
    from sonde.cli import _text

    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (
            cell.rjust(width) if 3 <= i <= 6 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        _text.say("  ".join(cells).rstrip())


def _print(rows: list[ListedRow], folder: str) -> None:
    from rich import box
    from rich.table import Table

    from sonde.cli import _status, _text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for heading in ("run", "status", "started"):
        table.add_column(heading, no_wrap=True)
    for heading in ("step", "records", "ranks", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", style="yellow")
    console = _text.console()
    lines = [_cells(row) for row in rows]
    if len(rows) > _LAID_OUT:
        headings = [str(column.header) for column in table.columns]
        _print_plain([headings, *lines])
    else:
        for row, (name, _, *rest) in zip(rows, lines, strict=True):
            table.add_row(name, _status.styled(row["status"]), *rest)
        console.print(table)
    first = _text.clean(os.path.join(folder, str(rows[0]["name"])))
    console.print(f"sonde show {first}", style="dim")
