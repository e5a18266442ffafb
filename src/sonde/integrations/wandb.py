"""Weights & Biases: the report of a run, shown in a W&B run. Its numbers go there by a sink."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from sonde._errors import SondeError
from sonde._require import require
from sonde.present.report.writing import MAX_MB, RunReport, write
from sonde.store.reading.run import open_run


class ReportedRun(Protocol):
    """What is used of a `wandb.Run`."""

    def log(self, data: Mapping[str, object], *, commit: bool) -> object: ...


def log_report(
    path: str | os.PathLike[str],
    run: ReportedRun | None = None,
    *,
    key: str = "sonde/report",
    max_mb: float = MAX_MB,
    include: str | Sequence[str] | None = None,
    kinds: str | Sequence[str] | None = None,
) -> RunReport:
    """Log the report of a run directory as a `wandb.Html`, in the active W&B run by default.

    It joins the row that you log next, or the last one: the step of the W&B run does not move.
    `max_mb`, `include` and `kinds` are those of `Run.to_html`. The answer says what was left out.

    Raises:
        SondeError: If there is no W&B run.
        ImportError: If wandb is not installed.
    """
    wandb = require("wandb", extra="wandb")
    run = run or wandb.run
    if run is None:
        raise SondeError("There is no active W&B run. Call `wandb.init()` first, or give one.")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        with open_run(path) as opened:
            made = write(opened, page, max_mb=max_mb, include=include, kinds=kinds)
        html = wandb.Html(page.read_text(), inject=False, data_is_not_path=True)
        run.log({key: html}, commit=False)
    return made
