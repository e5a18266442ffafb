"""Ignite: a handler for the engine that trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sonde._require import require
from sonde.integrations.training import TrainerWatch
from sonde.watching import Watch

_engine = require("ignite.engine", extra="ignite")


class IgniteHandler:
    """Watches the model of an engine while it trains, and all of its evaluations.

    Takes the options of `sonde.watch`. Steps are updates, however many iterations one takes. What
    the engine's process function returns is recorded if it is a number, as `loss`, or a dict of
    numbers.
    """

    def __init__(self, model: Any, optimizer: Any, **options: Any) -> None:
        self._training = TrainerWatch(self, options)
        self._watched = (model, optimizer)

    @property
    def watch(self) -> Watch | None:
        """The watch, while the engine runs."""
        return self._training.watch

    def attach(self, engine: Any) -> None:
        """Watch whenever this engine runs."""
        events = _engine.Events
        engine.add_event_handler(events.STARTED, self._begin)
        engine.add_event_handler(events.ITERATION_COMPLETED, self._log)
        engine.add_event_handler(events.COMPLETED, self._end)

    def state_dict(self) -> dict[str, Any]:
        return self._training.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._training.load_state_dict(state)

    def _begin(self) -> None:
        self._training.begin(*self._watched)

    def _log(self, engine: Any) -> None:
        output = engine.state.output
        values = output if isinstance(output, Mapping) else {"loss": output}
        self._training.log(values, mean=True)

    def _end(self) -> None:
        self._training.end()


SondeHandler = IgniteHandler
