"""The trackers that Sonde has a sink for, by name: `sonde.watch(model, sinks=["wandb"])`."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from sonde._errors import SondeError
from sonde.sinks.sink import Sink

TRACKERS: Final = {
    "mlflow": "MLflow",
    "neptune": "Neptune",
    "tensorboard": "TensorBoard",
    "trackio": "Trackio",
    "wandb": "WandB",
}
"""The class of each, in the module of that name."""


def by_name(name: str) -> Sink:
    """A new sink with the defaults of that tracker: it takes the run that is active there.

    Raises:
        SondeError: There is no tracker of that name, or it has no active run.
        ImportError: Its package is not installed.
    """
    if name not in TRACKERS:
        known = ", ".join(TRACKERS)
        raise SondeError(f"There is no sink called {name!r}. Known are: {known}.")
    made: Sink = getattr(import_module(f"sonde.sinks.{name}"), TRACKERS[name])()
    return made
