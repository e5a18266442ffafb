"""LogFrames as artifacts of W&B runs, of the type that Track & Visualize gives its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final, Protocol

from sonde._errors import SondeError
from sonde._require import require
from sonde.logframe.files import SUFFIXES, read_logframe, write
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


def from_wandb(name: str) -> Frame:
    """The LogFrames of an artifact of W&B (`entity/project/name:latest`), one below the other."""
    wandb, pd = require("wandb", extra="wandb"), require("pandas", extra="pandas")
    with tempfile.TemporaryDirectory() as folder:
        found = Path(wandb.Api().artifact(name).download(root=folder))
        files = sorted(path for path in found.rglob("*") if path.suffix in SUFFIXES)
        if not files:
            raise SondeError(f"The artifact `{name}` has no file with a LogFrame.")
        return pd.concat([read_logframe(path) for path in files], ignore_index=True)
