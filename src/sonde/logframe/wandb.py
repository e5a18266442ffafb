"""A LogFrame as an artifact of a W&B run, of the type that Track & Visualize gives its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

from sonde._errors import SondeError
from sonde._require import require
from sonde.logframe.files import write
from sonde.logframe.schema import Frame

_TYPE: Final = "tandv-logframe"


def to_wandb(frame: Frame, run: Any = None, *, name: str | None = None) -> Any:
    """Log a LogFrame as an artifact of a W&B run, the active one by default: a Parquet file.

    Returns the artifact. `Any`: the package has no types.

    Raises:
        SondeError: If there is no run.
        ImportError: If wandb is not installed.
    """
    wandb = require("wandb", extra="wandb")
    run = wandb.run if run is None else run
    if run is None:
        raise SondeError("There is no active W&B run. Call `wandb.init()` first, or give one.")
    artifact = wandb.Artifact(name or f"logframe-{run.id}", type=_TYPE)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "logframe.parquet")
        write(frame, path)
        artifact.add_file(str(path))  # copies it
    return run.log_artifact(artifact)
