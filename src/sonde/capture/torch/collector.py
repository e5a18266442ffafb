"""The collector: from a tensor that is met in a pass to its spot, and to a hook on its gradient.

A `Pass` is one outermost call of a watched model (or of a part of it) in one thread. While it
lasts, it holds which modules are being called, how often each was called, and which tensors were
met: a tensor that is met again unchanged is not read again.

What is known of a change is its version, which every operation of torch raises. A write that torch
does not see (through `.data`, or by a foreign kernel into an existing tensor) is not seen here.

Not thread-safe: the capture serialises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sonde._torch_internals.tensors import version_of
from sonde.capture.native import MOST_PLACES, GradHook, Point, Row, Seen
from sonde.capture.torch.hooks import MAX_SLOTS, hook_gradient
from sonde.capture.torch.ranks.placement import RankLayout, TensorPart
from sonde.capture.torch.rows.recorder import Recorder
from sonde.capture.torch.tap import Tap, TapKey, TapOwner
from sonde.capture.troubles import TOO_MANY_CALLS, Troubles
from sonde.capture.window import NATIVE_PHASE, Spot
from sonde.record import Kind

if TYPE_CHECKING:
    from sonde.capture.torch.metrics.observer import Observer


class Collector:
    """Gives tensors of module calls to the recorder."""

    def __init__(self, owner: TapOwner, recorder: Recorder, troubles: Troubles) -> None:
        self._owner = owner
        self._recorder = recorder
        self._troubles = troubles
        self._leaves = LeafHooks()
        self._tangent = HeldTensor()
        self._keyed: dict[tuple[TapKey, str], list[Spot]] = {}
        self._heads: WeakKeyDictionary[Tap, dict[tuple[object, ...], list[Spot]]] = (
            WeakKeyDictionary()
        )
        self._parts: dict[tuple[str, str, int, str], TensorPart] = {}
        self.layout: RankLayout | None = None
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
        self._parts.clear()

    def value(self, tap: Tap, at: Pass, kind: Kind, call: int, slot: str, x: Tensor) -> None:
        """A tensor as it is now."""
        seen = at.look(x)
        spot = _spot(tap, kind, call, slot, at.phase)
        if self.layout is not None and spot.part is None:
            self._place(spot, x)
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
        if self.layout is not None:
            for spot in spots:
                if spot.part is None:
                    self._place(spot, x)
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

    def batch(self, tap: Tap, at: Pass, call: int, found: list[tuple[str, Tensor]]) -> None:
        """What the model was given, so that readers see whether two ranks train on the same."""
        for slot, x in self.limited(tap, found):
            spot = _spot(tap, "input", call, slot, at.phase)
            if self.layout is not None and spot.part is None:
                self._place(spot, x)
            seen = at.look(x)
            seen.row = self._recorder.add(spot, x, seen.row)

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
        if self.layout is not None:
            for spot, x in zip(spots, tensors, strict=True):
                if spot.part is None:
                    self._place(spot, x)
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
        if self.layout is not None and spot.part is None:
            self._place(spot, x)
        if not spot.off:
            self._hook(at.look(x), x, spot)

    def _place(self, spot: Spot, x: Tensor) -> None:
        """Note which part of a tensor the spot has, from what its forward shows. What that does not
        show (gradients off) is as it was in another phase."""
        assert self.layout is not None
        key = (spot.path, spot.kind.removesuffix("_grad"), spot.call, spot.slot)
        found = self.layout.of_activation(x)
        if found is not None:
            self._parts[key] = found
        spot.part = found or self._parts.get(key)

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

    def limited(self, tap: Tap, found: list[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
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
        self._troubles.skip(tap.path or ".", TOO_MANY_CALLS.format(limit))
        return True


class Pass:
    """The pass that a thread is in; with an empty stack, the last one it was in."""

    __slots__ = ("calls", "phase", "redone", "returned", "seen", "stack")

    def __init__(self) -> None:
        self.phase = "train"
        self.stack: list[tuple[Tap, int]] = []
        self.redone: list[tuple[Tap, int]] = []
        self.calls: dict[Tap, int] = {}
        self.seen: dict[int, Seen] = {}
        self.returned = HeldTensor()

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.returned.clear()
        self.stack.clear()
        self.calls.clear()
        self.seen.clear()

    @property
    def is_outside(self) -> bool:
        """Whether what is being called belongs to no pass, see `Capture._enter`."""
        return bool(self.stack) and self.stack[-1][1] < 0

    def next_call(self, tap: Tap) -> int:
        """The number of this call of the module within the pass."""
        call = self.calls.get(tap, 0)
        self.calls[tap] = call + 1
        return call

    def look(self, x: Tensor) -> Seen:
        """What is known of this very tensor, unchanged since; else a fresh entry."""
        if x.is_inference():
            return Seen(x, 0)  # it has no version counter
        version = version_of(x)
        seen = self.seen.get(id(x))
        if seen is None or seen.version != version or seen.ref() is not x:
            seen = self.seen[id(x)] = Seen(x, version)
        return seen


def pop(stack: list[tuple[Tap, int]], tap: Tap) -> int:
    """The call of the module that ends; -1 if it never began. Calls above it never returned."""
    if stack and stack[-1][0] is tap:
        return stack.pop()[1]
    if not any(t is tap for t, _ in stack):
        return -1
    while stack:
        top, call = stack.pop()
        if top is tap:
            return call
    return -1


class HeldTensor:
    """A tensor that one piece of code has seen and another one is going to see, until that asks."""

    __slots__ = ("_row", "_version", "_window", "x")

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self._version = 0
        self._row: Row | None = None
        self._window = -1

    def put(self, x: Tensor, row: Row | None) -> None:
        """The row that holds it as it is now."""
        if row is not None and not x.is_inference():  # which has no version counter
            self.x, self._version, self._row, self._window = x, version_of(x), row, row.window

    def row_of(self, x: Tensor) -> Row | None:
        """The row that holds this very tensor, unchanged since, if that is what was put here. Code
        may hand it out as another object for the same memory, which has not been written to."""
        held = self.x
        if held is None or x.is_inference() or self._version != version_of(x):
            return None
        if held is not x and not _is_same_memory(held, x):
            return None
        row = self._row
        self.clear()
        return row if row is not None and row.window == self._window else None

    def clear(self) -> None:
        self.x = self._row = None


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    if type(a) is not Tensor or type(b) is not Tensor:
        return False
    return (
        a.device == b.device
        and a.dtype is b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.data_ptr() == b.data_ptr()
    )


class LeafHooks:
    """Hooks on the gradients of leaves, which outlive a pass: one per leaf, until the step ends."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[int, tuple[ref[Tensor], GradHook, RemovableHandle]] = {}

    def watch(self, x: Tensor, spot: Spot, owner: TapOwner) -> None:
        held = self._held.get(id(x))
        if held is None or held[0]() is not x:
            hook = GradHook(owner, spot)
            held = self._held[id(x)] = (ref(x), hook, x.register_hook(hook))
        if spot not in held[1].spots:
            held[1].spots.append(spot)

    def clear(self) -> None:
        for _, _, handle in self._held.values():
            handle.remove()
        self._held.clear()


def _spot(tap: Tap, kind: Kind, call: int, slot: str, phase: str) -> Spot:
    key = (kind, call, slot, phase)
    found = tap.spots.get(key)
    if found is None:
        found = tap.spots[key] = Spot(kind, tap.path, call, slot, tap.type, phase)
    return found
