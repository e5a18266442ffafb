"""The asker: calls metrics with the tensors that they want, and keeps what they say.

Whatever a metric does, the others and the training go on. On a GPU, those that do the same each
time are followed as one recipe for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import torch
from torch import Tensor

from sonde._torch_internals.tensors import version_of
from sonde.capture.torch.metrics.accumulate import (
    Span,
    StepAccumulators,
    is_within,
    reduced,
    span_of,
)
from sonde.capture.torch.metrics.isolation import Isolation
from sonde.capture.torch.metrics.match import MetricUse
from sonde.capture.torch.metrics.replay import Replays
from sonde.metrics.model import Metric
from sonde.metrics.torch.fixed import FixedFunction, ReplayProbe, fixed

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture

When = tuple[str, int]
Known = dict[Hashable, Any]
"""What was said of a tensor: by a metric, under its identity, or by several together. `Any`: what a
metric returns, or what a replay does."""

_SLOW_NS: Final = 100_000_000
"""A metric that takes longer in a step, and more than half of the step, is told of."""


class Evaluator:
    """Asks metrics about tensors."""

    def __init__(self, capture: Capture, tallies: StepAccumulators) -> None:
        self.recipes = Replays(lambda error: capture.troubles.failed("replays", error))
        self._capture = capture
        self._tallies = tallies
        self._last: tuple[ref[Tensor], int, Known] | None = None
        self._failed: set[str] = set()
        self._spent_ns: dict[str, int] = {}
        self._began_ns = time.perf_counter_ns()
        self._fixed: dict[int, tuple[Metric, FixedFunction | None]] = {}
        self._together: dict[int, tuple[list[MetricUse], _Together]] = {}
        self._checked_step = -1

    def see(
        self, uses: list[MetricUse], x: Tensor, when: When, other: Callable[[], Tensor | None]
    ) -> None:
        """Ask all these metrics about a tensor; those that compare, about another one too."""
        known = self._said_of(x)
        if x.is_cuda:
            uses = self._follow(uses, x, when, known)
            if not uses:
                return
        alone, span = (x.detach(),), span_of(x)
        with Isolation(x.device):
            for use in uses:
                if use.is_off:
                    continue
                if use.metric.against is None:
                    self.ask(use, alone, when, span, known)
                elif (compared := other()) is not None:
                    self.ask(use, (*alone, compared), when, span)

    def ask(
        self,
        use: MetricUse,
        tensors: tuple[Tensor, ...],
        when: When,
        span: Span,
        known: Known | None = None,
    ) -> None:
        """Ask one metric. What it says of a tensor may be `known`: then that is what it says."""
        metric = use.metric
        began = time.perf_counter_ns()
        try:
            if metric.every is not None and not metric.every(self._capture.step):
                return
            if known is not None and id(metric) in known:
                self._tallies.add(use.label, metric.reduce, known[id(metric)], when=when)
                return
            first = tensors[0]
            version = _version(first)
            if metric.passes_module:
                value = metric.fn(*tensors, module=None if use.module is None else use.module())
            else:
                value = metric.fn(*tensors)
            if version != _version(first):
                raise RuntimeError("it wrote into the tensor that it was given")
            if not is_within(value, span):
                if known is not None and not metric.passes_module:
                    known[id(metric)] = value
                self._tallies.add(use.label, metric.reduce, value, when=when)
            else:
                self._tallies.add(use.label, metric.reduce, value, when=when, within=span)
        except (Exception, SystemExit) as error:
            self._capture.troubles.pass_on(error)
            use.is_off = True
            self._together.clear()
            self.failed(metric.name, use.label.key, error)
        finally:
            spent = time.perf_counter_ns() - began
            self._spent_ns[metric.name] = self._spent_ns.get(metric.name, 0) + spent

    def failed(self, name: str, where: str, error: BaseException) -> None:
        """Told once for a metric, however many places it fails at."""
        self._capture.troubles.pass_on(error)
        if name not in self._failed:
            self._failed.add(name)
            self._capture.troubles.failed(f"metric {where}", error)

    def end_step(self) -> list[tuple[str, float]]:
        """The step is over: metrics that took much of it, and how much."""
        self._last = None
        now = time.perf_counter_ns()
        took = now - self._began_ns
        slow = [
            (name, spent / took)
            for name, spent in self._spent_ns.items()
            if spent > _SLOW_NS and spent > took / 2
        ]
        self._spent_ns.clear()
        self._began_ns = now
        return slow

    def _said_of(self, x: Tensor) -> Known:
        """What metrics have just said of this very tensor: a module returns what its last child
        returned."""
        version = _version(x)
        if self._last is None or self._last[0]() is not x or self._last[1] != version:
            self._last = (ref(x), version, {})
        return self._last[2]

    # -- recipes -------------------------------------------------------------------------------

    def _follow(
        self, uses: list[MetricUse], x: Tensor, when: When, known: Known
    ) -> list[MetricUse]:
        """Have those metrics that do the same each time follow their recipe; the others."""
        together = self._together_of(uses)
        if not together.uses:
            return uses
        found = known.get(together.name)
        if found is None:
            found = self.recipes.follow(
                together.name, together.compute, (x.detach(),), lambda: self._is_fit(together, x)
            )
            if found is None:
                return uses
            known[together.name] = found
        (said,), places = found
        self._tallies.put(together.labels, together.reduces, said, places, when=when)
        return together.others

    def _together_of(self, uses: list[MetricUse]) -> _Together:
        """Which of these can be asked together, as it was worked out once."""
        if self._checked_step != self._capture.step:
            self._checked_step = self._capture.step
            for key, (metric, constants) in list(self._fixed.items()):
                if constants is not None and not constants.holds():
                    self._unfit(key, metric)
        found = self._together.get(id(uses))
        if found is None:
            found = self._together[id(uses)] = (uses, self._divided(uses))
        return found[1]

    def _divided(self, uses: list[MetricUse]) -> _Together:
        fit = [use for use in uses if self._may_be_fit(use)]
        return _Together(fit, [use for use in uses if use not in fit])

    def _may_be_fit(self, use: MetricUse) -> bool:
        metric = use.metric
        if use.is_off or metric.every is not None or metric.against is not None:
            return False
        if metric.passes_module or not isinstance(metric.reduce, str) or len(metric.kinds) > 1:
            return False
        known = self._fixed.get(id(metric))
        if known is None:
            known = self._fixed[id(metric)] = (metric, fixed(metric.fn))
        return known[1] is not None

    def _is_fit(self, together: _Together, x: Tensor) -> bool:
        """Whether these can be recorded for tensors like that: they are called to find out."""
        unfit = []
        with Isolation(x.device):
            for use in together.uses:
                with ReplayProbe(x.device) as probe:
                    try:
                        value = use.metric.fn(x.detach())
                    except (Exception, SystemExit) as error:  # told of when it is asked
                        self._capture.troubles.pass_on(error)
                        value = None
                is_fit = type(value) is Tensor and probe.is_fit and value.numel() > 0
                if not is_fit or value.is_complex():
                    unfit.append(use.metric)
        for metric in unfit:
            self._unfit(id(metric), metric)
        return not unfit

    def _unfit(self, key: int, metric: Metric) -> None:
        self._fixed[key] = (metric, None)
        self._together.clear()


class _Together:
    """Metrics that are asked together, and those beside them that are asked one by one."""

    __slots__ = ("compute", "labels", "name", "others", "reduces", "uses")

    def __init__(self, uses: list[MetricUse], others: list[MetricUse]) -> None:
        self.uses = uses
        self.others = others
        asked = [use.metric for use in uses]
        self.labels = [use.label for use in uses]
        self.reduces = [str(metric.reduce) for metric in asked]
        self.name = tuple(id(metric) for metric in asked)
        self.compute = lambda x: _all_of(asked, x)


def _all_of(metrics: Sequence[Metric], x: Tensor) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """A number for each metric; at which place it is, and of how many elements."""
    numbers: dict[torch.dtype, list[tuple[int, Tensor]]] = {}
    counts = []
    for i, metric in enumerate(metrics):
        value: Tensor = metric.fn(x)
        counts.append(value.numel())
        if counts[i] != 1:
            value = reduced(value, str(metric.reduce))
        numbers.setdefault(value.dtype, []).append((i, value.reshape(1)))
    # As few operations as it takes: those of one dtype together, and nothing for one alone.
    parts = [_joined([value for _, value in several]) for several in numbers.values()]
    order = [i for several in numbers.values() for i, _ in several]
    places = [(order.index(i), n) for i, n in enumerate(counts)]
    return [_joined([part.double() for part in parts])], places


def _joined(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else version_of(x)
