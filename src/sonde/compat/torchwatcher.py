"""A drop-in for TorchWatcher: statistics of a model's layers, logged to a Neptune run.

    from sonde.compat.torchwatcher import TorchWatcher

Statistics are read off sketches, so that a tensor is read once, where it lies, however many are
asked for. What differs from the original, and why, is in docs/migration.md.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
from torch import Tensor, nn

from sonde.compat import close_when_dropped
from sonde.record import Event, NumberBatch, Site, SiteInfo, SketchBatch
from sonde.sketch import statistic
from sonde.sketch.histograms import equal_histograms
from sonde.watching import watch

BINS: Final = 50
HISTOGRAM: Final = "hist"

TENSOR_STATS: dict[str, Callable[[Tensor], object]] = {
    "mean": lambda x: x.mean(),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "min": lambda x: x.min(),
    "max": lambda x: x.max(),
    "var": lambda x: x.var(),
    "abs_mean": lambda x: x.abs().mean(),
    HISTOGRAM: lambda x: x,
}
"""Statistics by name. Add a function of a tensor to make its name one that can be asked for."""

_OWN: Final = dict(TENSOR_STATS)
_FAMILIES: Final = {
    "output": "activations",
    "output_grad": "gradients",
    "param": "parameters",
}
_GROUPS: Final = {"activation": "output", "output_grad": "output_grad", "parameter": "param"}
_OPTIONS: Final = {"log": list(_FAMILIES), "hyperparameters": False, "final_parameters": False}


class MetricRun(Protocol):
    """What is asked of a run of `neptune_scale`. `Any`: its arguments."""

    def log_metrics(self, data: dict[str, float], step: Any) -> object:
        """Log numbers of a step."""

    def log_histograms(self, histograms: dict[str, Any], step: Any) -> object:
        """Log histograms of a step."""


@dataclass(frozen=True, slots=True)
class LayerHistogram:
    """Counts between edges; stands in for Neptune's own where that is not installed."""

    bin_edges: list[float]
    counts: list[int]


class TorchWatcher:
    """Logs statistics of layers' outputs, of their gradients, and of parameters."""

    def __init__(
        self,
        model: nn.Module,
        run: MetricRun,
        track_layers: Sequence[type[nn.Module]] | None = None,
        tensor_stats: Sequence[str] | None = None,
        base_namespace: str = "model_internals",
        **watch_options: Any,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError("The model must be a PyTorch model, a torch.nn.Module.")
        layers = None if track_layers is None else tuple(track_layers)
        self._check_layers(layers)
        asked = list(tensor_stats or ["mean"])
        if unknown := [name for name in asked if name not in TENSOR_STATS]:
            known = ", ".join(TENSOR_STATS)
            raise ValueError(f"Invalid statistics requested: {unknown}. Available: {known}.")
        self.model = model
        self.run = run
        self.base_namespace = base_namespace
        self.debug_metrics: dict[str, float] = {}
        self.debug_histograms: dict[str, object] = {}
        self._stats = [s for s in asked if s != HISTOGRAM and TENSOR_STATS[s] is _OWN.get(s)]
        self._has_histograms = HISTOGRAM in asked
        self._last = _LastSketches()
        self._own: dict[str, float] = {}

        def is_left_out(path: str, module: object) -> bool:
            return path == "" or not (layers is None or isinstance(module, layers))

        left_out = dict.fromkeys(("output", "output_grad"), is_left_out)
        options: dict[str, Any] = {**_OPTIONS, "exclude": left_out, **watch_options}
        self._watch = watch(model, every=1, sinks=[self._last], **options)
        self._thread = threading.get_ident()
        self._blocks = ExitStack()
        with self._watch.paused():
            self._watch.record_parameters("param")  # from now on only when they are asked for
        self._blocks.enter_context(self._watch.phase("train"))  # every pass counts
        for name in asked:
            if name != HISTOGRAM and TENSOR_STATS[name] is not _OWN.get(name):
                for kind in _FAMILIES:
                    where = None if kind == "param" else _unless(is_left_out)
                    self._watch.add_metric(name, TENSOR_STATS[name], kind=kind, where=where)

    @staticmethod
    def _check_layers(layers: Sequence[object] | None) -> None:
        for layer in layers or ():
            if not (isinstance(layer, type) and issubclass(layer, nn.Module)):
                text = f"Invalid layer type {layer!r}: it must be a class of modules."
                raise ValueError(text)  # noqa: TRY004  # as the original

    def watch(
        self,
        step: float,
        track_gradients: bool = True,
        track_parameters: bool = True,
        track_activations: bool = True,
        prefix: str | None = None,
        namespace: str | None = None,
    ) -> None:
        """Log what was seen since the last call, under `prefix/base_namespace/...`.

        `namespace` is another name of `prefix`.
        """
        prefix = namespace if prefix is None else prefix
        name = self.base_namespace if prefix is None else f"{prefix}/{self.base_namespace}"
        tracked = {
            "output": track_activations,
            "output_grad": track_gradients,
            "param": track_parameters,
        }
        self._read(with_parameters=track_parameters)
        for kind, is_tracked in tracked.items():
            if is_tracked:
                self._put(kind, name)
        metrics, self.debug_metrics = self.debug_metrics, {}
        histograms, self.debug_histograms = self.debug_histograms, {}
        self._last.clear()
        self._own.clear()
        if metrics:
            self.run.log_metrics(data=metrics, step=step)
        if histograms:
            self.run.log_histograms(histograms=histograms, step=step)
        if isinstance(step, int) and step >= (self._watch.current_step or 0):
            self._watch.current_step = step + 1

    def track_activations(self, namespace: str | None = None) -> None:
        """Put statistics of layers' outputs into `debug_metrics`; log nothing."""
        self._read()
        self._put("output", namespace)

    def track_gradients(self, namespace: str | None = None) -> None:
        """Put statistics of the gradients of layers' outputs into `debug_metrics`; log nothing."""
        self._read()
        self._put("output_grad", namespace)

    def track_parameters(self, namespace: str | None = None) -> None:
        """Put statistics of parameters as they are now into `debug_metrics`; log nothing."""
        self._read(with_parameters=True)
        self._put("param", namespace)

    def _put(self, kind: str, namespace: str | None) -> None:
        name = self.base_namespace if namespace is None else namespace
        front = f"{name}/{_FAMILIES[kind]}"
        for key, value in self._last.numbers_of(kind, self._stats):
            self.debug_metrics[f"{front}/{key}"] = value
        for key, value in self._own.items():
            group, _, rest = key.partition("/")
            if _GROUPS.get(group) == kind:
                place, _, stat = rest.rpartition("/")
                place = place.replace(".", "/") if kind == "param" else place
                self.debug_metrics[f"{front}/{place}/{stat}"] = value
        if self._has_histograms:
            for key, histogram in self._last.histograms_of(kind):
                self.debug_histograms[f"{front}/{key}/{HISTOGRAM}"] = histogram

    def _read(self, *, with_parameters: bool = False) -> None:
        """End the step of the watch, and wait for what it has recorded."""
        step = self._watch.current_step
        if with_parameters:
            self._watch.record_parameters("param")
        self._watch.step()
        self._own |= self._watch.metrics(step)
        self._watch.metrics(step, stats="count", include=lambda *_: False)  # once it is here

    def close(self) -> None:
        """Take every hook off and close the run of Sonde. Safe to call twice."""
        self._blocks.close()
        self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError):  # half made
            close_when_dropped(self._watch.close, self._thread)


