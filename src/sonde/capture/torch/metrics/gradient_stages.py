"""Gradient stages, from backward to update: how large it is, and where it turns.

raw          what each backward adds, as it comes out of it
unscaled     the same without the factor of a gradient scaler
accumulated  the sum of a step's backwards, reduced over ranks, before clipping
clipped      as the optimizer uses it, where clipping was done
update       what the optimizer makes of it

For each parameter and for all of them together: the norm of each stage, and cosines between stages
that follow each other. Cosines need both at once: gradients before clipping are copied for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sonde.capture.torch.metrics.accumulate import Array, ClosedStep
from sonde.capture.torch.names import NamedParameter
from sonde.metrics import names
from sonde.metrics.names import Label

STAGES: Final = ("raw", "unscaled", "accumulated", "clipped", "update")
_DOTS: Final = ("raw_accumulated", "accumulated_clipped", "clipped_update")


class Stages:
    """Squared norms and products of a step, on their devices until it ends."""

    def __init__(self) -> None:
        self.scale: Tensor | None = None
        self._kept: dict[tuple[str, str, str], list[Tensor]] = {}

    def put(self, where: tuple[str, str], term: str, value: Tensor) -> None:
        self._kept.setdefault((*where, term), []).append(value)

    def close(self) -> Sequence[ClosedStep]:
        keys = [(key, len(values)) for key, values in self._kept.items()]
        tensors = [x for values in self._kept.values() for x in values]
        if self.scale is not None:
            tensors.append(self.scale)
        if not keys:
            return []
        has_scale = self.scale is not None
        # Which numbers there will be is known now, what they are only on the host.
        terms = _Terms({key: [1.0] * n for key, n in keys}, 1.0 if has_scale else None)
        labels = list(terms.numbers())

        def values(arrays: list[Array]) -> Sequence[float]:
            flat = [float(a.reshape(-1)[0]) for a in arrays]
            scale = flat.pop() if has_scale else None
            found, first = {}, 0
            for key, n in keys:
                found[key] = flat[first : first + n]
                first += n
            return list(_Terms(found, scale).numbers().values())

        return [ClosedStep(labels, tensors, values)]


class _Terms:
    """Norms and cosines from squared norms and products."""

    def __init__(self, kept: dict[tuple[str, str, str], list[float]], scale: float | None) -> None:
        self._means = {key: sum(v) / len(v) for key, v in kept.items()}
        self._scale = scale
        if scale is not None:
            for (module, slot, term), value in list(self._means.items()):
                if term == "raw":
                    unscaled = value / (scale * scale) if scale else math.nan
                    self._means[module, slot, "unscaled"] = unscaled

    def numbers(self) -> dict[Label, float]:
        found: dict[Label, float] = {}
        totals: dict[str, float] = {}
        for (module, slot, term), value in self._means.items():
            totals[term] = totals.get(term, 0.0) + value
            if term in STAGES:
                found[names.of_pipeline(module, slot, f"{term}_norm")] = _root(value)
            elif term in _DOTS:
                sizes = [self._means.get((module, slot, f"{term}_{i}"), math.nan) for i in (0, 1)]
                found[names.of_pipeline(module, slot, f"{term}_cosine")] = _cosine(value, *sizes)
        for term in STAGES:
            if term in totals:
                found[names.of_pipeline(None, "", f"{term}_norm")] = _root(totals[term])
        for term in _DOTS:
            if term in totals:
                cosine = _cosine(totals[term], totals[f"{term}_0"], totals[f"{term}_1"])
                found[names.of_pipeline(None, "", f"{term}_cosine")] = cosine
        return found


class GradientStages:
    """Follows gradients from backward to update in the steps that are recorded."""

    def __init__(
        self,
        guard: Callable[[Callable[[], None]], None],
        where: Callable[[str, object], bool] | None,
        every: Callable[[int], bool] | None,
    ) -> None:
        self.every = every
        self.guard = guard
        self._where = where
        self._stages: Stages | None = None
        self._handles: list[RemovableHandle] = []
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    @property
    def is_on(self) -> bool:
        return self._stages is not None

    def begin(self, stages: Stages, parameters: Sequence[NamedParameter]) -> None:
        """A recorded step begins: listen to what backward adds to each parameter."""
        self.end()
        self._stages = stages
        for named in parameters:
            p = named.ref()
            if (
                p is not None
                and p.requires_grad
                and self._wants(named.path, named.full, named.module())
            ):
                self._handles.append(p.register_hook(_Raw(self, named)))

    def end(self) -> None:
        """The step is over."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._before.clear()
        self._stages = None

    def scaled(self, scale: Tensor | None) -> None:
        """The gradient scaler says what losses were multiplied with."""
        if self._stages is not None and isinstance(scale, Tensor):
            self._stages.scale = scale.detach().clone()

    def raw(self, named: NamedParameter, grad: Tensor) -> None:
        """A backward is about to add this to the parameter's gradient."""
        p = named.ref()
        if self._stages is None or p is None:
            return
        where = (named.path, named.name)
        g = grad.detach()
        size = _square(g)
        self._stages.put(where, "raw", size)
        old = p.grad
        if old is None:
            product = total = size
        else:
            together = _dot(g, old)
            product = together + size
            total = _square(old) + 2 * together + size
        self._put_dot(where, "raw_accumulated", product, size, total)

    def clipping(self, path: str, name: str, p: Tensor, grad: Tensor) -> None:
        """The gradient is about to be clipped."""
        if self._stages is not None and self._wants(path, f"{path}.{name}" if path else name, None):
            self._stages.put((path, name), "accumulated", _square(grad))
            self._before[id(p)] = (p, grad.detach().clone())

    def used(self, path: str, name: str, p: Tensor, grad: Tensor) -> None:
        """The optimizer is about to use the gradient."""
        if self._stages is None or not self._wants(path, f"{path}.{name}" if path else name, None):
            return
        size = _square(grad)
        kept = self._before.pop(id(p), None)
        if kept is None or kept[0] is not p:
            self._stages.put((path, name), "accumulated", size)
            return
        self._stages.put((path, name), "clipped", size)
        before = kept[1]
        self._put_dot(
            (path, name), "accumulated_clipped", _dot(before, grad), _square(before), size
        )

    def updated(self, path: str, name: str, change: Tensor, grad: Tensor | None) -> None:
        """The optimizer has changed the parameter."""
        if self._stages is None or not self._wants(path, f"{path}.{name}" if path else name, None):
            return
        size = _square(change)
        self._stages.put((path, name), "update", size)
        if grad is not None:
            self._put_dot((path, name), "clipped_update", _dot(change, grad), size, _square(grad))

    def _put_dot(
        self, where: tuple[str, str], term: str, ab: Tensor, aa: Tensor, bb: Tensor
    ) -> None:
        assert self._stages is not None
        for suffix, value in (("", ab), ("_0", aa), ("_1", bb)):
            self._stages.put(where, term + suffix, value)

    def _wants(self, path: str, full: str, module: object) -> bool:
        return self._where is None or self._where(path, module) or self._where(full, module)


class _Raw:
    """A hook on a parameter, called with what a backward is about to add."""

    __slots__ = ("_named", "_owner")

    def __init__(self, owner: GradientStages, named: NamedParameter) -> None:
        self._owner = owner
        self._named = named

    def __call__(self, grad: Tensor) -> None:
        self._owner.guard(lambda: self._owner.raw(self._named, grad))


def _square(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x.detach(), dtype=_wide(x))
    return norm.square()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.dot(a.detach().flatten().to(_wide(a)), b.detach().flatten().to(_wide(a)))


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _root(x: float) -> float:
    return math.sqrt(x) if x >= 0 else math.nan


def _cosine(ab: float, aa: float, bb: float) -> float:
    size = aa * bb
    return ab / math.sqrt(size) if size > 0 else math.nan
