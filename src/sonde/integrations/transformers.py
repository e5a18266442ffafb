"""The Trainer of transformers, and what is built on it: a callback, also as `report_to="sonde"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sonde._require import require
from sonde.integrations.training import TrainerWatch
from sonde.watching import Watch

_Callback: Any = require("transformers", extra="transformers").TrainerCallback
_reporting = require("transformers.integrations.integration_utils", extra="transformers")

_KEY: Final = "sonde"
"""Under which the trainer's state keeps that of the watch, and its name for `report_to`."""
_OWN: Final = frozenset({"grad_norm"})
"""Logged by the trainer, and recorded by Sonde from the gradients themselves."""


class TransformersCallback(_Callback):  # type: ignore[misc]  # its package has no types
    """Watches the model of a `Trainer` while it trains, and all of its evaluations.

    Takes the options of `sonde.watch`. Step k is the update made while `state.global_step` is k.
    What the trainer logs is recorded too.
    """

    def __init__(self, **options: Any) -> None:  # as `sonde.watch` takes them
        self._training = TrainerWatch(self, options)

    @property
    def watch(self) -> Watch | None:
        """The watch, while training is under way."""
        return self._training.watch

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_more: Any
    ) -> None:
        self._training.end("begun again")  # the training before has failed
        saved = state.stateful_callbacks.get(_KEY)
        self._training.load_state_dict(saved if isinstance(saved, Mapping) else {})
        trial = state.trial_name if state.is_hyper_param_search else None
        self._training.begin(
            model,
            optimizer,
            step=state.global_step,
            config={"trainer": args.to_sanitized_dict()},
            name=trial,
        )
        # Goes into `trainer_state.json` of every checkpoint, which has the step.
        state.stateful_callbacks[_KEY] = {"run": self._training.state_dict().get("run")}

    def on_step_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        self._training.at(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_more: Any) -> None:
        self._training.log({k: v for k, v in (logs or {}).items() if k not in _OWN})

    def on_train_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:
        self._training.end()


SondeCallback = TransformersCallback

_reporting.INTEGRATION_TO_CALLBACK[_KEY] = SondeCallback
