"""What is seen around an optimizer's step: parameters, gradients, updates and state.

Before the update: parameters as this step's forward used them, and gradients as the optimizer is
about to use them: accumulated, reduced, unscaled, clipped. After it: what really changed, and the
optimizer's state with this step's gradients in it. State is matched to parameters by identity.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sonde.capture.leaves import leaves
from sonde.capture.rows import Spot
from sonde.capture.torch import naming
from sonde.capture.torch.hooks import MAX_SLOTS
from sonde.capture.torch.session import Capture
from sonde.capture.torch.tables import Sketcher, difference
from sonde.kernels import torch as plain
from sonde.record import Kind


class _Named:
    """A watched parameter: where it lives and the spots of its kinds."""

    __slots__ = ("name", "path", "ref", "spots", "type")

    def __init__(self, parameter: Tensor, path: str, name: str, type_: str) -> None:
        self.ref = ref(parameter)
        self.path = path
        self.name = name
        self.type = type_
        self.spots: dict[tuple[Any, ...], Spot] = {}


class _Batch:
    """Tensors of one device, to be sketched together."""

    __slots__ = ("copies", "indices", "olds", "tensors")

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.tensors: list[Tensor] = []
        self.copies: list[Tensor | None] = []
        self.olds: list[Tensor] = []

    def put(self, index: int, x: Tensor, copy: Tensor | None, old: Tensor | None) -> None:
        self.indices.append(index)
        self.tensors.append(x)
        self.copies.append(copy)
        if old is not None:
            self.olds.append(old)

    def give(self, table: Sketcher) -> None:
        copies = self.copies if any(x is not None for x in self.copies) else ()
        table.add_many(self.indices, self.tensors, copies=copies, olds=self.olds)


class Optimizers:
    """Hooks on the optimizers of a model. The last optimizer of the list ends the step."""

    def __init__(self, capture: Capture, optimizers: Sequence[Optimizer]) -> None:
        self._capture = capture
        self._optimizers = list(optimizers)
        self._named: dict[int, _Named] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._stepped: set[int] = set()
        self._named_at = -1
        self._handles = [
            handle
            for optimizer in self._optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._pre),
                optimizer.register_step_post_hook(self._post),
            )
        ]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._before.clear()

    # -- hooks ---------------------------------------------------------------------------------

    def _pre(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        capture = self._capture
        self._stepped.add(id(optimizer))
        if not capture.recording:
            return
        began = time.perf_counter_ns()
        try:
            parameters = _parameters_of(optimizer)
            if optimizer is self._optimizers[-1]:
                parameters += self._orphans()
            self._see_parameters(parameters)
            if not _has_closure(args, kwargs):
                self._see_gradients(parameters, getattr(optimizer, "grad_scale", None))
        except Exception as error:
            capture._failed("optimizer/before", error)
        finally:
            capture.spent_ns += time.perf_counter_ns() - began

    def _post(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        capture = self._capture
        if capture.recording:
            began = time.perf_counter_ns()
            try:
                if _has_closure(args, kwargs):
                    self._see_gradients(_parameters_of(optimizer), None)
                self._see_updates(_parameters_of(optimizer))
                self._see_state(optimizer)
            except Exception as error:
                capture._failed("optimizer/after", error)
            finally:
                capture.spent_ns += time.perf_counter_ns() - began
        if optimizer is self._optimizers[-1]:
            self._end()

    def about_to_clip(self, parameters: Iterable[Tensor]) -> None:
        """Gradients before clipping, under the slot `weight/before_clip`."""
        if self._capture.recording and "param_grad" in self._capture.plan.kinds:
            try:
                self._see_gradients(list(parameters), None, suffix="/before_clip")
            except Exception as error:
                self._capture._failed("clip", error)

    def scaler_stepped(self, optimizer: object) -> None:
        """After `GradScaler.step`: if the optimizer was left out, the step ends here."""
        if optimizer is not self._optimizers[-1] or id(optimizer) in self._stepped:
            self._stepped.discard(id(optimizer))
            return
        if self._capture.recording:
            try:
                parameters = _parameters_of(self._optimizers[-1])
                self._see_parameters(parameters + self._orphans())
                self._see_gradients(parameters, None)
            except Exception as error:
                self._capture._failed("optimizer/before", error)
        self._end(skipped=True)

    def end_by_hand(self) -> None:
        """`watch.step()` without an optimizer: what can be seen of parameters, then the end."""
        capture = self._capture
        if capture.recording:
            try:
                parameters = [p for *_, p in self._all()]
                if not self._before:
                    self._see_parameters(parameters)
                self._see_gradients(parameters, None)
                self._see_updates(parameters)
            except Exception as error:
                capture._failed("step", error)
        self._end()

    def begin_by_hand(self) -> None:
        """The first pass of a step, when no optimizer is known: parameters as they are used."""
        if self._capture.recording:
            self._see_parameters([p for *_, p in self._all()])

    def _end(self, *, skipped: bool = False) -> None:
        self._before.clear()
        self._capture.end_step(skipped=skipped)

    # -- seeing --------------------------------------------------------------------------------

    def _see_parameters(self, parameters: Sequence[Tensor]) -> None:
        """Parameters as they are now, and a copy of each that the optimizer may change."""
        self._name()
        kinds = self._capture.plan.kinds
        known = [(n, p) for p in parameters if (n := self._known(p)) is not None]
        copies: list[Tensor | None] = [None] * len(known)
        if "update" in kinds:
            copies = [torch.empty_like(p) if p.requires_grad else None for _, p in known]
            self._before.update(
                (id(p), (p, copy))
                for (_, p), copy in zip(known, copies, strict=True)
                if copy is not None
            )
        if "param" in kinds:
            self._add("param", [(n, n.name, p) for n, p in known], copies=copies)
        else:
            for (_, p), copy in zip(known, copies, strict=True):
                if copy is not None:
                    copy.copy_(p)

    def _see_gradients(
        self, parameters: Sequence[Tensor], scale: Tensor | None, *, suffix: str = ""
    ) -> None:
        if "param_grad" not in self._capture.plan.kinds:
            return
        self._name()
        found = []
        for p in parameters:
            named = self._known(p)
            if named is not None and p.grad is not None:
                # A fused optimizer unscales inside its own kernel: do the same on the side.
                grad = p.grad if scale is None else p.grad / scale
                found.append((named, named.name + suffix, grad))
        self._add("param_grad", found)

    def _see_updates(self, parameters: Sequence[Tensor]) -> None:
        found: list[tuple[_Named, str, Tensor]] = []
        olds: list[Tensor | None] = []
        for p in parameters:
            named = self._known(p)
            kept = self._before.pop(id(p), None)
            if named is not None and kept is not None and kept[0] is p:
                found.append((named, named.name, p))
                olds.append(kept[1])
        self._add("update", found, olds=olds)

    def _see_state(self, optimizer: Optimizer) -> None:
        if "optim" not in self._capture.plan.kinds:
            return
        found = []
        for p in _parameters_of(optimizer):
            named = self._known(p)
            if named is None or p not in optimizer.state:
                continue
            for key, value in optimizer.state[p].items():
                if key == "step":
                    continue
                for slot, x in leaves(value, Tensor, MAX_SLOTS):
                    inner = key if x is value else f"{key}.{slot}"
                    found.append((named, f"{named.name}/{inner}", x))
        self._add("optim", found)

    # -- rows ----------------------------------------------------------------------------------

    @torch.no_grad()
    def _add(
        self,
        kind: Kind,
        found: Sequence[tuple[_Named, str, Tensor]],
        *,
        copies: Sequence[Tensor | None] = (),
        olds: Sequence[Tensor | None] = (),
    ) -> None:
        """Sketch many tensors: per device in one go where they are dense, one by one where not."""
        capture = self._capture
        batches: dict[torch.device, _Batch] = {}
        for i, (named, slot, x) in enumerate(found):
            copy = copies[i] if copies else None
            old = olds[i] if olds else None
            spot = capture.spot(named.spots, kind, named.path, 0, slot, named.type)
            rows = capture.rows_of(x.device)
            row = None
            if not spot.off and _is_dense(x) and (old is None or old.stride() == x.stride()):
                if spot.dtype is not x.dtype or spot.rows is not rows:
                    capture.declare(spot, x, rows)
                row = rows.open_row(spot)
            if row is not None:
                batches.setdefault(x.device, _Batch()).put(row.index, x, copy, old)
                continue
            if not spot.off:
                capture._add(spot, x.detach() if old is None else difference(x, old), None)
            if copy is not None:
                copy.copy_(x)
        for device, batch in batches.items():
            batch.give(capture.rows_of(device).table)  # type: ignore[arg-type]

    # -- names ---------------------------------------------------------------------------------

    def _all(self) -> Iterable[tuple[str, str, nn.Module, nn.Parameter]]:
        model = self._capture.model
        return naming.parameters(model) if model is not None else ()

    def _name(self) -> None:
        """Know every selected parameter of the model, also those added since the last step."""
        if self._named_at == self._capture.step:
            return
        self._named_at = self._capture.step
        plan = self._capture.plan
        for path, name, module, parameter in self._all():
            if self._known(parameter) is not None:
                continue
            full = f"{path}.{name}" if path else name
            if plan.wants(path, module) or (plan.include is not None and plan.wants(full, module)):
                self._named[id(parameter)] = _Named(parameter, path, name, type(module).__name__)

    def _known(self, parameter: Tensor) -> _Named | None:
        # By identity: tensors compare by value, so no weak dictionary can hold them.
        named = self._named.get(id(parameter))
        return named if named is not None and named.ref() is parameter else None

    def _orphans(self) -> list[Tensor]:
        """Parameters that no optimizer trains: frozen, or forgotten."""
        trained = {id(p) for o in self._optimizers for p in _parameters_of(o)}
        return [p for *_, p in self._all() if id(p) not in trained]


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_closure(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    return kwargs.get("closure") is not None or (len(args) > 0 and callable(args[0]))


def _is_dense(x: Tensor) -> bool:
    return (
        x.layout is torch.strided
        and x.dtype in plain.DTYPES
        and type(x) in (Tensor, nn.Parameter)
        and x.numel() > 0
        and plain.is_dense(x)
        and not x.is_meta
    )
