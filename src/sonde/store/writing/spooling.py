"""Spooling: a run for an object store is written here first, and uploaded behind the training."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from typing import Final

from sonde._errors import RunError, SondeError
from sonde.store import locations
from sonde.store.remote import caches
from sonde.store.remote.mirror import RunMirror, refresh_folder
from sonde.store.remote.objects import below, shown

_ANSWER_S: Final = 20.0
"""How long a store may take to say what it has of a run, before the run begins without it."""


def run_id_at(url: str) -> str:
    """The id of a run at a URL: the same on every machine, so that ranks need not ask."""
    return uuid.uuid5(uuid.NAMESPACE_URL, shown(url)).hex


def spool_for(url: str, name: str | None, warn: Callable[[str], None], *, resume: bool) -> str:
    """The folder in which runs for a folder of runs at a URL are written on this machine.

    What the store has of the run `name` is copied there first. A run without a name is a new one.

    Raises:
        RunError: if a run is to be resumed and the store does not answer.
    """
    folder = str(caches.spool(url))
    if name is None and not resume:
        return folder
    problem = _within(_ANSWER_S, lambda: _fetch(folder, url, name))
    if problem and resume:
        raise RunError(f"The run in `{shown(url)}` cannot be resumed: {problem}.")
    if problem:
        warn(
            f"`{shown(url)}` does not answer: {problem}. Sonde records into `{folder}` and uploads "
            "when it does."
        )
    return folder


def _fetch(folder: str, url: str, name: str | None) -> None:
    if name is None or name == locations.LATEST:
        refresh_folder(url)
        runs = locations.find_runs(str(caches.mirror(url)))
        if not runs:
            raise RunError("it has no run yet")
        name = runs[0].name
    RunMirror(os.path.join(folder, name), below(url, name), keeps=True).pull()


def _within(limit_s: float, work: Callable[[], None]) -> str | None:
    """Do the work, for at most so long; what went wrong, if something did."""
    problems: list[str] = []
    is_done = threading.Event()

    def run() -> None:
        try:
            work()
        except SondeError as error:
            problems.append(str(error).rstrip("."))
        except Exception as error:
            problems.append(f"{type(error).__name__}: {error}"[:300])
        is_done.set()

    threading.Thread(target=run, name="sonde-fetch", daemon=True).start()
    if not is_done.wait(limit_s):
        return f"no answer within {limit_s:.0f} s"
    return problems[0] if problems else None
