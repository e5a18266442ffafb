"""What metrics have said since a step began, and how that becomes numbers when it ends.

A metric may be asked many times in a step: for each micro-batch, for each call of a module. The
result is that of all elements that it returned, each counting the same. Tensors stay where they are
until the step ends; then all of them are sent to the host together, and put together there.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde._signals import pass_on
from sonde.capture.torch.cuda.copies import HostCopies
from sonde.metrics.model import Merge, OnHost, Reduce
from sonde.metrics.names import Label

Array = NDArray[np.float64]
Span = tuple[int, int]
Places = Sequence[tuple[int, int]]
"""Where in a tensor the number of each metric is, and of how many elements it is."""

_MAX_PARTS: Final = 64
"""Values of a metric that are kept apart; more are put together on their device."""


A = TypeVar("A")


class Accumulator(Protocol):
    """Numbers in the making, each with its label."""

    def close(self) -> Sequence[ClosedStep | SumAccumulator]:
        """What it has come to, when the step ends."""
        ...


class ClosedStep:
    """Tensors to be sent, and what is to be made of them on the host."""

    __slots__ = ("labels", "tensors", "values")

    def __init__(
        self,
        labels: Sequence[Label],
        tensors: Sequence[Tensor],
        values: Callable[[list[Array]], Sequence[float]],
    ) -> None:
        self.labels = labels
        self.tensors = tensors
        self.values = values


class SumAccumulator:
    """All that one metric has said at one place: sums and counts, or extrema.

    There are thousands of these in a step, most of them of one tensor. Each is its own `Closed`.
    """

    __slots__ = ("_at", "_counted", "_n", "_reduce", "_sum", "labels", "tensors")

    def __init__(self, label: Label, reduce: str) -> None:
        self.labels = (label,)
        self.tensors: Sequence[Tensor] = ()
        self._at: Sequence[int] = ()
        self._reduce = reduce
        self._counted = self._n = 0
        self._sum = math.nan

    def number(self, value: float) -> None:
        """A number, which is one element."""
        self._sum = _combine(self._reduce, self._sum, float(value)) if self._n else float(value)
        self._n += 1

    def tensor(self, value: Tensor) -> None:
        """All elements of a tensor."""
        if value.is_complex():
            raise TypeError("it returned complex numbers; return their real part, or modulus")
        n = value.numel() if value.shape else 1
        if n != 1:
            if n == 0:
                return
            value = reduced(value, self._reduce)
        self.part(value, 0, n)

    def part(self, value: Tensor, at: int, n: int) -> None:
        """What `n` elements were reduced to: one number of a tensor that holds several."""
        self._counted += n
        if not self.tensors:
            self.tensors, self._at = (value,), (at,)
            return
        self.tensors, self._at = (*self.tensors, value), (*self._at, at)
        if len(self.tensors) >= _MAX_PARTS:
            self._fold()

    def count(self, places: Places) -> None:
        """Keep parts at these places, of tensors that are sent elsewhere."""
        self._at = [at for at, _ in places]
        self._counted = sum(n for _, n in places)

    def close(self) -> Sequence[ClosedStep | SumAccumulator]:
        return (self,) if self._n or self.tensors else ()

    def values(self, arrays: list[Array]) -> Sequence[float]:
        """The number, from what has arrived."""
        if len(arrays) == 1 and not self._n:
            value = arrays[0].item(self._at[0])  # as most of the time
            return [value / self._counted if self._reduce == "mean" else value]
        found = [a.item(at) for a, at in zip(arrays, self._at, strict=True)]
        found += [self._sum] * bool(self._n)
        if self._reduce == "min":
            return [_extremum(min, found)]
        if self._reduce == "max":
            return [_extremum(max, found)]
        total = math.fsum(found) if all(map(math.isfinite, found)) else sum(found)
        return [total / (self._counted + self._n) if self._reduce == "mean" else total]

    def _fold(self) -> None:
        """Put what is kept together, per device, so that it does not grow."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for x, at in zip(self.tensors, self._at, strict=True):
            one = x.reshape(-1)[at] if x.dim() else x
            by_device.setdefault(x.device, []).append(one.to(_wide(x)))
        folded = [reduced(torch.stack(several), self._reduce) for several in by_device.values()]
        self.tensors, self._at = folded, [0] * len(folded)


