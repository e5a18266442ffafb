"""Neptune: series and histograms of a `neptune_scale.Run`, in the namespaces of TorchWatcher.

The hosted service closed in 2026. The client still writes offline files, which `sonde import` reads
and successors of the service take in; see docs/trackers.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde._require import require
from sonde.sinks.keys import torchwatcher_key
from sonde.sinks.sink import Reading, Series, Sink, SinkOptions

if TYPE_CHECKING:
    import neptune_scale


class Neptune(Sink):
    """Logs to a `neptune_scale.Run`, which has to be given.

    Keys are `{prefix}/{base_namespace}/{activations|gradients|parameters}/{layer}/{stat}`. The name
    of a parameter has a `/` before its last part: `parameters/fc1/weight/mean`. The gradients of a
    layer are those of its output, kind `output_grad`; those of a parameter have its name.
    """

    defaults: ClassVar[SinkOptions] = {"bins": 50, "stats": "mean"}

    def __init__(
        self,
        run: neptune_scale.Run | None = None,
        *,
        base_namespace: str = "model_internals",
        **options: Unpack[SinkOptions],
    ) -> None:
        super().__init__(**options)
        require("neptune_scale", extra="neptune")
        self._types = require("neptune_scale.types", extra="neptune")
        if run is None:
            raise SondeError("Neptune has no active run. Give one: `Neptune(neptune_scale.Run())`.")
        self._run = run
        self._base = base_namespace

    def key(self, series: Series) -> str:
        return torchwatcher_key(series, self._base)

    def write(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            if reading.numbers:
                self._run.log_metrics(reading.numbers, step=reading.step)
            drawn = {
                key: self._types.Histogram(
                    bin_edges=histogram.edges.tolist(), counts=_whole(histogram.counts)
                )
                for key, histogram in reading.histograms.items()
                if reading.sketches[key].finite
            }
            if drawn:
                self._run.log_histograms(drawn, step=reading.step)


def _whole(counts: NDArray[np.float64]) -> list[int]:
    """Whole counts with the same total: Neptune takes no others."""
    upto = np.round(np.cumsum(counts)).astype(np.int64)
    return np.diff(upto, prepend=0).tolist()  # type: ignore[no-any-return]  # a list of int
