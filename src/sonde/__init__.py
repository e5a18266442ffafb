"""Sonde records what happens inside neural networks while they train."""

from importlib import import_module
from typing import TYPE_CHECKING

from sonde._errors import RunError as RunError
from sonde._errors import SondeError as SondeError
from sonde._errors import SondeWarning as SondeWarning
from sonde._version import VERSION as __version__  # noqa: N811

if TYPE_CHECKING:
    from sonde import compat as compat
    from sonde import integrations as integrations
    from sonde import logframe as logframe
    from sonde import plot as plot
    from sonde import sinks as sinks
    from sonde.capture.active import attach as attach
    from sonde.capture.active import attention as attention
    from sonde.capture.active import is_watching as is_watching
    from sonde.capture.active import log as log
    from sonde.comparison.result import compare as compare
    from sonde.coordinates.torch.training import coord_check as coord_check
    from sonde.logframe import read_logframe as read_logframe
    from sonde.metrics.model import metric as metric
    from sonde.notebook.showing import show as show
    from sonde.sinks.sink import Sink as Sink
    from sonde.sketch import Sketch as Sketch
    from sonde.sketch.added import define as statistic
    from sonde.store.reading.run import Run as Run
    from sonde.store.reading.run import open_run as open  # noqa: A004  # sonde.open reads as intended
    from sonde.tracing.wiring import trace as trace
    from sonde.tracing.wiring import trace_once as trace_once
    from sonde.watching import Watch as Watch
    from sonde.watching import unwatch as unwatch
    from sonde.watching import watch as watch

_LAZY = {
    "Run": ("sonde.store.reading.run", "Run"),
    "Sink": ("sonde.sinks.sink", "Sink"),
    "Sketch": ("sonde.sketch", "Sketch"),
    "Watch": ("sonde.watching", "Watch"),
    "attach": ("sonde.capture.active", "attach"),
    "attention": ("sonde.capture.active", "attention"),
    "compare": ("sonde.comparison.result", "compare"),
    "coord_check": ("sonde.coordinates.torch.training", "coord_check"),
    "is_watching": ("sonde.capture.active", "is_watching"),
    "log": ("sonde.capture.active", "log"),
    "metric": ("sonde.metrics.model", "metric"),
    "show": ("sonde.notebook.showing", "show"),
    "statistic": ("sonde.sketch.added", "define"),
    "open": ("sonde.store.reading.run", "open_run"),
    "read_logframe": ("sonde.logframe", "read_logframe"),
    "trace": ("sonde.tracing.wiring", "trace"),
    "trace_once": ("sonde.tracing.wiring", "trace_once"),
    "unwatch": ("sonde.watching", "unwatch"),
    "watch": ("sonde.watching", "watch"),
}
"""Names that are looked up on first use, so that `import sonde` loads nothing heavy."""

_PARTS = ("compat", "integrations", "logframe", "plot", "sinks")
"""Modules that are loaded on first use: `sonde.plot.heatmap(run)`."""


def __getattr__(name: str) -> object:
    if name in _PARTS:
        return import_module(f"sonde.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'sonde' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
