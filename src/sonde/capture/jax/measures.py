"""Measures: metrics as part of the compiled step, evaluated where taps are.

A metric is a pure function of arrays. What it returns is reduced where it is, so that a step
returns two numbers for each: the reduced value, and whether it counts.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
from jax import Array, lax

from sonde.capture.jax.groups import Cut, Group, Loop, MetricGroup
from sonde.capture.jax.sites import site_of
from sonde.capture.jax.taps import JaxTap
from sonde.metrics.model import Merge, Metric
from sonde.metrics.names import Label, of_metric
from sonde.record import PARAMETER_KINDS, Kind

_REDUCTIONS: Final[dict[str, Callable[[Array], Array]]] = {
    "mean": jnp.mean,
    "sum": jnp.sum,
    "min": jnp.min,
    "max": jnp.max,
}
_SCALAR: Final = Metric("", float)
"""What numbers of the optimizer are: themselves."""

Failed = Callable[[str, Exception], None]
_Key = tuple[object, str]
_Seen = dict[_Key, dict[Kind, Array]]


@dataclass(frozen=True)
class Measure:
    """What one of the numbers that a step returns is: of `size` elements, reduced by `reduce`."""

    label: Label
    reduce: str
    size: int


class Measures:
    """Evaluates metrics of a function while it is harvested.

    `scalars` says whether numbers of the optimizer are wanted. `failed` is called with what a
    metric raised; it is not evaluated at that place again.
    """

    def __init__(
        self,
        metrics: Sequence[Metric] = (),
        failed: Failed = lambda _where, _error: None,
        *,
        scalars: bool = False,
    ) -> None:
        self.met: set[str] = set()
        self._metrics = metrics
        self._failed = failed
        self._scalars = scalars
        self._scopes: list[_Seen] = [{}]
        self._off: set[tuple[str, str]] = set()

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Arrays that are met inside the block are gone after it: those of a loop or a branch."""
        self._scopes.append({})
        try:
            yield
        finally:
            self._scopes.pop()

    def wants(self, tap: JaxTap) -> bool:
        """Whether any metric is of that array."""
        return any(tap.kind in m.kinds and self._is_meant(m, tap) for m in self._metrics)

    def see(self, tap: JaxTap, x: Array, stack: tuple[str, int] | None) -> list[MetricGroup]:
        """What metrics make of an array. Its first dimension is that of `stack`, if it has one."""
        if tap.scalar:
            return self._scalar(tap, x) if self._scalars else []
        groups: list[MetricGroup] = []
        for metric in self._metrics:
            if tap.kind in metric.kinds and self._is_meant(metric, tap):
                self.met.add(metric.name)
                arrays = self._arrays(metric, tap, x)
                if arrays:
                    groups += self._evaluated(metric, tap, arrays, stack)
        return groups

    def _scalar(self, tap: JaxTap, x: Array) -> list[MetricGroup]:
        if x.size != 1:
            return []
        cut = Cut(tap, x.dtype.name, tuple(x.shape))
        return [MetricGroup((cut,), _pair(x, "mean"), metric=_SCALAR, key="", size=1)]

    def _is_meant(self, metric: Metric, tap: JaxTap) -> bool:
        if metric.where is None:
            return True
        full = f"{tap.path}.{tap.slot}" if tap.path else tap.slot
        paths = (tap.path, full) if tap.kind in PARAMETER_KINDS else (tap.path,)
        return any(metric.where(path, tap.module) for path in paths)

    def _arrays(self, metric: Metric, tap: JaxTap, x: Array) -> tuple[Array, ...]:
        """What the metric takes, once all of it has been met."""
        if len(metric.kinds) == 1:
            return (x,)
        key: _Key = (tap.path if tap.kind in PARAMETER_KINDS else tap.call, tap.slot)
        self._scopes[-1].setdefault(key, {})[tap.kind] = x
        seen: dict[Kind, Array] = {}
        for scope in self._scopes:
            seen |= scope.get(key, {})
        return tuple(seen[k] for k in metric.kinds) if seen.keys() >= set(metric.kinds) else ()

    def _evaluated(
        self,
        metric: Metric,
        tap: JaxTap,
        arrays: tuple[Array, ...],
        stack: tuple[str, int] | None,
    ) -> list[MetricGroup]:
        place = (metric.name, f"{tap.path}/{tap.kind}/{tap.slot}")
        if place in self._off:
            return []
        more = {"module": tap.module} if metric.passes_module else {}
        loops = () if stack is None else (Loop(stack[1], path=stack[0]),)
        sizes: dict[str, int] = {}

        def one(xs: tuple[Array, ...]) -> list[Array]:
            values = _flat(metric.fn(*xs, **more), "")
            sizes.clear()
            sizes.update((key, v.size) for key, v in values.items())
            if not isinstance(metric.reduce, str):
                return list(values.values())
            return [_pair(v, metric.reduce) for v in values.values()]

        try:
            found = one(arrays) if stack is None else lax.map(one, arrays)
        except Exception as error:
            self._off.add(place)
            self._failed(f"metric {metric.name}", error)
            return []
        cut = Cut(tap, arrays[0].dtype.name, tuple(arrays[0].shape))
        is_raw = not isinstance(metric.reduce, str)
        return [
            MetricGroup((cut,), x, loops, metric=metric, key=key, size=n, is_raw=is_raw)
            for (key, n), x in zip(sizes.items(), found, strict=True)
        ]


