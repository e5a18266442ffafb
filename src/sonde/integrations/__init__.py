"""Trainers: what watches a training that a library runs, one module per library; and W&B reports.

Each is loaded on first use: `sonde.integrations.lightning.SondeCallback`.
"""

from importlib import import_module
from types import ModuleType
from typing import Final

_LIBRARIES: Final = (
    "accelerate",
    "fastai",
    "ignite",
    "keras",
    "lightning",
    "transformers",
    "wandb",
)


def __getattr__(name: str) -> ModuleType:
    if name in _LIBRARIES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
