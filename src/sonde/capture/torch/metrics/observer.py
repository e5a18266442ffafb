"""The observer: everything about a watched model that is a number and not a sketch.

A capture meets tensors and calls the observer, if there is one, with each: a tensor at a spot, a
module that is entered or left, parameters around an update. The observer asks the metrics that
want it, and hands what they said to the drain when the step ends.

Whatever a metric does, training goes on: one that raises is told of once and asked no more at that
place; random numbers, gradients and autocast are as they were. No value is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sonde._torch_internals.tensors import current_backward
from sonde.capture.drain import Numbers
from sonde.capture.leaves import leaves
from sonde.capture.numbers.recent import Recent
from sonde.capture.numbers.repeats import Value
from sonde.capture.plan import Selector
from sonde.capture.torch.metrics import attention
from sonde.capture.torch.metrics.accumulate import SentNumbers, StepAccumulators, span_of
from sonde.capture.torch.metrics.attention_stats import AttentionStats
from sonde.capture.torch.metrics.coordinate_check import CoordinateCheck
from sonde.capture.torch.metrics.evaluate import Evaluator
from sonde.capture.torch.metrics.gradient_stages import GradientStages, Stages
from sonde.capture.torch.metrics.isolation import Isolation
from sonde.capture.torch.metrics.match import MetricMatches, MetricUse
from sonde.capture.torch.metrics.reference import Reference, first_tensor
from sonde.capture.torch.rows.host import difference
from sonde.capture.torch.tap import Tap
from sonde.capture.window import NATIVE_PHASE, Spot
from sonde.metrics import names
from sonde.metrics.model import MODULE_KINDS, Metric, Reduce
from sonde.metrics.torch.attention import AttentionCall
from sonde.record import Kind

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture

_REMEMBERED: Final = 8
"""Steps whose numbers `watch.metrics` can still give."""


class Observer:
    """Asks metrics about what a capture meets."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        self.tallies = StepAccumulators()
        self.asker = Evaluator(capture, self.tallies)
        self.kinds: frozenset[Kind] = frozenset()
        self.follows_calls = False
        self.reference: Reference | None = None
        self.replaying: CoordinateCheck | None = None
        self.pipeline: GradientStages | None = None
        self.heads: AttentionStats | None = None
        self._choices = MetricMatches(lambda: capture.structure)
        self._given: dict[tuple[str, int], Tensor | None] = {}
        self._told: set[tuple[str, str]] = set()
        self._recent: Recent[str | SentNumbers, Value | SentNumbers] = Recent(steps=_REMEMBERED)

    # -- what is asked for ---------------------------------------------------------------------

    def add(self, metric: Metric) -> None:
        """Ask this metric too, from now on."""
        with self.capture.lock:
            self._choices.add(metric)
            is_joint, is_of_module = len(metric.kinds) > 1, metric.kinds[0] in MODULE_KINDS
            # What is said of a parameter and more is asked when all of it is there.
            kinds = metric.kinds if not is_joint or is_of_module else (*metric.kinds, "update")
            follows = (is_joint and is_of_module) or metric.against is not None
            self._changed(kinds, follows=follows)

    def has(self, metric: Metric) -> bool:
        """Whether there is one that would be called the same."""
        key = (metric.name, metric.kinds, metric.against)
        return any(key == (m.name, m.kinds, m.against) for m in self._choices.metrics)

    def compare_with(self, reference: Reference | None) -> None:
        """Have another model to compare with, or none."""
        with self.capture.lock:
            if self.reference is not None:
                self.reference.close()
            self.reference = reference
            if reference is not None:
                reference.wants_output = self._compares
                reference.wants_input = self._replays
            self._changed((), follows=True)

    def replay(self, replaying: CoordinateCheck) -> None:
        """Make the refined coordinate check."""
        with self.capture.lock:
            self.replaying = replaying
            self._changed((), follows=True)

    def follow_gradients(self, pipeline: GradientStages) -> None:
        """Follow gradients from backward to update."""
        with self.capture.lock:
            self.pipeline = pipeline
            self._changed(("param_grad", "update"), follows=False)

    def listen(self, heads: AttentionStats) -> None:
        """Listen to attention."""
        self.heads = heads
        root = self.capture.root
        if root is not None:
            attention.listen(heads, root)
        self._changed(("attach",), follows=False)  # to know in which module we are

    def close(self) -> None:
        if self.heads is not None:
            attention.forget(self.heads)
        if self.reference is not None:
            self.reference.close()
        if self.pipeline is not None:
            self.pipeline.end()
        self.asker.recipes.forget()

    def _changed(self, kinds: Sequence[Kind], *, follows: bool) -> None:
        self.kinds |= frozenset(kinds)
        self.follows_calls |= follows
        self.capture.observe(self)

    # -- what the capture meets ----------------------------------------------------------------

    def see(self, spot: Spot, x: Tensor) -> None:
        """A tensor at a spot: a value, a gradient, a parameter."""
        uses = self._choices.at(spot)
        if not uses or (spot.kind in MODULE_KINDS and not _is_real(x)):
            return
        when = (spot.phase, self.capture.phases.step_of(spot.phase))
        self.asker.see(uses, x, when, lambda: self._other(spot, x))

    def wants(self, spot: Spot) -> bool:
        """Whether a metric uses the tensors of a spot."""
        return bool(self._choices.at(spot))

    def saw(self, tap: Tap, call: int, output: Tensor) -> None:
        """What a module returned, in a training pass; it was recorded without us."""
        if tap.output:
            spot = tap.outputs[call, "0", NATIVE_PHASE][0]
            began = time.perf_counter_ns()
            self._guarded(tap.path, lambda: self.see(spot, output))
            self.capture.spent_ns += time.perf_counter_ns() - began

    def began_pass(self, phase: str) -> None:
        """The model is about to be called."""
        if self.pipeline is not None and phase == "train" and not self.pipeline.is_on:
            every = self.pipeline.every
            if every is None or every(self.capture.step):
                stages: Stages = self.tallies.entry(
                    "gradient", ("train", self.capture.step), Stages
                )
                self.pipeline.begin(stages, self.capture.structure.parameters)

    def entered(
        self,
        tap: Tap,
        call: int,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        """A module is about to be called."""
        self._guarded(tap.path, lambda: self._entered(tap, call, module, args, kwargs))

    def left(self, tap: Tap, call: int, module: nn.Module, output: object, phase: str) -> None:
        """A module has returned."""
        self._guarded(tap.path, lambda: self._left(tap, call, module, output, phase))

    def gradients(
        self,
        where: Sequence[tuple[str, str]],
        parameters: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        suffix: str,
    ) -> None:
        """Gradients of parameters: about to be clipped (`/before_clip`), or about to be used."""
        if self.pipeline is None or not self.pipeline.is_on:
            return
        told = self.pipeline.clipping if suffix else self.pipeline.used
        for (path, name), p, grad in zip(where, parameters, grads, strict=True):
            if grad is not None:
                told(path, name, p, grad)

    def updated(self, spot: Spot, p: Tensor, old: Tensor) -> None:
        """The optimizer has changed a parameter."""
        uses = self._choices.at(spot)
        follows = self.pipeline is not None and self.pipeline.is_on
        if not uses and not follows:
            return
        change = difference(p, old)
        if follows and self.pipeline is not None:
            self.pipeline.updated(spot.path, spot.slot, change, p.grad)
        when = ("train", self.capture.step)
        known = {"update": change, "param": old, "param_grad": p.grad}
        span = span_of(p)
        with Isolation(p.device):
            for use in uses:
                tensors = [known[k] for k in use.metric.kinds]
                if not use.is_off and all(x is not None for x in tensors):
                    self.asker.ask(
                        use, tuple(x.detach() for x in tensors if x is not None), when, span
                    )

    def scaled(self, scale: Tensor | None) -> None:
        """A gradient scaler is about to run the optimizer."""
        if self.pipeline is not None:
            self.pipeline.scaled(scale)

    # -- from inside a model ----------------------------------------------------------------

    def is_watching(self) -> bool:
        """Whether something that is logged now would be recorded. Never so in compiled code."""
        if torch.compiler.is_compiling():
            return False
        capture = self.capture
        if capture.asleep or current_backward() != -1:
            return False
        at = capture.current_pass()
        if at.stack:
            return not at.is_outside and capture.steps.wants(at.phase)
        return capture.recording

    def log(self, name: str, value: object, reduce: Reduce) -> None:
        """A number or tensor from inside a module, or from a loop."""
        if torch.compiler.is_compiling() or not self.is_watching():
            return
        capture = self.capture
        if capture.observer is None:
            self._changed(("attach",), follows=False)  # to know in which module we are
        at = capture.current_pass()
        phase = at.phase if at.stack else capture.phases.forced or "train"
        path = at.stack[-1][0].path if at.stack else None
        if at.stack and not at.stack[-1][0].selected:
            return
        when = (phase, capture.phases.step_of(phase))
        label = names.of_log(name, path)

        def put() -> None:
            given = value.detach() if isinstance(value, Tensor) else value
            span = span_of(given) if isinstance(given, Tensor) else None
            self.tallies.add(label, reduce, given, when=when, within=span)

        self._guarded(f"log of {name}", put)

    def measure(
        self, name: str, value: object, tensors: tuple[object, ...], reduce: object
    ) -> None:
        """Numbers for a metric of no module: a value, or a function of tensors."""
        if torch.compiler.is_compiling() or not self.is_watching():
            return
        if self.capture.observer is None:
            self._changed((), follows=False)
        phase = self.capture.phases.forced or "train"
        when = (phase, self.capture.phases.step_of(phase))
        label = names.of_log(name, None)

        def put() -> None:
            given = [x.detach() if isinstance(x, Tensor) else x for x in (value, *tensors)]
            first = next((x for x in given if isinstance(x, Tensor)), None)
            with Isolation(torch.device("cpu") if first is None else first.device):
                found = given[0](*given[1:]) if callable(given[0]) else given[0]
            within = None if first is None else span_of(first)
            self.tallies.add(label, cast("Reduce", reduce), found, when=when, within=within)

        self._guarded(f"metric {name}", put)

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        output: Tensor | None,
        *,
        mask: Tensor | None,
        is_causal: bool,
        scale: float | None,
    ) -> None:
        """Attention that a model computes in a way that we do not know, told by itself."""
        if torch.compiler.is_compiling() or not self.is_watching():
            return
        if self.heads is None:
            self.heads = AttentionStats(self.capture, self.tallies, self.asker.recipes, None, None)
            self._changed(("attach",), follows=False)
        if self.heads.is_listening:
            heads = self.heads
            call = AttentionCall(query, key, mask, is_causal, scale)
            heard = attention.SeenAttention(call, query, key, value, output, query.device)
            self._guarded("attention", lambda: heads.called(heard))

    # -- steps ---------------------------------------------------------------------------------

    def end_step(self) -> None:
        """Send what metrics said since the last step ended."""
        self._guarded("metrics", self._end_step)

    def remember(self, step: int, name: str, value: Value) -> None:
        """A scalar that was logged for a step, for `numbers_of`."""
        self._recent.put(step, name, value)

    @property
    def last_step(self) -> int:
        """The latest step that has numbers, or 0."""
        return self._recent.last_step

    def numbers_of(self, step: int, where: Selector | None = None) -> dict[str, float]:
        """The numbers of a step by flat key, of the modules that are meant. Waits for them."""
        found: dict[str, float] = {}
        for name, value in self._recent.of(step).items():
            if isinstance(value, SentNumbers):
                found |= value.flat(where)
            else:
                found[str(name)] = value() if callable(value) else value
        return found

    def _end_step(self) -> None:
        if self.reference is not None:
            self.reference.end_step()
        if self.replaying is not None:
            self.replaying.end_step()
        if self.heads is not None:
            self.heads.end_step()
        if self.pipeline is not None:
            self.pipeline.end()
        self._given.clear()
        slow = self.asker.end_step()
        with Isolation(torch.device("cpu")):
            sent = self.tallies.take(lambda key, error: self.asker.failed(key, key, error))
        for (phase, step), numbers in sent.items():
            self._recent.put(step, numbers, numbers)
            self.capture.drain.put(
                Numbers(
                    step,
                    phase,
                    [label.name for label in numbers.labels],
                    [label.module for label in numbers.labels],
                    partial(self._values, numbers),
                )
            )
        for name, share in slow:
            self.tell_once(name, "metric_slow", f"took {share:.0%} of a step")

    def _values(self, sent: SentNumbers) -> NDArray[np.float64]:
        """The numbers of a step; whoever asks waits for them. NaN is told of once."""
        values = np.array(sent.values(), dtype=np.float64)
        for i in np.flatnonzero(np.isnan(values)):
            label = sent.labels[i]
            where = "" if label.module is None else f" at `{label.module or '.'}`"
            self.tell_once(label.name, "metric_nan", f"is not a number{where}")
        return values

    # -- inside --------------------------------------------------------------------------------

    def tell_once(self, name: str, code: str, text: str) -> None:
        """Something about a metric that the run should say, but only once."""
        if (name, code) not in self._told:
            self._told.add((name, code))
            self.capture.troubles.tell(code, text, where=name, level="warning")

    def _entered(
        self,
        tap: Tap,
        call: int,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        if self.reference is not None:
            if len(self.capture.current_pass().stack) == 1:
                self.reference.begin_pass(tap.path, first_tensor(args, kwargs))
            if tap.is_root and (self.replaying is not None or self._choices.compares_outputs):
                self.reference.run(module, args, kwargs)
            if self._replays(tap.path) and self.replaying is not None:
                self.replaying.entered(self.reference, tap.path, call, module, args, kwargs)
        if self._choices.joint(tap.path):
            self._given[tap.path, call] = first_tensor(args, kwargs)

    def _left(self, tap: Tap, call: int, module: nn.Module, output: object, phase: str) -> None:
        when = (phase, self.capture.phases.step_of(phase))
        if self.reference is not None:
            if self.replaying is not None:
                with Isolation(_device_of(output)):
                    self.replaying.left(self.reference, tap.path, call, module, output, when)
            self.reference.drop(tap.path, call)
        uses = self._choices.joint(tap.path)
        if uses:
            given = self._given.pop((tap.path, call), None)
            returned = next((x for _, x in leaves(output, Tensor, 1)), None)
            for use in uses:
                self._join(use, given, returned, when)

    def _join(
        self, use: MetricUse, given: Tensor | None, returned: Tensor | None, when: tuple[str, int]
    ) -> None:
        """Compute a metric of several tensors of a call when the last of them is there."""
        known: dict[str, Tensor] = {}
        handles: list[RemovableHandle] = []

        def arrived(kind: str, x: Tensor) -> None:
            known[kind] = x.detach()
            if all(k in known for k in use.metric.kinds):
                with self.capture.lock, Isolation(x.device):
                    several = tuple(known[k] for k in use.metric.kinds)
                    self.asker.ask(use, several, when, span_of(several[0]))
                for handle in handles:
                    handle.remove()
                known.clear()

        for kind in use.metric.kinds:
            x = given if kind.startswith("input") else returned
            if x is None or use.is_off or not _is_real(x):
                return
            if kind.endswith("_grad"):
                if not x.requires_grad:
                    return
                handles.append(x.register_hook(lambda g, kind=kind: arrived(kind, g)))
            else:
                arrived(kind, x)

    def guard_gradient(self, act: Callable[[], None]) -> None:
        """Do something in a hook of autograd's."""
        self._guarded("gradients", act)

    def _guarded(self, where: str, act: Callable[[], None]) -> None:
        try:
            with self.capture.lock:
                act()
        except (Exception, SystemExit) as error:
            self.capture.troubles.failed(f"metrics at {where or '.'}", error)

    def _compares(self, path: str) -> bool:
        """Whether what the reference returns there will be needed."""
        return self._replays(path) or self._choices.compares(path)

    def _replays(self, path: str) -> bool:
        replaying = self.replaying
        if replaying is None or not replaying.wants(path, self._choices.module(path)):
            return False
        return replaying.every is None or replaying.every(self.capture.step)

    def _other(self, spot: Spot, x: Tensor) -> Tensor | None:
        if self.reference is None:
            return None
        if spot.kind == "param":
            return self.reference.parameter(spot.site.path, x)
        return self.reference.output(spot.path, spot.call, spot.slot, x)


def _is_real(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _device_of(output: object) -> torch.device:
    found = leaves(output, Tensor, 1)
    return found[0][1].device if found else torch.device("cpu")
