"""Which metrics are asked where: worked out once for each place, and kept."""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from torch import nn

from sonde.capture.torch.names import ModelStructure
from sonde.capture.window import Spot
from sonde.metrics import names
from sonde.metrics.model import MODULE_KINDS, Metric
from sonde.metrics.names import Label
from sonde.record import PARAMETER_KINDS


class MetricUse:
    """A metric at one place."""

    __slots__ = ("is_off", "label", "metric", "module")

    def __init__(self, metric: Metric, label: Label, module: nn.Module | None) -> None:
        self.metric = metric
        self.label = label
        self.module = None if module is None else ref(module)
        self.is_off = False


class MetricMatches:
    """The metrics of a watch, by place."""

    def __init__(self, structure: Callable[[], ModelStructure]) -> None:
        self.metrics: list[Metric] = []
        self._structure = structure
        self._uses: dict[Spot, list[MetricUse]] = {}
        self._joint: dict[str, list[MetricUse]] = {}
        self._modules: tuple[int, dict[str, ref[nn.Module]]] = (-1, {})

    def add(self, metric: Metric) -> None:
        self.metrics.append(metric)
        self._uses.clear()
        self._joint.clear()

    def at(self, spot: Spot) -> list[MetricUse]:
        """The metrics that want the tensors of this spot. Those of several kinds of a parameter are
        asked when it has been updated."""
        found = self._uses.get(spot)
        if found is None:
            found = self._uses[spot] = self._uses_at(spot)
        return found

    def joint(self, path: str) -> list[MetricUse]:
        """The metrics that want several tensors of a call of that module."""
        found = self._joint.get(path)
        if found is None:
            module = self.module(path)
            found = self._joint[path] = [
                MetricUse(
                    m, names.of_metric(m.name, m.kinds, path, "0", is_difference=False), module
                )
                for m in self.metrics
                if len(m.kinds) > 1
                and m.kinds[0] in MODULE_KINDS
                and (m.where is None or m.where(path, module))
            ]
        return found

    def compares(self, path: str) -> bool:
        """Whether a metric compares what that module returns."""
        return any(
            m.against is not None
            and m.kinds == ("output",)
            and (m.where is None or m.where(path, self.module(path)))
            for m in self.metrics
        )

    @property
    def compares_outputs(self) -> bool:
        """Whether a metric compares what any module returns."""
        return any(m.against is not None and m.kinds == ("output",) for m in self.metrics)

    def module(self, path: str) -> nn.Module | None:
        """The module there, if it lives."""
        structure = self._structure()
        if self._modules[0] != structure.version:
            self._modules = (structure.version, dict(structure.modules))
        found = self._modules[1].get(path)
        return None if found is None else found()

    def _uses_at(self, spot: Spot) -> list[MetricUse]:
        found = []
        for metric in self.metrics:
            is_joint = len(metric.kinds) > 1
            kind = "update" if is_joint and metric.kinds[0] in PARAMETER_KINDS else metric.kinds[0]
            if kind != spot.kind or (is_joint and kind in MODULE_KINDS):
                continue
            if self._wants(metric, spot):
                label = names.of_metric(
                    metric.name,
                    metric.kinds,
                    spot.path,
                    spot.slot,
                    is_difference=metric.against is not None,
                )
                found.append(MetricUse(metric, label, self.module(spot.path)))
        return found

    def _wants(self, metric: Metric, spot: Spot) -> bool:
        if metric.where is None:
            return True
        module = self.module(spot.path)
        if metric.where(spot.path, module):
            return True
        full = spot.site.path.removesuffix("/before_clip")
        return spot.kind in PARAMETER_KINDS and bool(metric.where(full, module))