class JointAccumulator:
    """What several metrics said of a tensor, with all their numbers in one. As many tallies would
    say the same."""

    __slots__ = ("_reduces", "labels", "parts")

    def __init__(self, labels: Sequence[Label], reduces: Sequence[str]) -> None:
        self.labels = labels
        self._reduces = reduces
        self.parts: list[tuple[Tensor, Places]] = []

    def closed(self) -> ClosedStep:
        places = [places for _, places in self.parts]
        return ClosedStep(
            self.labels, [x for x, _ in self.parts], lambda a: self._values(a, places)
        )

    def spread(self, entries: dict[str, Any]) -> None:
        """Give the entries to the tallies of each metric that has some."""
        for i, (label, reduce) in enumerate(zip(self.labels, self._reduces, strict=True)):
            tally = entries.get(label.key)
            if tally is None:
                tally = entries[label.key] = SumAccumulator(label, reduce)
            for x, places in self.parts:
                tally.part(x, *places[i])

    def _values(self, arrays: list[Array], places: Sequence[Places]) -> Sequence[float]:
        if len(arrays) == 1:
            found = arrays[0].tolist()  # as most of the time
            return [
                found[at] / n if reduce == "mean" else found[at]
                for (at, n), reduce in zip(places[0], self._reduces, strict=True)
            ]
        entries: dict[str, SumAccumulator] = {}
        for i, (label, reduce) in enumerate(zip(self.labels, self._reduces, strict=True)):
            tally = entries[label.key] = SumAccumulator(label, reduce)
            tally.count([each[i] for each in places])
        return [tally.values(arrays)[0] for tally in entries.values()]


class ListAccumulator:
    """Everything that a metric returned, for a reduction that wants to see all of it."""

    __slots__ = ("_label", "_reduce", "_values")

    def __init__(self, label: Label, reduce: Callable[[Tensor], object]) -> None:
        self._label = label
        self._reduce = reduce
        self._values: list[Tensor] = []

    def number(self, value: float) -> None:
        self._values.append(torch.tensor([value], dtype=torch.float64))

    def tensor(self, value: Tensor) -> None:
        self._values.append(value.reshape(-1))

    def close(self) -> Sequence[ClosedStep | SumAccumulator]:
        if not self._values:
            return []
        device = next((v.device for v in self._values if v.device.type != "cpu"), None)
        with torch.no_grad():
            moved = [v.to(device or v.device, non_blocking=True) for v in self._values]
            every = torch.cat(moved)
            return closed(self._label, self._reduce(every))


class MergedAccumulator:
    """What a metric returned, joined call by call."""

    __slots__ = ("_how", "_label", "_state")

    def __init__(self, label: Label, how: Merge) -> None:
        self._label = label
        self._how = how
        self._state: Tensor | None = None

    def number(self, value: float) -> None:
        self._join(torch.tensor(value, dtype=torch.float64))

    def tensor(self, value: Tensor) -> None:
        self._join(value)

    def close(self) -> Sequence[ClosedStep | SumAccumulator]:
        if self._state is None:
            return []
        with torch.no_grad():
            return closed(self._label, self._how.finish(self._state))

    def _join(self, value: Tensor) -> None:
        self._state = value if self._state is None else self._how.merge(self._state, value)


class HostAccumulator:
    """Tensors that only the host can make numbers of: the mean of these."""

    __slots__ = ("_given", "_label")

    def __init__(self, label: Label) -> None:
        self._label = label
        self._given: list[OnHost] = []

    def put(self, value: OnHost) -> None:
        self._given.append(value)

    def close(self) -> Sequence[ClosedStep]:
        finish = [g.finish for g in self._given]

        def values(arrays: list[Array]) -> Sequence[float]:
            found = [float(f(a)) for f, a in zip(finish, arrays, strict=True)]
            return [sum(found) / len(found)]

        return [ClosedStep([self._label], [g.tensor for g in self._given], values)]


