"""What is seen around an optimizer's step: parameters, gradients, updates and state.

Before the update: parameters as this step's forward used them, and gradients as the optimizer is
about to use them: accumulated, reduced, unscaled, clipped. After it: what really changed, and the
optimizer's state with this step's gradients in it. State is matched to parameters by identity.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final
from weakref import ref

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sonde._torch_internals.frames import never_trace
from sonde._torch_internals.tensors import without_modes
from sonde.capture.drain import DeferredEvent
from sonde.capture.torch.capture import Capture
from sonde.capture.torch.cuda import copies
from sonde.capture.torch.cuda.timer import meter_for
from sonde.capture.torch.optim.frozen import FrozenParameters
from sonde.capture.torch.optim.parameters import (
    OptimizerParameters,
    ParameterBatch,
    ParameterSigns,
    WatchedParameter,
    same_state,
    signs_of,
    spot_of,
    state_of,
)
from sonde.capture.torch.ranks.local import local_gradients, locals_of
from sonde.capture.torch.rows.bundles import TensorBundle
from sonde.record import Event, Kind

_BEFORE: Final = "before the update"
_AFTER: Final = "after the update"
SKIPPED: Final = "the optimizer left the parameters alone: gradients not finite"


class Optimizers:
    """Hooks on the optimizers of a model. The last optimizer of the list ends the step."""

    def __init__(self, capture: Capture, optimizers: Sequence[Optimizer]) -> None:
        self._capture = capture
        self._optimizers = [ref(o) for o in optimizers]
        self._watched: dict[int, WatchedParameter] = {}
        self._parties: dict[int, OptimizerParameters] = {}
        self._stepped: set[int] = set()
        self._clipped: set[int] = set()
        self._is_begun = False
        self._by_hand: set[Kind] = set()
        self._off: set[str] = set()
        self._version = -1
        self._without_orphans: tuple[int, ParameterSigns] | None = None
        self.frozen = FrozenParameters()
        self.meter = None if capture.model is None else meter_for(capture.model)
        self._handles: list[RemovableHandle] = []
        try:
            for optimizer in optimizers:
                self._handles.append(optimizer.register_step_pre_hook(self._pre))
                self._handles.append(optimizer.register_step_post_hook(self._post))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._parties.clear()
        self._watched.clear()

    # -- hooks ---------------------------------------------------------------------------------

    def _pre(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self._stepped.add(id(optimizer))
        self._capture.silence.stepped()
        with_gradients = not _has_closure(optimizer, args, kwargs)
        self._guarded(_BEFORE, lambda: self._see_before(optimizer, with_gradients))

    def _post(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        self._guarded(_AFTER, lambda: self._see_after(optimizer, args, kwargs))
        if optimizer is self._optimizers[-1]():
            self._end()

    # To the compiler of an optimizer's step: call these as they are, and all that they call.
    for _hook in (_pre, _post):
        never_trace(_hook)
    del _hook

    def about_to_clip(self, parameters: Sequence[Tensor]) -> None:
        """Gradients before they are clipped for the first time, under the slot
        `weight/before_clip`."""
        self._guarded("before clipping", lambda: self._see_clipped(parameters))

    def _see_clipped(self, parameters: Sequence[Tensor]) -> None:
        if "param_grad" in self._by_hand:
            return
        fresh = [p for p in parameters if id(p) not in self._clipped]
        self._clipped.update(map(id, fresh))
        self._see_gradients(self._party(-2, fresh), None, "/before_clip")

    def scaler_begins(self, optimizer: object, scale: Tensor | None) -> None:
        """`GradScaler.step` was called for the optimizer, and may or may not run it."""
        self._stepped.discard(id(optimizer))
        if self._capture.observer is not None:
            self._capture.observer.scaled(scale)

    def scaler_ended(self, optimizer: object) -> None:
        """`GradScaler.step` returned: if it left the optimizer out, the step ends here."""
        known = next((o for r in self._optimizers if (o := r()) is optimizer), None)
        if known is None or id(optimizer) in self._stepped:
            return
        self._guarded(_BEFORE, lambda: self._see_before(known, True))
        if self._capture.recording:
            self._capture.troubles.tell("update_skipped", SKIPPED)
        if optimizer is self._optimizers[-1]():
            self._end()

    def end_by_hand(self) -> None:
        """`watch.step()` without an optimizer: what can be seen of parameters, then the end."""
        self._guarded("parameters", self._see_by_hand)
        self._end()

    def see_by_hand(self, kind: Kind, suffix: str) -> None:
        """`watch.record_parameters()`: what there is now, and of that kind only so from now on."""
        self._by_hand.add(kind)
        self._capture.silence.is_by_hand()
        if kind == "param":
            self._guarded("parameters", lambda: self._see_parameters(self._everybody(), keep=False))
        else:
            self._guarded("gradients", lambda: self._see_gradients(self._everybody(), None, suffix))

    def begin_by_hand(self) -> None:
        """The first pass of a step, when no optimizer is known: parameters as they are used."""
        self._is_begun = True
        if "param" not in self._by_hand:
            self._guarded("parameters", lambda: self._see_parameters(self._everybody()))

    def _end(self) -> None:
        self._is_begun = False
        self._clipped.clear()
        self._let_go()
        self._guarded_mark()
        self._capture.steps.end_step()

    def _guarded_mark(self) -> None:
        """Take the time on the device; no more if that fails."""
        capture = self._capture
        if self.meter is None or capture.is_closed or capture.recorder.capturing is not None:
            return
        try:
            if capture.always:  # there is nothing to compare with
                self.meter.skip()
            else:
                self.meter.mark(is_recorded=capture.recording)
        except Exception as error:
            capture.troubles.pass_on(error)
            self.meter = None
            capture.troubles.failed("time on the device", error)

    def _let_go(self) -> None:
        for party in self._parties.values():
            party.kept = ()
            party.let_go()

    def _guarded(self, part: str, see: Callable[[], None]) -> None:
        """Look, if this step is recorded. Training goes on: what fails is switched off."""
        capture = self._capture
        if not capture.recording or capture.is_closed or part in self._off:
            return
        began = time.perf_counter_ns()
        try:
            with capture.lock, without_modes():
                if part != _AFTER:  # the model does not change while the optimizer works
                    self._select()
                see()
        except Exception as error:
            capture.troubles.pass_on(error)
            self._off.add(part)
            self._let_go()
            capture.troubles.failed(part, error)
        finally:
            if part != _BEFORE:  # while the optimizer is at work, they are its own
                for party in self._parties.values():
                    party.let_go()
            capture.spent_ns += time.perf_counter_ns() - began

    def _tell_if(self, skipped: Tensor) -> None:
        """A fused optimizer decides on the device whether to leave the parameters alone."""
        event = Event("update_skipped", SKIPPED, step=self._capture.step)
        self._capture.drain.put(DeferredEvent(copies.number(skipped), event))

    # -- seeing --------------------------------------------------------------------------------

    def _see_before(self, optimizer: Optimizer, with_gradients: bool) -> None:
        own = self._own(optimizer)
        others = self._orphans(own) if optimizer is self._optimizers[-1]() else None
        self._see_parameters(own)
        if others is not None:
            self._see_frozen(others.changing)
            self._see_frozen(others.still)
        if with_gradients:
            self._see_gradients(own, getattr(optimizer, "grad_scale", None))
            if others is not None:
                self._see_gradients(others, None)

    def _see_after(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        own = self._parties.get(id(optimizer))
        if own is None or not own.is_held:
            own = self._own(optimizer)
        if _has_closure(optimizer, args, kwargs):
            self._see_gradients(own, None)
        self._see_updates(own)
        self._see_state(optimizer, own)
        found_inf: Tensor | None = getattr(optimizer, "found_inf", None)
        if found_inf is not None and self._capture.recorder.capturing is None:
            self._tell_if(found_inf)

    def _see_by_hand(self) -> None:
        party = self._everybody()
        if not self._is_begun and "param" not in self._by_hand:
            self._see_parameters(party, keep=False)
        if "param_grad" not in self._by_hand:
            self._see_gradients(party, None)
        self._see_updates(party)

    def _see_parameters(self, party: OptimizerParameters, *, keep: bool = True) -> None:
        """Parameters as they are now, and a copy of each that is about to change."""
        recorder, kinds = self._capture.recorder, self._capture.plan.kinds
        changing = party.changing.values
        if keep and "update" in self._capture.kinds and changing:
            bundle = self._bundle(party.changing, changing, "param")
            party.kept = recorder.keep(bundle, changing, sketches="param" in kinds)
        elif "param" in kinds:
            self._add(party.changing, "param")
        if "param" in self._capture.kinds:
            self._observe(party.changing, changing, "param")
        self._see_frozen(party.still)

    def _see_frozen(self, members: ParameterBatch) -> None:
        """Parameters that nothing trains, if they have changed since they were last read."""
        tensors, capture = members.values, self._capture
        if not tensors or "param" not in capture.kinds:
            return
        self._observe(members, tensors, "param")
        if "param" not in capture.plan.kinds:
            return
        bundle = self._bundle(members, tensors, "param")
        if capture.recorder.capturing is not None:
            capture.recorder.add_together(bundle, tensors)
            return
        spots = bundle.spots
        due = self.frozen.to_read(spots, tensors, capture.step, capture.steps.dropped)
        if any(x is not None for x in due):
            capture.recorder.add_together(bundle, due)
            self.frozen.read(spots)

    def _see_gradients(
        self, party: OptimizerParameters, scale: Tensor | None, suffix: str = ""
    ) -> None:
        capture = self._capture
        if not suffix:
            self._clipped.clear()
        if "param_grad" not in capture.kinds:
            return
        for members in (party.changing, party.still):
            tensors = members.values
            grads = local_gradients(members.tensors, partial(self._skip, members, suffix))
            if scale is not None:
                # A fused optimizer unscales inside its own kernel: do the same on the side.
                grads = [None if g is None else g / scale for g in grads]
            if not any(g is not None for g in grads):
                continue
            if "param_grad" in capture.plan.kinds:
                bundle = self._bundle(members, tensors, "param_grad", suffix)
                capture.recorder.add_together(bundle, grads)
            if capture.observer is not None and capture.observer.pipeline is not None:
                where = [(w.path, w.name) for w in members.watched]
                capture.observer.gradients(where, members.tensors, grads, suffix)
            self._observe(members, grads, "param_grad", suffix)

    def _skip(self, members: ParameterBatch, suffix: str, k: int, reason: str) -> None:
        spot = spot_of(members.watched[k], "param_grad", suffix)
        self._capture.troubles.skip(spot.site.name, reason)

    def _see_updates(self, party: OptimizerParameters) -> None:
        kept, party.kept = party.kept, ()
        if not kept:
            return
        party.changing.look()
        tensors = party.changing.values
        if "update" in self._capture.plan.kinds:
            bundle = self._bundle(party.changing, tensors, "update")
            self._capture.recorder.add_changes(bundle, tensors, kept)
        observer = self._capture.observer
        if observer is not None and "update" in observer.kinds:
            bundle = self._bundle(party.changing, tensors, "param")
            for k, old in bundle.copies(tensors, kept):
                spot = spot_of(party.changing.watched[k], "update", "")
                observer.updated(spot, tensors[k], old)

    def _see_state(self, optimizer: Optimizer, party: OptimizerParameters) -> None:
        if "optim" not in self._capture.kinds:
            return
        members = party.changing
        names, tensors = party.state_names, same_state(optimizer, party)
        if tensors is None:
            names, tensors = state_of(optimizer, party)
        if not tensors:
            return
        tensors = locals_of(tensors)
        observer = self._capture.observer
        if observer is not None and "optim" in observer.kinds:
            for (k, name), x in zip(names, tensors, strict=True):
                observer.see(spot_of(members.watched[k], "optim", f"/{name}"), x)
        if "optim" not in self._capture.plan.kinds:
            return
        if self._capture.recorder.capturing is not None:
            spots = [spot_of(members.watched[k], "optim", f"/{name}") for k, name in names]
            self._capture.recorder.add_together(
                self._capture.recorder.loose(spots, tensors), tensors
            )
            return
        if names != party.state_names:
            spots = [spot_of(members.watched[k], "optim", f"/{name}") for k, name in names]
            party.state_names = names
            party.state = self._capture.recorder.prepare(spots, tensors)
        assert party.state is not None
        self._capture.recorder.add_together(party.state, tensors)

    def _add(self, members: ParameterBatch, kind: Kind) -> None:
        if tensors := members.values:
            bundle = self._bundle(members, tensors, kind)
            self._capture.recorder.add_together(bundle, tensors)

    def _observe(
        self,
        members: ParameterBatch,
        tensors: Sequence[Tensor | None],
        kind: Kind,
        suffix: str = "",
    ) -> None:
        observer = self._capture.observer
        if observer is not None and kind in observer.kinds:
            for watched, x in zip(members.watched, tensors, strict=True):
                if x is not None:
                    observer.see(spot_of(watched, kind, suffix), x)

    def _bundle(
        self, members: ParameterBatch, tensors: list[Tensor], kind: Kind, suffix: str = ""
    ) -> TensorBundle:
        if self._capture.recorder.capturing is not None:
            return self._capture.recorder.loose(
                [spot_of(w, kind, suffix) for w in members.watched], tensors
            )
        found = members.bundles.get((kind, suffix))
        if found is None or not found.fits(tensors):
            spots = [spot_of(w, kind, suffix) for w in members.watched]
            found = self._capture.recorder.prepare(spots, tensors)
            members.bundles[kind, suffix] = found
        return found

    # -- parameters ----------------------------------------------------------------------------

    def _select(self) -> None:
        """Know every selected parameter of the model, also those added since the last time."""
        structure, plan = self._capture.structure, self._capture.plan
        if (
            structure.is_stale
            or structure.swaps
            or self._capture.scanned_step != self._capture.step
        ):
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
                known = WatchedParameter(named)
            self._watched[id(parameter)] = known

    def _own(self, optimizer: Optimizer) -> OptimizerParameters:
        """The watched parameters of an optimizer."""
        return self._party(id(optimizer), _parameters_of(optimizer))

    def _everybody(self) -> OptimizerParameters:
        """All watched parameters."""
        return self._party(0, self._all())

    def _orphans(self, last: OptimizerParameters) -> OptimizerParameters | None:
        """Parameters that no optimizer trains: frozen, or forgotten. None if there are none. Given
        is what the last optimizer trains, which may be all that is trained."""
        is_all = len(self._optimizers) == 1
        if is_all and (self._version, last.signs) == self._without_orphans:
            return None
        optimizers = [it for o in self._optimizers if (it := o()) is not None]
        trained = [p for it in optimizers for p in _parameters_of(it)]
        now = (self._version, last.signs if is_all else signs_of(trained))
        if now == self._without_orphans:
            return None
        ids = set(map(id, trained))
        found = [p for p in self._all() if id(p) not in ids]
        if not found:
            self._without_orphans = now
            return None
        return self._party(-1, found)

    def _party(self, key: int, parameters: list[Tensor]) -> OptimizerParameters:
        found = self._parties.get(key)
        now = signs_of(parameters)
        if found is None or found.signs != now or found.version != self._version:
            known = [(w, p) for p in parameters if (w := self._known(p)) is not None]
            found = self._parties[key] = OptimizerParameters(self._version, now, known)
        found.changing.hold()
        found.still.hold()
        return found

    def _all(self) -> list[Tensor]:
        return [p for named in self._capture.structure.parameters if (p := named.ref()) is not None]

    def _known(self, parameter: Tensor) -> WatchedParameter | None:
        # By identity: tensors compare by value, so no weak dictionary can hold them.
        watched = self._watched.get(id(parameter))
        if watched is not None and watched.parameter() is parameter:
            return watched
        return None


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _has_closure(optimizer: Optimizer, args: Sequence[object], kwargs: dict[str, object]) -> bool:
    """Whether the optimizer is going to call the model itself."""
    given = [a for a in args if a is not optimizer]  # torch passes `self` along with the others
    return kwargs.get("closure") is not None or (len(given) > 0 and callable(given[0]))
