"""Writing a report: as much of a run as fits, and what did not, said on the page and to the caller.

report = run.to_html("report.html")
report.left_out
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sonde._errors import SondeError
from sonde.present.archive import AnswerBlock, Archive
from sonde.present.report.document import document, overhead
from sonde.present.report.wishes import TENSORS, Detail, Wishes
from sonde.store.reading.run import Run, open_run
from sonde.views.runs.opened_run import shown

MAX_MB: Final = 20.0
_MB: Final = 1_000_000
_INDEX_BYTES: Final = 4000
"""What the index takes besides a line for each answer."""

_NEVER: Final = (
    "value axes of panels other than the automatic one, normalized heatmaps, movers and tables in "
    "a part of the steps, single ranks, unfolded groups"
)


Compared = Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]]
"""A run or several, or their paths."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """A report that was written. `left_out` are sentences about what it does not hold."""

    path: str
    size_bytes: int
    left_out: tuple[str, ...]


def write(
    run: Run,
    path: str | os.PathLike[str],
    *,
    max_mb: float = MAX_MB,
    include: str | Sequence[str] | None = None,
    kinds: str | Sequence[str] | None = None,
    compare_with: Compared = (),
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> RunReport:
    """Write the run as one HTML file that opens without a server and without a network.

    The file appears when it is complete. One that exists is replaced.

    Args:
        run: An open run.
        path: Where to write, usually `report.html`.
        max_mb: The file is at most this large, in units of 1,000,000 bytes. What does not fit is
            left out and named.
        include: Patterns of the tensors whose histograms to keep, as for `Run.stats`; None for all.
        kinds: Kinds of tensors whose histograms to keep; None for all.
        compare_with: Runs, or paths of runs, to compare this one with on the Compare page.
        on_progress: Called with how many parts are done and how many there are.
    """
    target = os.fspath(path)
    text, left_out = make(
        run,
        max_mb=max_mb,
        include=include,
        kinds=kinds,
        compare_with=compare_with,
        on_progress=on_progress,
    )
    data = text.encode()
    part = f"{target}.part"
    try:
        with open(part, "wb") as file:
            file.write(data)
        os.replace(part, target)
    except OSError as error:
        raise SondeError(f"Cannot write `{target}`: {error.strerror or error}.") from error
    finally:
        if os.path.lexists(part):
            os.unlink(part)
    return RunReport(target, len(data), left_out)


def make(
    run: Run,
    *,
    max_mb: float = MAX_MB,
    include: str | Sequence[str] | None = None,
    kinds: str | Sequence[str] | None = None,
    compare_with: Compared = (),
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> tuple[str, tuple[str, ...]]:
    """The HTML of a report, and what was left out. Arguments as for `write`."""
    title = f"{shown(run.name, 200)} · Sonde"
    room = int(max_mb * _MB) - overhead(title) - _INDEX_BYTES
    archive = Archive(room)
    others = _opened(compare_with)
    wishes = Wishes(run, _chosen(run, include, kinds), max(room, 0), others=others)
    first = AnswerBlock()
    for asked in wishes.needed():
        first.put(asked, wishes.state)
    archive.add(first, is_needed=True)
    if archive.left_bytes < 0:
        least = (room - archive.left_bytes) / _MB + (max_mb - room / _MB)
        raise SondeError(
            f"`max_mb={max_mb:g}` is too small: the page and the summary of this run take "
            f"{least:.1f} MB."
        )
    kept, wanted = _fill(archive, wishes, on_progress)
    left_out = _left_out(kept, wanted, wishes.detail, include, kinds, max_mb)
    about = {
        "made_ms": time.time() * 1e3,
        "version": wishes.state.version,
        "was_live": wishes.was_live,
        "holds": _holds(wishes.detail),
        "left_out": left_out,
    }
    return document(title, archive, archive.index(about)), left_out


def _fill(
    archive: Archive, wishes: Wishes, on_progress: Callable[[int, int], None]
) -> tuple[dict[str, int], dict[str, int]]:
    """Add what fits. How many of each kind were added, and how many there were."""
    kept: dict[str, int] = {}
    wanted: dict[str, int] = {}
    full: set[str] = set()
    waiting = list(wishes.wishes())
    for done, wish in enumerate(waiting):
        on_progress(done, len(waiting))
        wanted[wish.what] = wanted.get(wish.what, 0) + wish.n
        if wish.what in full:
            continue
        block = AnswerBlock()
        for asked in wish.answers():
            block.put(asked, wishes.state)
        if archive.add(block):
            kept[wish.what] = kept.get(wish.what, 0) + wish.n
        else:
            full.add(wish.what)  # the next ones of this kind would be asked in vain
    on_progress(len(waiting), len(waiting))
    return kept, wanted


def _opened(given: Compared) -> list[Run]:
    several = [given] if isinstance(given, Run | str | os.PathLike) else list(given)
    return [one if isinstance(one, Run) else open_run(one) for one in several]


def _chosen(
    run: Run, include: str | Sequence[str] | None, kinds: str | Sequence[str] | None
) -> list[str] | None:
    """Names of the tensors asked for; None for all."""
    if include is None and kinds is None:
        return None
    patterns = [include] if isinstance(include, str) else list(include or ["*"])
    some = [kinds] if isinstance(kinds, str) else list(kinds or [])
    found = [site.name for one in patterns for site in run.catalogue().select(one, some or None)]
    return list(dict.fromkeys(found))


def _holds(detail: Detail) -> list[str]:
    steps = len(detail.steps)
    return [
        f"histograms at {steps:,} {'step' if steps == 1 else 'steps'}: the nearest one is shown",
        f"heatmaps of at most {detail.heat_columns:,} columns of steps",
        f"histograms over time of at most {detail.kymograph_columns:,} columns",
    ]


def _left_out(
    kept: dict[str, int],
    wanted: dict[str, int],
    detail: Detail,
    include: str | Sequence[str] | None,
    kinds: str | Sequence[str] | None,
    max_mb: float,
) -> tuple[str, ...]:
    found = [
        f"{wanted[what] - kept.get(what, 0):,} of {wanted[what]:,} {what} (size limit "
        f"{max_mb:g} MB)"
        for what in wanted
        if kept.get(what, 0) < wanted[what]
    ]
    if include is not None or kinds is not None:
        found.append(f"{TENSORS} that were not asked for")
    if detail.skipped_steps:
        found.append(f"histograms at {detail.skipped_steps:,} of the recorded steps")
    return (*found, f"what only a server can answer: {_NEVER}")
