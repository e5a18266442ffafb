"""Trackio: metrics and histograms of the active run, with the recorded step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from sonde._errors import SondeError
from sonde._require import require
from sonde.sinks.keys import shared_key
from sonde.sinks.sink import Reading, Series, Sink, SinkOptions

if TYPE_CHECKING:
    import trackio


class Trackio(Sink):
    """Logs to a Trackio run, the active one by default: what `trackio.init()` returned."""

    def __init__(
        self,
        run: trackio.Run | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(**options)
        self._trackio = require("trackio", extra="trackio")
        # The active run is that of the calling thread.
        self._run = self._trackio.context_vars.current_run.get() if run is None else run
        if self._run is None:
            raise SondeError(
                "There is no active Trackio run. Call `trackio.init()` first, or give one: "
                "`Trackio(run)`."
            )

    def key(self, series: Series) -> str:
        return shared_key(series)

    def write(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            row: dict[str, object] = dict(reading.numbers)
            for key, histogram in reading.histograms.items():
                if reading.sketches[key].finite:
                    counted = (histogram.counts, histogram.edges)
                    row[key] = self._trackio.Histogram(np_histogram=counted)
            self._run.log(row, step=reading.step)
