"""Where a run goes, and its first step."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

from sonde._errors import SondeError
from sonde.store.locations import check_name


def place_run(
    folder: Path, name: str | None, *, resume: bool, step: int | None
) -> tuple[Path, int]:
    """Where the run goes, and its first step."""
    if step is not None and step < 0:
        raise SondeError(f"`step` must be 0 or more, got {step}.")
    folder = Path(os.path.abspath(folder.expanduser()))
    if name is not None:
        name = check_name(name, resume=resume)
    if not resume:
        stamp = datetime.now(UTC).astimezone().strftime("%Y%m%d-%H%M%S")
        return folder / (name or f"{stamp}-{secrets.token_hex(2)}"), step or 0
    from sonde.store.reader import open_run  # what reads is loaded only to go on with a run

    with open_run(folder / (name or "latest")) as run:
        last = max(run.steps, default=-1)
        return Path(run.path), last + 1 if step is None else step
