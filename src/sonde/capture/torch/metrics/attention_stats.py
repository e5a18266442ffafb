"""Heads of attention: from calls heard inside watched modules to numbers and sketches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from sonde._torch_internals.tensors import current_backward
from sonde.capture.torch.metrics.accumulate import Array, ClosedStep, StepAccumulators
from sonde.capture.torch.metrics.attention import SeenAttention
from sonde.capture.torch.metrics.isolation import Isolation
from sonde.capture.torch.metrics.replay import Replays
from sonde.capture.torch.tap import Tap
from sonde.metrics import names
from sonde.metrics.torch import attention as terms

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture

_MAX_PARTS: Final = 64


class AttentionStats:
    """Listens to the attention of one watched model."""

    def __init__(
        self,
        capture: Capture,
        tallies: StepAccumulators,
        recipes: Replays,
        where: Callable[[str, object], bool] | None,
        every: Callable[[int], bool] | None,
    ) -> None:
        self._capture = capture
        self._tallies = tallies
        self._recipes = recipes
        self._where = where
        self._every = every
        self._pending: _Pending | None = None
        self._is_off = False
        self._sampled: set[tuple[str, int]] = set()

    # -- what attention.py asks and tells ------------------------------------------------------

    @property
    def is_listening(self) -> bool:
        """Whether this thread is inside a module whose attention is wanted."""
        at = self._here()
        if at is None or self._is_off:
            return False
        tap = at[0]
        if not tap.selected or (
            self._where is not None and not self._where(tap.path, tap.module())
        ):
            return False
        return self._every is None or self._every(self._capture.step)

    def called(self, heard: SeenAttention) -> None:
        """Attention was computed in one go."""
        self._pending = None
        assert heard.call is not None
        call = heard.call
        self._record(lambda: self._terms(call, heard.device), call.query.shape[-2], heard)

    def product(self, a: Tensor, b: Tensor, out: Tensor, *, is_plain: bool) -> None:
        """Either the beginning of attention, logits, or its end, values."""
        here, pending = self._here(), self._pending
        if (
            pending is not None
            and pending.raw is not None
            and pending.where == here
            and a.shape == pending.shape
        ):
            self._pending = None
            raw, length = pending.raw, pending.shape[-2]
            value = b if is_plain else None
            output = out if is_plain else None
            heard = SeenAttention(None, pending.query, pending.key, value, output, out.device)
            self._record(lambda: raw, length, heard)
            return
        key = b.mT if is_plain and b.dim() >= 3 else None
        self._pending = _Pending(here, tuple(out.shape), a if is_plain else None, key)

    def normalised(self, logits: Tensor, weights: Tensor) -> None:
        """Weights were made of logits, if these are what was last multiplied."""
        pending = self._pending
        if pending is None or pending.where != self._here() or pending.shape != weights.shape:
            return
        with Isolation(logits.device):
            tap = None if pending.where is None else pending.where[0]
            pending.raw = terms.of_logits(_in_heads(logits.detach(), tap))

    def failed(self, error: Exception) -> None:
        self._capture.troubles.pass_on(error)
        self._is_off = True
        self._capture.troubles.failed("attention", error)

    def end_step(self) -> None:
        self._pending = None

    # -- inside --------------------------------------------------------------------------------

    def _terms(self, call: terms.AttentionCall, device: torch.device) -> Tensor:
        """The terms of a call: by a recipe, if it can be had."""
        if call.scores is None:
            there = (call.query, call.key, call.mask)
            given = tuple(x.detach() for x in there if x is not None)

            def compute(
                query: Tensor, key: Tensor, mask: Tensor | None = None
            ) -> tuple[list[Tensor], None]:
                return [terms.of_call(replace(call, query=query, key=key, mask=mask))], None

            name = ("attention", call.is_causal, call.scale)
            found = self._recipes.follow(name, compute, given)
            if found is not None:
                return found[0][0]
        with Isolation(device):
            return terms.of_call(call)

    def _here(self) -> tuple[Tap, int] | None:
        """The innermost call of a watched module in this thread, if it is recorded."""
        capture = self._capture
        if capture.asleep or current_backward() != -1:
            return None
        at = capture.current_pass()
        if not at.stack or at.is_outside or not capture.steps.wants(at.phase):
            return None
        return at.stack[-1]

    def _record(self, compute: Callable[[], Tensor], length: int, heard: SeenAttention) -> None:
        here = self._here()
        if here is None:
            return
        began = time.perf_counter_ns()
        capture = self._capture
        try:
            with capture.lock:
                self._put(here, compute, length, heard)
        finally:
            capture.spent_ns += time.perf_counter_ns() - began

    def _put(
        self,
        here: tuple[Tap, int],
        compute: Callable[[], Tensor],
        length: int,
        heard: SeenAttention,
    ) -> None:
        tap, call = here
        capture = self._capture
        phase = capture.current_pass().phase
        raw = compute()
        when = (phase, capture.phases.step_of(phase))
        entry = self._tallies.entry(f"attention/{tap.path}", when, lambda: _Entry(tap.path))
        with torch.no_grad():
            entry.put(raw)
            self._sketch(tap, call, heard)
        chosen = terms.sampling(length)
        if not chosen.is_whole and (tap.path, length) not in self._sampled:
            self._sampled.add((tap.path, length))
            text = f"attention was looked at for {len(chosen.rows)} of {length} queries"
            capture.troubles.tell("sampled", text, where=tap.path)

    def _sketch(self, tap: Tap, call: int, heard: SeenAttention) -> None:
        """Queries, keys, values and outputs of each head, as attached tensors."""
        capture = self._capture
        if "attach" not in capture.plan.kinds or capture.collector.too_many(tap, call):
            return
        parts = ("query", "key", "value", "output")
        there = [(name, x) for name in parts if (x := getattr(heard, name)) is not None]
        wholes = [_in_heads(x.detach(), tap) for _, x in there]
        slots = tuple((name, x.shape[1]) for (name, _), x in zip(there, wholes, strict=True))
        heads = [head for x in wholes for head in x.unbind(1)]
        capture.collector.heads(tap, capture.current_pass(), call, slots, heads)


def _in_heads(x: Tensor, tap: Tap | None) -> Tensor:
    """(B, H, ...). Heads that a module has put into its batch are told by its own number."""
    if x.dim() == 3 and tap is not None:
        count = getattr(tap.module(), "num_heads", None)
        if isinstance(count, int) and count > 1 and x.shape[0] % count == 0:
            split: Tensor = x.unflatten(0, (-1, count))
            return split
    return terms.heads_of(x)


class _Pending:
    """Logits that may become attention: product, softmax, product, in one call of a module."""

    __slots__ = ("key", "query", "raw", "shape", "where")

    def __init__(
        self, where: object, shape: tuple[int, ...], query: Tensor | None, key: Tensor | None
    ) -> None:
        self.where = where
        self.shape = shape
        self.query = query
        self.key = key
        self.raw: Tensor | None = None


class _Entry:
    """Raw numbers of all calls at one place in a step."""

    __slots__ = ("_path", "_raws")

    def __init__(self, path: str) -> None:
        self._path = path
        self._raws: list[Tensor] = []

    def put(self, raw: Tensor) -> None:
        self._raws.append(raw)
        if len(self._raws) >= _MAX_PARTS and all(r.shape == raw.shape for r in self._raws):
            joined = self._raws[0]
            for more in self._raws[1:]:
                joined = terms.join(joined, more)
            self._raws = [joined]

    def close(self) -> Sequence[ClosedStep]:
        heads = max(int(r.shape[1]) for r in self._raws)
        same = [r for r in self._raws if r.shape[1] == heads]
        return [ClosedStep(_labels(self._path, heads), same, _values)]


@lru_cache(maxsize=1024)
def _labels(path: str, heads: int) -> tuple[names.Label, ...]:
    """In the order of `_values`."""
    each = [None, *range(heads)]
    return tuple(names.of_attention(path, h, t) for t in terms.TERMS for h in each)


def _values(arrays: list[Array]) -> Sequence[float]:
    """Of each term: of all heads together, then of each head."""
    every = np.stack(arrays)
    sums, counts, top = every[:, :3].sum(0), every[:, 3].sum(0), every[:, 4].max(0)
    found: list[float] = []
    for row in sums:
        found.append(_ratio(row.sum(), counts.sum()))
        found += [_ratio(s, n) for s, n in zip(row, counts, strict=True)]
    return [*found, float(top.max()), *map(float, top)]


def _ratio(a: float, b: float) -> float:
    return float(a / b) if b else float("nan")