class StepAccumulators:
    """The entries of a step, and of each phase of it. `Any`: an `Accumulator` of the kind that the
    metric under that key has."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, int], dict[str, Any]] = {}
        self._joints: dict[tuple[str, int], dict[int, JointAccumulator]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.entries.values())) + sum(map(len, self._joints.values()))

    def add(
        self,
        label: Label,
        reduce: Reduce,
        value: object,
        *,
        when: tuple[str, int],
        within: Span | None = None,
    ) -> None:
        """Take what a metric returned: a number, a tensor, a dict of these, or None for nothing.

        A tensor that lies `within` foreign memory is copied.

        Raises:
            TypeError: It is none of these.
        """
        if isinstance(value, Tensor):
            if value.requires_grad:
                value = value.detach()
            is_kept = not value.shape or value.numel() == 1 or not isinstance(reduce, str)
            if within is not None and is_kept and is_within(value, within):
                value = value.clone()
            self._entry(label, reduce, when).tensor(value)
        elif value is None:
            return
        elif isinstance(value, dict):
            for key, one in value.items():
                self.add(label.part(str(key)), reduce, one, when=when, within=within)
        elif isinstance(value, OnHost):
            self.entry(label.key, when, lambda: HostAccumulator(label)).put(value)
        elif isinstance(value, numbers.Real | np.bool_):
            self._entry(label, reduce, when).number(float(value))
        else:
            raise TypeError(
                f"it must return a number, a tensor or a dict of them, got {type(value).__name__}"
            )

    def put(
        self,
        labels: Sequence[Label],
        reduces: Sequence[str],
        value: Tensor,
        places: Places,
        *,
        when: tuple[str, int],
    ) -> None:
        """Take what several metrics said, reduced already: numbers of one tensor, each with its
        place and with how many elements it is of. The labels are always the same object."""
        joints = self._joints.setdefault(when, {})
        joint = joints.get(id(labels))
        if joint is None:
            joint = joints[id(labels)] = JointAccumulator(labels, reduces)
        joint.parts.append((value, places))

    def _entry(self, label: Label, reduce: Reduce, when: tuple[str, int]) -> NumberAccumulator:
        entries = self.entries.get(when)
        if entries is None:
            entries = self.entries[when] = {}
        key = label.key
        found = entries.get(key)
        if found is None:
            found = entries[key] = _made(label, reduce)
        return found

    def entry(self, key: str, when: tuple[str, int], make: Callable[[], A]) -> A:
        """The entry under that key, made if there is none."""
        found = self.entries.setdefault(when, {})
        if key not in found:
            found[key] = make()
        entry: A = found[key]
        return entry

    def take(self, failed: Callable[[str, Exception], None]) -> dict[tuple[str, int], SentNumbers]:
        """Send what there is, by phase and step; from here on this is empty."""
        taken, self.entries = self.entries, {}
        joints, self._joints = self._joints, {}
        sent = {}
        for when in dict.fromkeys([*taken, *joints]):
            entries = taken.get(when, {})
            ready: list[ClosedStep | SumAccumulator] = []
            alone = list(joints.get(when, {}).values())
            keys = [label.key for joint in alone for label in joint.labels]
            if len(set(keys)) == len(keys) and entries.keys().isdisjoint(keys):
                ready += [joint.closed() for joint in alone]  # as most of the time
            else:
                for joint in alone:
                    joint.spread(entries)
            for key, entry in entries.items():
                try:
                    ready += entry.close()
                except Exception as error:
                    failed(key, error)
            if ready:
                sent[when] = SentNumbers(ready)
        return sent


class SentNumbers:
    """Numbers of a step on their way; `values` waits for them."""

    def __init__(self, ready: Sequence[ClosedStep | SumAccumulator]) -> None:
        self.labels = [label for one in ready for label in one.labels]
        self._ready = ready
        tensors: list[Tensor] = []
        known: dict[int, int] = {}  # several numbers may be of one tensor, which is sent once
        self._places: list[list[int]] = []
        for one in ready:
            places = []
            for x in one.tensors:
                place = known.setdefault(id(x), len(tensors))
                if place == len(tensors):
                    tensors.append(x)
                places.append(place)
            self._places.append(places)
        self._arrived = HostCopies(tensors)
        for one in ready:
            one.tensors = ()
        self._values: list[float] | None = None

    def values(self) -> list[float]:
        """One number per label; NaN where it could not be worked out."""
        if self._values is None:
            arrays = self._arrived.arrays()
            found: list[float] = []
            for one, places in zip(self._ready, self._places, strict=True):
                try:
                    found += one.values([arrays[i] for i in places])
                except Exception as error:
                    pass_on(error)
                    found += [math.nan] * len(one.labels)
            self._values = found
        return self._values

    def flat(self, where: Callable[[str, object], bool] | None = None) -> dict[str, float]:
        """All of them by flat key, or those of no module and of modules that are meant."""
        return {
            label.key: v
            for label, v in zip(self.labels, self.values(), strict=True)
            if where is None or label.module is None or where(label.module, None)
        }


def reduced(value: Tensor, reduce: str) -> Tensor:
    """All elements as one: their sum or extremum. (A mean is that of all that is ever seen.)"""
    if reduce == "min":
        return value.amin()
    if reduce == "max":
        return value.amax()
    return value.sum(dtype=_wide(value))


def closed(label: Label, value: object) -> Sequence[ClosedStep | SumAccumulator]:
    """What the last step of a reduction returned: a number, a tensor, or a dict of these."""
    whole = StepAccumulators()
    whole.add(label, "mean", value, when=("", 0))
    found = (entry.close() for by in whole.entries.values() for entry in by.values())
    return [one for several in found for one in several]


NumberAccumulator = SumAccumulator | ListAccumulator | MergedAccumulator
"""What takes numbers and tensors."""


def _made(label: Label, reduce: Reduce) -> NumberAccumulator:
    if isinstance(reduce, str):
        return SumAccumulator(label, reduce)
    return (
        MergedAccumulator(label, reduce)
        if isinstance(reduce, Merge)
        else ListAccumulator(label, reduce)
    )


def _combine(reduce: str, a: float, b: float) -> float:
    if reduce in ("min", "max"):
        return _extremum(min if reduce == "min" else max, [a, b])
    return a + b


def _extremum(choose: Callable[[list[float]], float], found: list[float]) -> float:
    return math.nan if any(map(math.isnan, found)) else choose(found)


def span_of(x: Tensor) -> Span:
    """From where to where the memory of a tensor goes."""
    try:
        storage = x.untyped_storage()
        first = storage.data_ptr()
        return first, first + storage.nbytes()
    except Exception as error:  # there is none to speak of: sparse, or a wrapper
        pass_on(error)
        return 0, 1 << 63


def is_within(value: object, span: Span) -> bool:
    """Whether a value is, or may be, in that memory."""
    if isinstance(value, Tensor):
        try:
            return span[0] <= value.data_ptr() < span[1]
        except Exception as error:  # it does not say
            pass_on(error)
            return True
    return not isinstance(value, numbers.Real)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64
