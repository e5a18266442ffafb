"""Ignite: a handler for the engine that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, Unpack

from sonde._require import require
from sonde.integrations.training import TrainerWatch, WatchOptions
from sonde.watching import Watch

_engine = require("ignite.engine", extra="ignite")


class IgniteState(Protocol):
    """What is used of `ignite.engine.State`."""

    output: object


class IgniteEngine(Protocol):
    """What is used of `ignite.engine.Engine`."""

    state: IgniteState

    def add_event_handler(self, event_name: object, handler: Callable[..., None]) -> object: ...


class IgniteHandler:
    """Watches the model of an engine while it trains, and all of its evaluations.

    Takes the options of `sonde.watch`. Steps are updates, however many iterations one takes. What
    the engine's process function returns is recorded if it is a number, as `loss`, or a dict of
    numbers.
    """

    def __init__(self, model: object, optimizer: object, **options: Unpack[WatchOptions]) -> None:
        self._training = TrainerWatch(self, options)
        self._watched = (model, optimizer)

    @property
    def watch(self) -> Watch | None:
        """The watch, while the engine runs."""
        return self._training.watch

    def attach(self, engine: IgniteEngine) -> None:
        """Watch whenever this engine runs."""
        events = _engine.Events
        engine.add_event_handler(events.STARTED, self._begin)
        engine.add_event_handler(events.ITERATION_COMPLETED, self._log)
        engine.add_event_handler(events.COMPLETED, self._end)

    def state_dict(self) -> dict[str, object]:
        return self._training.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self._training.load_state_dict(state)

    def _begin(self) -> None:
        self._training.begin(*self._watched)

    def _log(self, engine: IgniteEngine) -> None:
        output = engine.state.output
        values = output if isinstance(output, Mapping) else {"loss": output}
        self._training.log(values, mean=True)

    def _end(self) -> None:
        self._training.end()


SondeHandler = IgniteHandler
