"""Where a run goes, and its first step."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from sonde._errors import SondeError
from sonde.store.locations import RUN_FILE, check_name
from sonde.store.remote.objects import below, is_url
from sonde.store.writing.spooling import spool_for


class Placement(NamedTuple):
    """A run directory, its first step, and whether that is a guess: after the last record.
    `is_resumed`: the run is there, and goes on. `url`: where it is uploaded to."""

    path: Path
    step: int
    is_guess: bool = False
    is_resumed: bool = False
    url: str | None = None


def place_run(
    folder: str | os.PathLike[str],
    name: str | None,
    restarts: int = 0,
    warn: Callable[[str], None] = lambda _: None,
    *,
    resume: bool,
    step: int | None,
    updates: int | None,
) -> Placement:
    """Where the run goes, and its first step.

    A run that is resumed goes on at `step`; without one, by how many `updates` the optimizer has
    made; if that is not known either, after its last record. A process that its launcher has
    started again (`restarts`) goes on with the run of that name, if there is one.
    """
    if step is not None and step < 0:
        raise SondeError(f"`step` must be 0 or more, got {step}.")
    if name is not None:
        name = check_name(name, resume=resume)
    if is_url(folder):
        url = str(folder)
        spool = spool_for(url, name, warn, resume=resume)
        made = place_run(spool, name, restarts, resume=resume, step=step, updates=updates)
        return made._replace(url=below(url, made.path.name))
    folder = Path(os.path.abspath(os.path.expanduser(folder)))
    goes_on = bool(restarts and name is not None and (folder / name / RUN_FILE).is_file())
    if not (resume or goes_on):
        return Placement(folder / (name or new_name()), step or 0)
    from sonde.store.reading.run import open_run  # what reads is loaded only to go on with a run

    with open_run(folder / (name or "latest")) as run:
        path, is_guess = Path(run.path), False
        if step is None and updates is not None:
            step = max(updates + _ahead(run.info["config"]), 0)
        elif step is None:
            step, is_guess = max(run.steps, default=-1) + 1, True
        return Placement(path, step, is_guess, is_resumed=True)


def new_name() -> str:
    """A name for a run: the time, and random characters."""
    stamp = datetime.now(UTC).astimezone().strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{secrets.token_hex(2)}"


def _ahead(config: Mapping[str, object]) -> int:
    """How far the steps of a run are ahead of the optimizer's counter, as they were at its
    start."""
    watch = config.get("watch")
    began = watch.get("began") if isinstance(watch, dict) else None
    if not isinstance(began, dict):
        return 0
    step, updates = began.get("step"), began.get("updates")
    return step - updates if isinstance(step, int) and isinstance(updates, int) else 0


def step_of(state: Mapping[str, object]) -> int:
    """The step of `Watch.state_dict()`."""
    step = state.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise SondeError(f"`state` must hold a `step` of 0 or more, got {step!r}.")
    return step
