"""MLflow: metrics of the active run, with the recorded step.

MLflow has no histograms. It stores an infinity as the largest float64 of that sign.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Unpack

from sonde._errors import SondeError
from sonde._require import require
from sonde.sinks.keys import shared_key
from sonde.sinks.sink import Reading, Series, Sink, SinkOptions, WatchedRun

if TYPE_CHECKING:
    import mlflow

_FORBIDDEN: Final = re.compile(r"[^\w\-. /]", re.ASCII)
_MOST_TOGETHER: Final = 1000
"""Metrics that one request may have."""


class MLflow(Sink):
    """Logs metrics to an MLflow run, the active one by default.

    `run` is a run or the id of one, on the server that `tracking_uri` names, or the current one.
    Characters that MLflow forbids in a key are replaced by `_`.
    """

    def __init__(
        self,
        run: mlflow.ActiveRun | None = None,
        *,
        tracking_uri: str | None = None,
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(**options)
        self._mlflow = require("mlflow", extra="mlflow")
        # The active run is that of the calling thread.
        run = self._mlflow.active_run() if run is None else run
        if run is None:
            raise SondeError(
                "There is no active MLflow run. Call `mlflow.start_run()` first, or give one: "
                "`MLflow(run)`."
            )
        self._run_id: str = run if isinstance(run, str) else run.info.run_id
        self._uri = tracking_uri or self._mlflow.get_tracking_uri()
        self._client: mlflow.MlflowClient = None

    def start(self, run: WatchedRun) -> None:
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        self._client.set_tag(self._run_id, "sonde.run", str(run.path))
        if self.options.get("histograms"):
            self.note("MLflow has no histograms, so none are sent. The run of Sonde has them.")

    def key(self, series: Series) -> str:
        return _FORBIDDEN.sub("_", shared_key(series))

    def write(self, readings: Sequence[Reading]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(key, number, now_ms, reading.step)
            for reading in readings
            for key, number in reading.numbers.items()
        ]
        for first in range(0, len(metrics), _MOST_TOGETHER):
            self._client.log_batch(self._run_id, metrics[first : first + _MOST_TOGETHER])
