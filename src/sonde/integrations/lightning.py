"""Lightning: a callback for its Trainer."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from sonde import _endings
from sonde._require import require
from sonde.integrations.training import TrainerWatch
from sonde.watching import Watch


def _library() -> ModuleType:
    """Lightning under the name that is in use: `lightning`, or `pytorch_lightning`."""
    names = ("lightning.pytorch", "pytorch_lightning")
    used = [name for name in names if sys.modules.get(name) is not None]
    if not used and find_spec("lightning") is None and find_spec("pytorch_lightning") is not None:
        used = ["pytorch_lightning"]
    return require(used[0] if used else "lightning.pytorch", extra="lightning")


_Callback: Any = _library().Callback


class LightningCallback(_Callback):  # type: ignore[misc]  # its package has no types
    """Watches a LightningModule while it trains, and all of its validations.

    Takes the options of `sonde.watch`. Steps are those of `trainer.global_step`. The loss that
    `training_step` returns is recorded, and what is logged in a validation.
    """

    def __init__(self, **options: Any) -> None:  # as `sonde.watch` takes them
        super().__init__()
        self._training = TrainerWatch(self, options)

    @property
    def watch(self) -> Watch | None:
        """The watch, while training is under way."""
        return self._training.watch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        hyperparameters = dict(pl_module.hparams)
        self._training.begin(
            pl_module,
            trainer.optimizers,
            step=trainer.global_step,
            config={"hparams": hyperparameters} if hyperparameters else None,
        )

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._training.at(trainer.global_step)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._training.log({"loss": loss}, mean=True)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            found = {k: v for k, v in trainer.callback_metrics.items() if k != "loss"}
            self._training.log(found)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._training.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._training.end(_endings.of_error(exception))

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._training.load_state_dict(state_dict)


SondeCallback = LightningCallback
