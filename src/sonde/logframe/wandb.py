"""A LogFrame as an artifact of a W&B run, of the type that Track & Visualize gives its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final, Protocol

from sonde._errors import SondeError
from sonde._require import require
from sonde.logframe.files import write
from sonde.logframe.schema import Frame

_TYPE: Final = "tandv-logframe"


class ArtifactRun(Protocol):
    """What is used of a `wandb.Run`."""

    id: str

    def log_artifact(self, artifact: object) -> object: ...


def to_wandb(frame: Frame, run: ArtifactRun | None = None, *, name: str | None = None) -> object:
    """Log a LogFrame as an artifact of a W&B run, the active one by default: a Parquet file.

    Returns the artifact.

    Raises:
        SondeError: If there is no run.
        ImportError: If wandb is not installed.
    """
    wandb = require("wandb", extra="wandb")
    run = run or wandb.run
    if run is None:
        raise SondeError("There is no active W&B run. Call `wandb.init()` first, or give one.")
    artifact = wandb.Artifact(name or f"logframe-{run.id}", type=_TYPE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "logframe.parquet")
        write(frame, path)
        artifact.add_file(str(path))  # copies it
    return run.log_artifact(artifact)
