"""What is seen around an optimizer's step: parameters, gradients, updates and state.

Before the update: parameters as this step's forward used them, and gradients as the optimizer is
about to use them: accumulated, reduced, unscaled, clipped. After it: what really changed, and the
optimizer's state with this step's gradients in it. State is matched to parameters by identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.optim import Optimizer

from sonde.capture.drain import Later
from sonde.capture.leaves import leaves
from sonde.capture.rows import Spot
from sonde.capture.torch.hooks import MAX_SLOTS
from sonde.capture.torch.naming import Named
from sonde.capture.torch.session import Capture
from sonde.record import Event, Kind

SKIPPED = "the optimizer left the parameters alone: gradients not finite"


class _Watched:
    """A selected parameter and its spots."""

    __slots__ = ("full", "module_type", "name", "parameter", "path", "spots")

    def __init__(self, named: Named) -> None:
        self.path = named.path
        self.name = named.name
        self.full = named.full
        self.parameter = named.ref
        self.module_type = type(named.module()).__name__
        self.spots: dict[tuple[Kind, str], Spot] = {}


class Optimizers:
    """Hooks on the optimizers of a model. The last optimizer of the list ends the step."""

    def __init__(self, capture: Capture, optimizers: Sequence[Optimizer]) -> None:
        self._capture = capture
        self._optimizers = [ref(o) for o in optimizers]
        self._watched: dict[int, _Watched] = {}
        self._before: dict[int, tuple[Tensor, Tensor]] = {}
        self._stepped: set[int] = set()
        self._off: set[str] = set()
        self._version = -1
        self._handles = [
            handle
            for optimizer in optimizers
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
        self._stepped.add(id(optimizer))
        with_gradients = not _has_closure(optimizer, args, kwargs)
        self._guarded("before the update", lambda: self._see_before(optimizer, with_gradients))

    def _post(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._guarded("after the update", lambda: self._see_after(optimizer, args, kwargs))
        if optimizer is self._optimizers[-1]():
            self._end()

    # To the compiler of an optimizer's step: call these as they are.
    _pre._torchdynamo_disable = True  # type: ignore[attr-defined]
    _post._torchdynamo_disable = True  # type: ignore[attr-defined]

    def about_to_clip(self, parameters: Sequence[Tensor]) -> None:
        """Gradients before clipping, under the slot `weight/before_clip`."""
        suffix = "/before_clip"
        self._guarded("before clipping", lambda: self._see_gradients(parameters, None, suffix))

    def scaler_begins(self, optimizer: object) -> None:
        """`GradScaler.step` was called for the optimizer, and may or may not run it."""
        self._stepped.discard(id(optimizer))

    def scaler_ended(self, optimizer: object) -> None:
        """`GradScaler.step` returned: if it left the optimizer out, the step ends here."""
        known = next((o for r in self._optimizers if (o := r()) is optimizer), None)
        if known is None or id(optimizer) in self._stepped:
            return
        self._guarded("before the update", lambda: self._see_before(known, True))
        if self._capture.recording:
            self._capture.troubles.tell("update_skipped", SKIPPED)
        if optimizer is self._optimizers[-1]():
            self._end()

    def end_by_hand(self) -> None:
        """`watch.step()` without an optimizer: what can be seen of parameters, then the end."""
        self._guarded("parameters", self._see_by_hand)
        self._end()

    def begin_by_hand(self) -> None:
        """The first pass of a step, when no optimizer is known: parameters as they are used."""
        self._guarded("parameters", lambda: self._see_parameters(self._all(), changing=True))

    def _end(self) -> None:
        self._before.clear()
        self._capture.end_step()

    def _guarded(self, part: str, see: Callable[[], None]) -> None:
        """Look, if this step is recorded. Training goes on: what fails is switched off."""
        capture = self._capture
        if not capture.recording or capture.is_closed or part in self._off:
            return
        began = time.perf_counter_ns()
        try:
            with capture.lock:
                self._select()
                see()
        except Exception as error:
            self._off.add(part)
            self._before.clear()
            capture.troubles.failed(part, error)
        finally:
            capture.spent_ns += time.perf_counter_ns() - began

    def _tell_if(self, skipped: Tensor) -> None:
        """A fused optimizer decides on the device whether to leave the parameters alone."""
        kept = skipped.detach().clone()
        event = Event("update_skipped", SKIPPED, step=self._capture.step)
        self._capture.drain.put(Later(lambda: float(kept), event))

    # -- seeing --------------------------------------------------------------------------------

    def _see_before(self, optimizer: Optimizer, with_gradients: bool) -> None:
        own = _parameters_of(optimizer)
        others = self._orphans() if optimizer is self._optimizers[-1]() else []
        self._see_parameters(own, changing=True)
        self._see_parameters(others, changing=False)
        if with_gradients:
            self._see_gradients(own, getattr(optimizer, "grad_scale", None))
            self._see_gradients(others, None)

    def _see_after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        parameters = _parameters_of(optimizer)
        if _has_closure(optimizer, args, kwargs):
            self._see_gradients(parameters, None)
        self._see_updates(parameters)
        self._see_state(optimizer)
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is not None:
            self._tell_if(found_inf)

    def _see_by_hand(self) -> None:
        parameters = self._all()
        if not self._before:
            self._see_parameters(parameters, changing=False)
        self._see_gradients(parameters, None)
        self._see_updates(parameters)

    def _see_parameters(self, parameters: Sequence[Tensor], *, changing: bool) -> None:
        """Parameters as they are now, and a copy of each that is about to change."""
        kinds = self._capture.plan.kinds
        known = [(w, p) for p in parameters if (w := self._known(p)) is not None]
        copies: list[Tensor | None] = [None] * len(known)
        if changing and "update" in kinds:
            copies = [torch.empty_like(p) if p.requires_grad else None for _, p in known]
            self._before.update(
                (id(p), (p, copy))
                for (_, p), copy in zip(known, copies, strict=True)
                if copy is not None
            )
        if "param" in kinds:
            self._add("param", [(w, "", p) for w, p in known], copies=copies)
        else:
            with torch.no_grad():
                for (_, p), copy in zip(known, copies, strict=True):
                    if copy is not None:
                        copy.copy_(p)

    def _see_gradients(
        self, parameters: Sequence[Tensor], scale: Tensor | None, suffix: str = ""
    ) -> None:
        if "param_grad" not in self._capture.plan.kinds:
            return
        found = []
        for p in parameters:
            watched = self._known(p)
            if watched is not None and (grad := p.grad) is not None:
                # A fused optimizer unscales inside its own kernel: do the same on the side.
                found.append((watched, suffix, grad if scale is None else grad / scale))
        self._add("param_grad", found)

    def _see_updates(self, parameters: Sequence[Tensor]) -> None:
        found: list[tuple[_Watched, str, Tensor]] = []
        olds: list[Tensor] = []
        for p in parameters:
            watched = self._known(p)
            kept = self._before.pop(id(p), None)
            if watched is not None and kept is not None and kept[0] is p:
                found.append((watched, "", p))
                olds.append(kept[1])
        self._add("update", found, olds=olds)

    def _see_state(self, optimizer: Optimizer) -> None:
        if "optim" not in self._capture.plan.kinds:
            return
        found = []
        for p in _parameters_of(optimizer):
            watched = self._known(p)
            if watched is None or p not in optimizer.state:
                continue
            for key, value in optimizer.state[p].items():
                if key == "step":
                    continue
                if isinstance(value, Tensor):
                    found.append((watched, f"/{key}", value))
                    continue
                for slot, x in leaves(value, Tensor, MAX_SLOTS):
                    found.append((watched, f"/{key}.{slot}", x))
        self._add("optim", found)

    def _add(
        self,
        kind: Kind,
        found: Sequence[tuple[_Watched, str, Tensor]],
        *,
        copies: Sequence[Tensor | None] = (),
        olds: Sequence[Tensor] = (),
    ) -> None:
        spots = [(_spot(watched, kind, suffix), x) for watched, suffix, x in found]
        self._capture.recorder.add_many(spots, copies=copies, olds=olds)

    # -- parameters ----------------------------------------------------------------------------

    def _select(self) -> None:
        """Know every selected parameter of the model, also those added since the last time."""
        structure, plan = self._capture.structure, self._capture.plan
        structure.refresh()
        if self._version == structure.version:
            return
        self._version = structure.version
        before, self._watched = self._watched, {}
        for named in structure.parameters:
            parameter, module = named.ref(), named.module()
            if parameter is None or not plan.wants_parameter(named.path, named.full, module):
                continue
            known = before.get(id(parameter))
            if known is None or known.parameter() is not parameter or known.full != named.full:
                known = _Watched(named)
            self._watched[id(parameter)] = known

    def _all(self) -> list[Tensor]:
        return [p for named in self._capture.structure.parameters if (p := named.ref()) is not None]

    def _orphans(self) -> list[Tensor]:
        """Parameters that no optimizer trains: frozen, or forgotten."""
        trained = {id(p) for o in self._optimizers if (it := o()) for p in _parameters_of(it)}
        return [p for p in self._all() if id(p) not in trained]

    def _known(self, parameter: Tensor) -> _Watched | None:
        # By identity: tensors compare by value, so no weak dictionary can hold them.
        watched = self._watched.get(id(parameter))
        if watched is not None and watched.parameter() is parameter:
            return watched
        return None


def _spot(watched: _Watched, kind: Kind, suffix: str) -> Spot:
    found = watched.spots.get((kind, suffix))
    if found is None:
        slot = watched.name + suffix
        found = Spot(kind, watched.path, 0, slot, watched.module_type, "train")
        watched.spots[kind, suffix] = found
    return found


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_closure(optimizer: Optimizer, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the optimizer is going to call the model itself."""
    given = [a for a in args if a is not optimizer]  # torch passes `self` along with the others
    return kwargs.get("closure") is not None or (len(given) > 0 and callable(given[0]))
