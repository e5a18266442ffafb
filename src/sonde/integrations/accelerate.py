"""Accelerate: a tracker that watches what was prepared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Unpack

from sonde._require import require
from sonde.integrations.training import TrainerWatch, WatchOptions
from sonde.watching import Watch

_tracking = require("accelerate.tracking", extra="accelerate")

if TYPE_CHECKING:  # its package has no types
    _Tracker = object
else:
    _Tracker = _tracking.GeneralTracker


class AccelerateTracker(_Tracker):
    """Watches a prepared model and optimizer, and records what `accelerator.log` logs.

    Takes the options of `sonde.watch`. Pass it as `log_with`, register it for checkpointing, and
    call `watch` right before the loop, after `load_state`.
    """

    name = "sonde"
    requires_logging_directory = False
    main_process_only = False  # each process records its rank

    def __init__(self, _project: str | None = None, **options: Unpack[WatchOptions]) -> None:
        super().__init__()
        self._training = TrainerWatch(self, options)
        self._config: dict[str, object] | None = None

    @property
    def tracker(self) -> Watch | None:
        """The watch, once there is one."""
        return self._training.watch

    def watch(self, model: object, optimizer: object) -> Watch:
        """Watch the model and the optimizer, or several, as `accelerator.prepare` returned them."""
        return self._training.begin(model, optimizer, config=self._config)

    def store_init_configuration(self, values: dict[str, object]) -> None:
        self._config = dict(values)

    def log(self, values: Mapping[str, object], step: int | None = None, **_more: object) -> None:
        self._training.log(values, step=step)

    def finish(self) -> None:
        self._training.end()

    def state_dict(self) -> dict[str, object]:
        return self._training.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        self._training.load_state_dict(state)


SondeTracker = AccelerateTracker

if hasattr(_tracking, "register_tracker_class"):  # from 1.15 on: `log_with="sonde"`
    _tracking.register_tracker_class(AccelerateTracker)
