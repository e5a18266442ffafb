"""The Trainer of transformers, and what is built on it: a callback, also as `report_to="sonde"`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol, Unpack

from sonde._require import require
from sonde.integrations.training import TrainerWatch, WatchOptions
from sonde.watching import Watch

if TYPE_CHECKING:  # its package has no types
    _Callback = object
else:
    _Callback = require("transformers", extra="transformers").TrainerCallback

_reporting = require("transformers.integrations.integration_utils", extra="transformers")

_KEY: Final = "sonde"
"""Under which the trainer's state keeps that of the watch, and its name for `report_to`."""
_OWN: Final = frozenset({"grad_norm"})
"""Logged by the trainer, and recorded by Sonde from the gradients themselves."""


class TransformersArguments(Protocol):
    """What is used of `transformers.TrainingArguments`."""

    def to_sanitized_dict(self) -> dict[str, object]: ...


class TransformersState(Protocol):
    """What is used of `transformers.TrainerState`."""

    global_step: int
    is_hyper_param_search: bool
    trial_name: str | None
    stateful_callbacks: dict[str, object]


class TransformersCallback(_Callback):
    """Watches the model of a `Trainer` while it trains, and all of its evaluations.

    Takes the options of `sonde.watch`. Step k is the update made while `state.global_step` is k.
    What the trainer logs is recorded too.
    """

    def __init__(self, **options: Unpack[WatchOptions]) -> None:
        self._training = TrainerWatch(self, options)

    @property
    def watch(self) -> Watch | None:
        """The watch, while training is under way."""
        return self._training.watch

    def on_train_begin(
        self,
        args: TransformersArguments,
        state: TransformersState,
        control: object,
        model: object,
        optimizer: object,
        **_more: object,
    ) -> None:
        self._training.end("begun again")  # the training before has failed
        saved = state.stateful_callbacks.get(_KEY)
        self._training.load_state_dict(saved if isinstance(saved, Mapping) else {})
        self._training.begin(
            model,
            optimizer,
            step=state.global_step,
            config={"trainer": args.to_sanitized_dict()},
            name=state.trial_name if state.is_hyper_param_search else None,
        )
        # Goes into `trainer_state.json` of every checkpoint, which has the step.
        state.stateful_callbacks[_KEY] = {"run": self._training.state_dict().get("run")}

    def on_step_begin(
        self, args: object, state: TransformersState, control: object, **_more: object
    ) -> None:
        self._training.at(state.global_step)

    def on_log(
        self,
        args: object,
        state: object,
        control: object,
        logs: Mapping[str, object] | None = None,
        **_more: object,
    ) -> None:
        self._training.log({k: v for k, v in (logs or {}).items() if k not in _OWN})

    def on_train_end(self, args: object, state: object, control: object, **_more: object) -> None:
        self._training.end()


SondeCallback = TransformersCallback

_reporting.INTEGRATION_TO_CALLBACK[_KEY] = SondeCallback