def measured(groups: Sequence[Group], failed: Failed) -> tuple[Array, list[Measure]]:
    """The numbers that a step returns, of shape (numbers, 2), and what each is."""
    rows: list[Array] = []
    measures: list[Measure] = []
    raw: dict[Label, tuple[Metric, list[Array]]] = {}
    for group in groups:
        if not isinstance(group, MetricGroup):
            continue
        for turn in itertools.product(*(range(loop.length) for loop in group.loops)):
            label = _label(group, turn)
            label = label.part(group.key) if group.key else label
            if group.is_raw:
                raw.setdefault(label, (group.metric, []))[1].append(group.rows[turn])
            elif isinstance(group.metric.reduce, str):
                rows.append(group.rows[turn])
                measures.append(Measure(label, group.metric.reduce, group.size))
    for label, (metric, values) in raw.items():
        try:
            for key, x in _flat(_joined(metric, values), "").items():
                rows.append(_pair(x, "mean"))
                measures.append(Measure(label.part(key) if key else label, "mean", 1))
        except Exception as error:
            failed(f"metric {metric.name}", error)
    return jnp.stack(rows) if rows else jnp.zeros((0, 2), _wide()), measures


def scalar(name: str) -> Measure:
    """What a number of no module is."""
    return Measure(Label(None, name, name), "mean", 1)


def _label(group: MetricGroup, turn: Sequence[int]) -> Label:
    (cut,) = group.cuts
    if cut.tap.scalar:
        return Label(None, cut.tap.scalar, cut.tap.scalar)
    site = site_of(cut.tap, 0, group.loops, turn)
    metric = group.metric
    return of_metric(metric.name, metric.kinds, site.module, site.slot, is_difference=False)


def _joined(metric: Metric, values: Sequence[Array]) -> object:
    """What a reduction that is a function makes of all values of a call."""
    if isinstance(metric.reduce, Merge):
        return metric.reduce.finish(functools.reduce(metric.reduce.merge, values))
    assert callable(metric.reduce)
    return metric.reduce(jnp.concatenate([x.reshape(-1) for x in values]))


def _flat(value: object, key: str) -> dict[str, Array]:
    """The arrays that a metric returned, by key; a dict of them comes apart."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        found: dict[str, Array] = {}
        for name, one in value.items():
            found |= _flat(one, f"{key}/{name}" if key else str(name))
        return found
    try:
        x = jnp.asarray(value)
    except TypeError:
        raise TypeError(
            f"it must return a number, an array or a dict of them, got {type(value).__name__}"
        ) from None
    if jnp.iscomplexobj(x):
        raise TypeError("it returned complex numbers; return their real part, or modulus")
    return {key: x} if x.size else {}


def _pair(x: Array, reduce: str) -> Array:
    """What an array is reduced to, and that it counts."""
    return jnp.stack([_REDUCTIONS[reduce](x.astype(_wide())), jnp.ones((), _wide())])


def _wide() -> type:
    """The widest format of real numbers that JAX has now."""
    found: type = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
    return found
