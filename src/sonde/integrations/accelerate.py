"""Accelerate: a tracker that watches what was prepared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonde._require import require
from sonde.integrations.training import TrainerWatch
from sonde.watching import Watch

_tracking = require("accelerate.tracking", extra="accelerate")
_Tracker: Any = _tracking.GeneralTracker


class AccelerateTracker(_Tracker):  # type: ignore[misc]  # its package has no types
    """Watches a prepared model and optimizer, and records what `accelerator.log` logs.

    Takes the options of `sonde.watch`. Pass it as `log_with`, register it for checkpointing, and
    call `watch` right before the loop, after `load_state`.
    """

    name = "sonde"
    requires_logging_directory = False
    main_process_only = False  # each process records its rank

    def __init__(self, _project: str | None = None, **options: Any) -> None:
        super().__init__()
        self._training = TrainerWatch(self, options)
        self._config: dict[str, Any] | None = None

    @property
    def tracker(self) -> Watch | None:
        """The watch, once there is one."""
        return self._training.watch

    def watch(self, model: Any, optimizer: Any) -> Watch:
        """Watch the model and the optimizer, or several, as `accelerator.prepare` returned them."""
        return self._training.begin(model, optimizer, config=self._config)

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._config = dict(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_more: Any) -> None:
        self._training.log(values, step=step)

    def finish(self) -> None:
        self._training.end()

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._training.load_state_dict(state)


SondeTracker = AccelerateTracker

if hasattr(_tracking, "register_tracker_class"):  # from 1.15 on: `log_with="sonde"`
    _tracking.register_tracker_class(AccelerateTracker)
