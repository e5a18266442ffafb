"""Lightning: a callback for its Trainer."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, Unpack

from sonde import _endings
from sonde._require import require
from sonde.integrations.training import TrainerWatch, WatchOptions
from sonde.watching import Watch


def _library() -> ModuleType:
    """Lightning under the name that is in use: `lightning`, or `pytorch_lightning`."""
    names = ("lightning.pytorch", "pytorch_lightning")
    used = [name for name in names if sys.modules.get(name) is not None]
    if not used and find_spec("lightning") is None and find_spec("pytorch_lightning") is not None:
        used = ["pytorch_lightning"]
    return require(used[0] if used else "lightning.pytorch", extra="lightning")


if TYPE_CHECKING:  # its package has no types
    _Callback = object
else:
    _Callback = _library().Callback


class LightningTrainer(Protocol):
    """What is used of `lightning.Trainer`."""

    global_step: int
    optimizers: list[object]
    sanity_checking: bool
    callback_metrics: Mapping[str, object]


class LightningModule(Protocol):
    """What is used of `lightning.LightningModule`."""

    hparams: Mapping[str, object]


class LightningCallback(_Callback):
    """Watches a LightningModule while it trains, and all of its validations.

    Takes the options of `sonde.watch`. Steps are those of `trainer.global_step`. The loss that
    `training_step` returns is recorded, and what is logged in a validation.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        super().__init__()
        self._training = TrainerWatch(self, options)

    @property
    def watch(self) -> Watch | None:
        """The watch, while training is under way."""
        return self._training.watch

    def on_train_start(self, trainer: LightningTrainer, pl_module: LightningModule) -> None:
        hyperparameters = dict(pl_module.hparams)
        self._training.begin(
            pl_module,
            trainer.optimizers,
            step=trainer.global_step,
            config={"hparams": hyperparameters} if hyperparameters else None,
        )

    def on_train_batch_start(
        self, trainer: LightningTrainer, pl_module: object, batch: object, batch_idx: int
    ) -> None:
        self._training.at(trainer.global_step)

    def on_train_batch_end(
        self, trainer: object, pl_module: object, outputs: object, batch: object, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._training.log({"loss": loss}, mean=True)

    def on_validation_end(self, trainer: LightningTrainer, pl_module: object) -> None:
        if not trainer.sanity_checking:
            found = {k: v for k, v in trainer.callback_metrics.items() if k != "loss"}
            self._training.log(found)

    def on_train_end(self, trainer: object, pl_module: object) -> None:
        self._training.end()

    def on_exception(self, trainer: object, pl_module: object, exception: BaseException) -> None:
        self._training.end(_endings.of_error(exception))

    def state_dict(self) -> dict[str, object]:
        return self._training.state_dict()

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        self._training.load_state_dict(state_dict)


SondeCallback = LightningCallback
