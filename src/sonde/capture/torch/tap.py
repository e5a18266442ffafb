"""A tap: what is known of one watched module, and to whom its hooks report."""

from __future__ import annotations

from itertools import count
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary, ref

from torch import Tensor, nn

from sonde._torch_internals.modules import children
from sonde.capture.native import Bunch, Lane, Native, Point
from sonde.capture.plan import Plan
from sonde.capture.torch.mistakes import Mistakes
from sonde.capture.troubles import Troubles
from sonde.capture.window import NATIVE_PHASE, Spot
from sonde.record import Kind

_SIGNS: Final = map(str, count())
SIGNED: Final[WeakValueDictionary[str, Tap]] = WeakValueDictionary()
"""Taps by their sign."""


def new_sign() -> str:
    """A name that nothing else has: what a compiler takes for a constant, as it would no object."""
    return next(_SIGNS)


class OutputObserver(Protocol):
    """An observer of what modules return, besides the capture."""

    def saw(self, tap: Tap, call: int, output: Tensor) -> None:
        """The native path has recorded what a module returned."""


class TapOwner(Protocol):
    """The capture that hooks report to."""

    sign: str
    asleep: bool
    always: bool
    plan: Plan
    kinds: frozenset[Kind]
    troubles: Troubles
    native: Native | None
    silence: Mistakes
    onlooker: OutputObserver | None

    @property
    def root(self) -> nn.Module | None:
        """The model without wrappers."""
        ...

    def enter(
        self, tap: Tap, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """A module was called, in eager mode, while something may have to be recorded."""

    def leave(self, tap: Tap, module: nn.Module, output: object) -> None:
        """A module returned, or raised an exception: then the output is None."""

    def gradient(self, spots: list[Spot], grad: Tensor, returned: bool) -> None:
        """The gradient of a tensor that was seen at these spots is known; whether compiled code
        had returned it."""

    def traced(self) -> None:
        """A compiler looks at a hook: from now on there is code that counts on all of them."""

    def hears(self) -> bool:
        """Compiled code runs: whether its taps are heard now. A pass begins, if it is the first."""
        ...

    def compiled(self, key: TapKey, x: Tensor) -> None:
        """A tap in compiled code ran."""


class TapPlace(NamedTuple):
    """What a tap in compiled code sees of a module."""

    kind: Kind
    call: int
    slot: str


class TapKey:
    """A tap in compiled code: the places that its tensor is seen at, of one owner's.

    All weak: code may outlive the watch. `returned` says that a hook outside the code will see
    the tensor again, as it is; or has seen it, if it is a gradient. `point` is its native path;
    `bunch` that of several taps of which it is the first, with their keys.
    """

    __slots__ = ("__weakref__", "_places", "bunch", "is_gradient", "owner", "point", "returned")

    def __init__(self, tap: Tap, place: TapPlace) -> None:
        self.owner = ref(tap.owner)
        self.is_gradient = place.kind.endswith("_grad")
        self.returned = False
        self.point: Point | None = None
        self.bunch: tuple[list[int], Bunch | None] | None = None
        self._places = [(ref(tap), place)]

    def add(self, tap: Tap, place: TapPlace) -> None:
        """See the tensor at that place, too."""
        self.point = None
        self._places.append((ref(tap), place))
        tap.fixed_keys.append(self)

    def places(self) -> list[tuple[Tap, TapPlace]]:
        return [(tap, place) for known, place in self._places if (tap := known()) is not None]


class Tap:
    """One watched module: its path, what is wanted of it, its spots.

    `enters` is false for a module of torch's own without children, of which only outputs are
    wanted: one hook is enough for it. `sign` stands for the tap in compiled code, the tensor `key`
    in code that serves several modules, where it has `keys` by place. `fixed_keys` are those in
    code that serves no other module.
    """

    __slots__ = (
        *("__weakref__", "enters", "fixed_keys", "input", "input_grad", "is_root", "key", "keys"),
        *("lane", "module", "output", "output_grad", "outputs", "owner", "path", "selected"),
        *("sign", "spots"),
    )

    def __init__(
        self,
        owner: TapOwner,
        path: str,
        module: nn.Module,
        kinds: frozenset[Kind],
        *,
        selected: bool,
        is_root: bool,
    ) -> None:
        self.sign = new_sign()
        SIGNED[self.sign] = self
        self.owner = owner
        self.path = path
        self.module = ref(module)
        self.is_root = is_root
        self.selected = selected
        self.input = "input" in kinds
        self.input_grad = "input_grad" in kinds
        self.output = "output" in kinds
        self.output_grad = "output_grad" in kinds
        self.enters = is_root or self.input or self.input_grad or not is_plain(module)
        self.spots: dict[tuple[object, ...], Spot] = {}
        self.outputs: dict[tuple[int, str, str], tuple[Spot, Spot]] = {}
        self.lane: Lane | None = None
        self.key: Tensor | None = None
        self.keys: dict[int, TapKey] = {}
        self.fixed_keys: list[TapKey] = []

    @property
    def type(self) -> str:
        """Class of the module as it is now: lazy modules change theirs."""
        return type(self.module()).__name__

    def want(self, kinds: frozenset[Kind], *, follows: bool) -> bool:
        """Be wanted for these kinds as well, and to know its calls; whether that is news."""
        before = (self.input, self.input_grad, self.output, self.output_grad, self.enters)
        self.input |= "input" in kinds
        self.input_grad |= "input_grad" in kinds
        self.output |= "output" in kinds
        self.output_grad |= "output_grad" in kinds
        self.enters |= follows or self.input or self.input_grad
        self.lane = None
        return before != (self.input, self.input_grad, self.output, self.output_grad, self.enters)

    def pave(self, call: int) -> None:
        """Have the native path for this call of the module, from now on: it was seen as it usually
        is, a call of a training pass that returned one tensor."""
        native = self.owner.native
        if (
            native is None
            or not native.live
            or self.is_root
            or (self.lane is not None and self.lane.has(call))
        ):
            return
        value, gradient = self.outputs[call, "0", NATIVE_PHASE]
        if self.output and value.place is None:
            return
        if self.lane is None:
            looks = self.input or self.input_grad
            self.lane = Lane(native, self.owner, self, self.module, self.enters, looks)
        self.lane.put(
            call, value.place if self.output else None, gradient if self.output_grad else None
        )

    def forget_code(self) -> None:
        """Hear nothing of compiled code any more."""
        self.keys.clear()
        self.fixed_keys.clear()

    def forget(self) -> None:
        """Let go of all that was seen of this module. Spots, rows and native paths hold each other,
        and would stay until the garbage is collected."""
        self.forget_code()
        self.spots.clear()
        self.outputs.clear()
        self.lane = None

    def switch_off(self) -> None:
        """Record nothing of this module any more."""
        self.selected = False
        self.lane = None
        self.input = self.input_grad = self.output = self.output_grad = False


def is_plain(module: nn.Module) -> bool:
    """Whether it is a module of torch's own without children: no code of a user runs in it."""
    return (
        type(module).__module__.startswith("torch.nn.modules")
        and not children(module)
        and "forward" not in vars(module)
    )
