"""The spec behind a figure: one question to the views, about a run or the path of one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sonde._errors import SondeError
from sonde.store.reading.run import Run, open_run
from sonde.views import ids
from sonde.views.answers import ANSWERS, ANSWERS_OF_SEVERAL
from sonde.views.runs.opened_run import OpenedRun
from sonde.views.runs.several import SeveralRuns

RunLike = Run | str | os.PathLike[str]
Sites = str | Sequence[str]

_OPENED: WeakKeyDictionary[Run, OpenedRun] = WeakKeyDictionary()
MAX_PANELS = 64
"""Panels of one figure: more are too small to read."""


def opened(run: RunLike) -> OpenedRun:
    """The run, ready for questions."""
    if not isinstance(run, Run):
        return OpenedRun(open_run(run), "run")
    found = _OPENED.get(run)
    if found is None:
        found = _OPENED[run] = OpenedRun(run, "run")
    return found


def ask(run: OpenedRun, view: str, question: object) -> Any:  # the spec of the view
    """The answer of a view."""
    return ANSWERS[view](run, question)


def ask_several(runs: Sequence[OpenedRun], view: str, question: object) -> Any:
    """The answer of a view of several runs, which the question names by their place: "0", "1"."""
    return ANSWERS_OF_SEVERAL[view](SeveralRuns(lambda place: runs[int(place)]), question)


def site_ids(run: OpenedRun, pattern: Sites, kind: str | None, stage: str = "final") -> list[str]:
    """Ids of the sites that a pattern, or each of several, stands for."""
    several = [pattern] if isinstance(pattern, str) else list(pattern)
    catalogue = run.run.catalogue()
    names = {site.name for site in catalogue.sites}
    found: dict[str, None] = {}
    for one in several:
        if one in names:  # the whole name of a site stands for itself
            found[one] = None
        else:
            found |= dict.fromkeys(s.name for s in catalogue.select(one, kind, stage=stage))
    if not found:
        of_kind = f" of kind `{kind}`" if kind else ""
        raise SondeError(f"No site{of_kind} matches {_quoted(several)}. See `run.sites`.")
    if len(found) > MAX_PANELS:
        raise SondeError(
            f"{_quoted(several)} matches {len(found)} sites, and a figure holds {MAX_PANELS}. "
            "Give a narrower pattern, or a kind."
        )
    return [ids.of_name(name) for name in found]


def steps_of(steps: int | tuple[int, int] | None) -> tuple[int | None, int | None]:
    """First and last step of a range, both included."""
    if steps is None:
        return None, None
    if isinstance(steps, int):
        return steps, steps
    first, last = steps
    return first, last


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
