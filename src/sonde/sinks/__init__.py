"""Sinks: further destinations for what a watch records, by name and on request."""

from sonde.sinks.callback import Callback as Callback
from sonde.sinks.mlflow import MLflow as MLflow
from sonde.sinks.neptune import Neptune as Neptune
from sonde.sinks.sink import Reading as Reading
from sonde.sinks.sink import Series as Series
from sonde.sinks.sink import Sink as Sink
from sonde.sinks.sink import SinkOptions as SinkOptions
from sonde.sinks.sink import WatchedRun as WatchedRun
from sonde.sinks.tensorboard import TensorBoard as TensorBoard
from sonde.sinks.trackio import Trackio as Trackio
from sonde.sinks.wandb import WandB as WandB

__all__ = [
    "Callback",
    "MLflow",
    "Neptune",
    "Reading",
    "Series",
    "Sink",
    "SinkOptions",
    "TensorBoard",
    "Trackio",
    "WandB",
    "WatchedRun",
]