class _LastSketches:
    """A sink that keeps the sketches since they were last cleared, by place."""

    name = "torchwatcher"

    def __init__(self) -> None:
        self._sites: dict[int, Site] = {}
        self._batches: list[SketchBatch] = []

    def clear(self) -> None:
        """Forget what was logged."""
        self._batches.clear()

    def numbers_of(self, kind: str, stats: Sequence[str]) -> Iterator[tuple[str, float]]:
        """Each statistic at each place of a kind: `fc1/mean`."""
        for batch in self._batches:
            rows = self._rows(batch, kind)
            for name in stats if rows else ():
                values = statistic(name)(batch.sketches)
                yield from ((f"{place}/{name}", float(values[i])) for i, place in rows.items())

    def histograms_of(self, kind: str) -> Iterator[tuple[str, object]]:
        """The histogram at each place of a kind, of values that are finite."""
        for batch in self._batches:
            rows = self._rows(batch, kind)
            found = equal_histograms(batch.sketches, BINS) if rows else []
            for i, place in rows.items():
                upto = np.round(np.cumsum(found[i].counts)).astype(np.int64)
                if upto[-1]:
                    counts = np.diff(upto, prepend=0).tolist()
                    yield place, _histogram_type()(bin_edges=found[i].edges.tolist(), counts=counts)

    def _rows(self, batch: SketchBatch, kind: str) -> Mapping[int, str]:
        sites = {i: self._sites[site] for i, site in enumerate(batch.ids.tolist())}
        return {i: _place(site) for i, site in sites.items() if site.kind == kind}

    def sites(self, infos: Sequence[SiteInfo]) -> None:
        self._sites.update((info.id, info.site) for info in infos)

    def sketches(self, batch: SketchBatch) -> None:
        self._batches.append(batch)

    def numbers(self, batch: NumberBatch) -> None:
        """Of no use here."""

    def event(self, event: Event) -> None:
        """Of no use here."""

    def close(self, reason: str) -> None:
        """There is nothing to let go of."""


def _place(site: Site) -> str:
    """`fc1`, `fc1/weight`; further calls and tensors of a layer are `fc1#1` and `fc1/logits`."""
    if site.kind == "param":
        return site.path.replace(".", "/")
    layer = f"{site.module}#{site.call}" if site.call else site.module
    return layer if site.slot == "0" else f"{layer}/{site.slot}"


def _unless(is_left_out: Callable[[str, object], bool]) -> Callable[[str, object], bool]:
    return lambda path, module: not is_left_out(path, module)


def _histogram_type() -> Callable[..., object]:
    """Neptune's own type of histograms, where the program uses Neptune."""
    neptune = sys.modules.get("neptune_scale.types")
    return LayerHistogram if neptune is None else neptune.Histogram
