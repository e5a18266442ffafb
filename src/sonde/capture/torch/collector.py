"""The collector: from a tensor that is met in a pass to its spot, and to a hook on its gradient.

A tensor that was met before in the pass, and has not changed since, is not read again. Not
thread-safe: the capture serialises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from sonde.capture.native import MOST_PLACES, GradHook, Point, Row, Seen
from sonde.capture.torch.hooks import MAX_SLOTS, hook_gradient
from sonde.capture.torch.metrics.observer import Observer
from sonde.capture.torch.passes import HeldTensor, LeafHooks, Pass
from sonde.capture.torch.rows.recorder import Recorder
from sonde.capture.torch.tap import Tap, TapKey, TapOwner
from sonde.capture.troubles import Troubles
from sonde.capture.window import NATIVE_PHASE, Spot
from sonde.record import Kind


class Collector:
    """Gives tensors of module calls to the recorder."""

    def __init__(self, owner: TapOwner, recorder: Recorder, troubles: Troubles) -> None:
        self._owner = owner
        self._recorder = recorder
        self._troubles = troubles
        self._leaves = LeafHooks()
        self._tangent = HeldTensor()
        self._keyed: dict[tuple[TapKey, str], list[Spot]] = {}
        self._heads: WeakKeyDictionary[Tap, dict[tuple[Any, ...], list[Spot]]] = WeakKeyDictionary()
        self.observer: Observer | None = None

    def clear(self) -> None:
        """The step is over: no gradient of a leaf belongs to it any more."""
        self._leaves.clear()
        self._tangent.clear()

    def close(self) -> None:
        """Nothing is met any more."""
        self.clear()
        self._keyed.clear()
        self._heads.clear()

    def value(self, tap: Tap, at: Pass, kind: Kind, call: int, slot: str, x: Tensor) -> None:
        """A tensor as it is now."""
        seen = at.look(x)
        spot = _spot(tap, kind, call, slot, at.phase)
        if kind in self._owner.plan.kinds:
            seen.row = self._recorder.add(spot, x, seen.row)
        if self.observer is not None and kind in self.observer.kinds:
            self.observer.see(spot, x)

    def output(self, tap: Tap, at: Pass, call: int, slot: str, x: Tensor, with_value: bool) -> None:
        """What a module returned: its value, and its gradient when that is known."""
        spots = tap.outputs.get((call, slot, at.phase))
        if spots is None:
            spots = tap.outputs[call, slot, at.phase] = (
                _spot(tap, "output", call, slot, at.phase),
                _spot(tap, "output_grad", call, slot, at.phase),
            )
        seen = at.look(x)
        is_returned = False
        if at.returned.x is not None and seen.row is None:
            seen.row = at.returned.row_of(x)
            is_returned = seen.row is not None
        if with_value:
            if self.observer is None:
                seen.row = self._recorder.add(spots[0], x, seen.row)
            else:
                self.value(tap, at, "output", call, slot, x)
        if tap.output_grad and x.requires_grad and not spots[1].off:
            if seen.grad is None and x.grad_fn is not None:
                seen.grad = GradHook(self._owner, spots[1], is_returned)
                hook_gradient(x, seen.grad)
            else:
                self._hook(seen, x, spots[1])

    def inputs(self, tap: Tap, at: Pass, call: int, found: list[tuple[str, Tensor]]) -> None:
        """What a module was given: values, and gradients when those are known."""
        for slot, x in self.limited(tap, found):
            if tap.input:
                self.value(tap, at, "input", call, slot, x)
            if tap.input_grad:
                self.watch_gradient(tap, at, "input_grad", call, slot, x)

    def compiled(self, key: TapKey, at: Pass, x: Tensor) -> None:
        """A tensor in compiled code, at all the places where it is seen."""
        spots = self._keyed.get((key, at.phase))
        if spots is None:
            spots = self._keyed[key, at.phase] = [
                _spot(tap, *place, at.phase)
                for tap, place in key.places()
                if not self.too_many(tap, place.call)
            ]
        row = self._tangent.row_of(x) if key.returned and key.is_gradient else None
        row = self._add(spots, x, row)
        if key.point is None and not key.returned and at.phase == NATIVE_PHASE:
            self._pave(key, spots)
        if key.returned and at.stack and not key.is_gradient:  # whose end is going to be seen
            at.returned.put(x, row)
            if self._owner.native is not None:
                self._owner.native.waiting = True

    def _pave(self, key: TapKey, spots: Sequence[Spot]) -> None:
        """Have the native path for a tap in compiled code from now on, if it can be."""
        native = self._owner.native
        places = tuple(spot.place for spot in spots if spot.place is not None)
        if native is not None and 0 < len(places) <= MOST_PLACES and len(places) == len(spots):
            key.point = Point(native, places, key.is_gradient)

    def heads(
        self,
        tap: Tap,
        at: Pass,
        call: int,
        slots: tuple[tuple[str, int], ...],
        tensors: Sequence[Tensor],
    ) -> None:
        """Heads of tensors as they are now, as attached ones: per tensor a name and how many."""
        known = self._heads.setdefault(tap, {})
        spots = known.get((call, at.phase, slots))
        if spots is None:
            spots = known[call, at.phase, slots] = [
                _spot(tap, "attach", call, f"head_{h}.{name}", at.phase)
                for name, count in slots
                for h in range(count)
            ]
        if spots and "attach" in self._owner.plan.kinds:
            self._recorder.add_several(spots, tensors)
        observer = self.observer
        if observer is not None and any(observer.wants(spot) for spot in spots):
            for spot, x in zip(spots, tensors, strict=True):
                observer.see(spot, x)

    def watch_gradient(
        self, tap: Tap, at: Pass, kind: Kind, call: int, slot: str, x: Tensor
    ) -> None:
        """A tensor whose gradient is wanted, if it is going to have one."""
        if not x.requires_grad:
            return
        spot = _spot(tap, kind, call, slot, at.phase)
        if not spot.off:
            self._hook(at.look(x), x, spot)

    def _add(self, spots: Sequence[Spot], x: Tensor, row: Row | None) -> Row | None:
        """A tensor at several spots, to be read unless a row holds it; the row that does then."""
        for spot in spots:
            if self.observer is None or spot.kind in self._owner.plan.kinds:
                row = self._recorder.add(spot, x, row)
            if self.observer is not None and spot.kind in self.observer.kinds:
                self.observer.see(spot, x)
        return row

    def _hook(self, seen: Seen, x: Tensor, spot: Spot) -> None:
        if seen.grad is not None:
            seen.grad.spots.append(spot)
        elif x.grad_fn is None:
            self._leaves.watch(x, spot, self._owner)
        else:
            seen.grad = GradHook(self._owner, spot)
            hook_gradient(x, seen.grad)

    def gradient(self, spots: list[Spot], grad: Tensor, returned: bool) -> None:
        """The gradient of a tensor that was met at these spots."""
        row = self._add(spots, grad, None)
        if returned:
            self._tangent.put(grad, row)

    def limited(self, tap: Tap, found: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """As many tensors of a call as are told apart."""
        if len(found) > MAX_SLOTS:
            self._troubles.skip(tap.path or ".", f"more than {MAX_SLOTS} tensors in one call")
            del found[MAX_SLOTS:]
        return found

    def too_many(self, tap: Tap, call: int) -> bool:
        """Whether the module was called more often in this pass than is recorded."""
        limit = self._owner.plan.max_calls
        if call < limit:
            return False
        self._troubles.skip(tap.path or ".", f"more than max_calls={limit} calls per pass")
        return True


def _spot(tap: Tap, kind: Kind, call: int, slot: str, phase: str) -> Spot:
    key = (kind, call, slot, phase)
    found = tap.spots.get(key)
    if found is None:
        found = tap.spots[key] = Spot(kind, tap.path, call, slot, tap.type, phase)
    return found
