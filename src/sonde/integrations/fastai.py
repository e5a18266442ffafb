"""fastai: a callback for a Learner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Unpack

from sonde._require import require
from sonde.integrations.training import TrainerWatch, WatchOptions
from sonde.watching import Watch

if TYPE_CHECKING:  # its package has no types
    from torch import Tensor

    _Callback = object
else:
    _Callback = require("fastai.callback.core", extra="fastai").Callback


class FastaiLearner(Protocol):
    """What is used of `fastai.learner.Learner`."""

    model: object
    loss: Tensor


class FastaiCallback(_Callback):
    """Watches the model of a Learner while it is fitted, and all of its validations.

    Takes the options of `sonde.watch`. Steps are updates, counted from 0 in each `fit`.
    """

    learn: FastaiLearner

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        super().__init__()
        self._training = TrainerWatch(self, options)

    @property
    def watch(self) -> Watch | None:
        """The watch, while the Learner is fitted."""
        return self._training.watch

    def before_fit(self) -> None:
        if not hasattr(self.learn, "lr_finder"):  # a search for a learning rate is no training
            self._training.begin(self.learn.model, None)

    def after_step(self) -> None:
        if self.watch is not None:
            self._training.log({"loss": self.learn.loss.detach()})
            self.watch.step()

    def after_fit(self) -> None:
        self._training.end()


SondeCallback = FastaiCallback
