"""A metric of a monitor: what is asked, of which modules or parameters, and how it is reduced."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class MonitorMetric:
    """A metric as it was added. `family` is the first part of its keys."""

    family: str
    name: str
    fn: Callable[..., object]
    regex: re.Pattern[str]
    reduce: str | Aggregation

    def where(
        self, is_excluded: Callable[[str], object], format_name: Callable[[str], str]
    ) -> MetricPlaces:
        """Which places it is asked at, as `add_metric` takes it."""
        is_of_modules = self.family.startswith("activation")
        return MetricPlaces(self.regex, is_excluded if is_of_modules else None, format_name)


@dataclass(frozen=True, slots=True)
class MetricPlaces:
    """The modules or, without `is_excluded`, the parameters whose name begins as a pattern says."""

    regex: re.Pattern[str]
    is_excluded: Callable[[str], object] | None
    format_name: Callable[[str], str]

    def __call__(self, path: str, module: object) -> bool:
        if self.is_excluded is None:
            return _is_parameter(path, module) and self.regex.match(path) is not None
        name = self.format_name(path)
        return self.is_excluded(name) is None and self.regex.match(name) is not None

    def __repr__(self) -> str:
        return repr(self.regex.pattern)


class Aggregation:
    """A function of all values of a key in a step. Knows the suffixes that it has returned."""

    def __init__(self, name: str, fn: Callable[..., object]) -> None:
        self.name = name
        self.suffixes: set[str] = set()
        self._fn = fn

    def __call__(self, values: Tensor) -> object:
        made = self._fn(values)
        if isinstance(made, Mapping):
            self.suffixes.update(made)
        return made


def _is_parameter(path: str, module: object) -> bool:
    """Whether the path is the full name of a parameter of the module, and not a module's."""
    return isinstance(getattr(module, path.rpartition(".")[2], None), nn.Parameter)
