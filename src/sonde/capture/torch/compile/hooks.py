"""Taps inside compiled code: how hooks put them there.

Under `torch.compile` our hooks are traced, not run: whatever they do in Python happens once, at
compile time. So there they do nothing but place an operator into the graph, in forward and, through
a traced tensor hook, in backward. At run time the operator (`operators.py`) finds its spot and does
what an eager hook does. It returns nothing and is marked as having an effect, so it is neither
removed nor moved across writes to its argument; no state of ours is read while tracing that could
change later, so a schedule that fires causes no recompilation.

Calls of a module are numbered within the code that is compiled together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from types import CodeType
from typing import Any, Final
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from sonde._signals import IGNORING, pass_on
from sonde._torch_internals import frames, generating, tracing
from sonde._torch_internals.frames import is_exporting, skip, while_tracing
from sonde._torch_internals.modules import forward_hook, forward_hooks, hooks_of
from sonde._torch_internals.registry import missing
from sonde._torch_internals.tensors import version_of
from sonde._torch_internals.tracing import TracedOutput, set_traced, traced
from sonde.capture.torch.compile import graph_passes, operators, recompile_limit
from sonde.capture.torch.compile.dual import Compiler, both
from sonde.capture.torch.compile.operators import TAP, TAP_OF, add_key, add_place, key_of
from sonde.capture.torch.tap import SIGNED, Tap, TapOwner, TapPlace
from sonde.record import Kind

TRACES_HOOKS = frames.TRACES_HOOKS
"""See there; tests change it here."""


class _Trace:
    """What is being traced: the modules whose calls have begun, how often each was called, who owns
    them."""

    def __init__(self) -> None:
        self.context: ref[object] | None = None
        self.owners: WeakSet[TapOwner] = WeakSet()
        self.stack: list[tuple[Tap, int, object]] = []
        self.calls: dict[Tap, int] = {}
        self.fixed: dict[Tap, bool] = {}
        self.keys: dict[tuple[str, bool, int], tuple[ref[Tensor], int, int]] = {}
        self.last: Callable[[], Tensor | None] = lambda: None
        self.effects: object = None

    def now(self) -> _Trace:
        """This, emptied if a new trace has begun: a retry, a recompilation, another function."""
        context = tracing.trace_context()
        if self.context is None or self.context() is not context:
            self.context = ref(context) if context is not None else None
            self.owners = WeakSet()
            self.stack.clear()
            self.calls.clear()
            self.fixed.clear()
            self.keys.clear()
        return self

    def begin(self, tap: Tap, known: object) -> bool:
        """A call begins: whether the module is the same whenever this code runs. `known` is the
        compiler's own record of the tap."""
        self.meet(tap.owner)
        call = self.calls.get(tap, 0)
        self.calls[tap] = call + 1
        self.stack.append((tap, call, known))
        if tap not in self.fixed:
            self.fixed[tap] = tracing.is_reached_from(tap.owner.root, known)
        return self.fixed[tap]

    def end(self, tap: Tap) -> None:
        while self.stack and self.stack.pop()[0] is not tap:
            pass

    def meet(self, owner: TapOwner) -> None:
        """The code has taps of this owner: compile it a second time without taps, if some steps are
        not recorded."""
        owner.traced()
        if not self.owners:
            with IGNORING:  # then taps are all that there is
                output = TracedOutput()
                twice = not owner.always and not output.is_packaged
                output.wrap_compiler(partial(self._wrapped, twice))
        self.owners.add(owner)

    def _wrapped(self, twice: bool, compiler: Compiler) -> Compiler:
        """The compiler, but first what was traced is looked at as a whole."""
        if twice:
            compiler = both(compiler, operators.ALL, partial(_is_heard, self.owners))

        @wraps(compiler)
        def finish(graph: GraphModule, inputs: Sequence[object]) -> Callable[..., object]:
            with IGNORING:  # then they are read twice
                seen = [(known(), version, key) for known, version, key in self.keys.values()]
                unchanged = [
                    k for x, version, k in seen if x is not None and version_of(x) == version
                ]
                for found in map(key_of, graph_passes.returned(graph, TAP, unchanged)):
                    if found is not None:
                        found.returned = True
            with _rewriting(compiler):
                return compiler(graph, inputs)

        return finish

    def place(self, tap: Tap, kind: Kind, slot: str) -> TapPlace:
        call = next((c for t, c, _ in reversed(self.stack) if t is tap), 0)
        return TapPlace(kind, call, slot)

    def key(self, tap: Tap, place: TapPlace, x: Tensor | None) -> int:
        """A key for a tap there; -1 if one that sees this very tensor can report for it too."""
        if x is None:
            return add_key(tap, place)
        of = (tap.owner.sign, place.kind.endswith("_grad"), id(x))
        known = self.keys.get(of)
        if known is not None and known[0]() is x and known[1] == version_of(x):
            first = key_of(known[2])
            if first is not None:
                first.add(tap, place)
                return -1
        made = add_key(tap, place)
        self.keys[of] = (ref(x), version_of(x), made)
        self.last = ref(x)
        return made

    def renew(self, x: Tensor | None) -> None:
        """The tensor that was last given a key is now this one: some compilers put another in its
        place when it gets a hook."""
        last = self.last()
        if last is not None and x is not None and last is not x:
            for (sign, is_gradient, number), (_, _, key) in list(self.keys.items()):
                if number == id(last):
                    self.keys[sign, is_gradient, id(x)] = (ref(x), version_of(x), key)


def _rewriting(compiler: object) -> AbstractContextManager[object]:
    if generating.is_generator(compiler):
        with IGNORING:  # then they are unchanged
            return generating.passes(_rewrite_whole, _rewrite_forward, "sonde-3")
    return nullcontext()


def _rewrite_whole(graph: Graph) -> None:
    graph_passes.gather(graph, TAP, operators.TAPS, operators.who, grads=True)


def _rewrite_forward(graph: Graph) -> None:
    graph_passes.gather(graph, TAP, operators.TAPS, operators.who, grads=False)


_MINDING: Final[WeakSet[TapOwner]] = WeakSet()
_BEFORE: Final[list[bool]] = []
"""What the compiler did about modules without hooks before the first watch."""
_SKIPPED: Final[set[CodeType]] = set()
"""Code of torch's own modules that is not compiled by itself while something is watched."""
_TRACE: Final = _Trace()  # torch compiles one frame at a time
_LOCK: Final = threading.Lock()


# -- while running -----------------------------------------------------------------------------


def _is_heard(owners: WeakSet[TapOwner]) -> bool:
    """Whether compiled code of these owners needs its taps now. Each is told that it runs."""
    heard = [owner.hears() for owner in owners]
    return any(heard)


# -- before and around -------------------------------------------------------------------------


def stay_out_of_inbuilt(modules: Iterable[nn.Module]) -> None:
    """Do not compile the `forward` of torch's own modules by itself because of our hooks.

    After a graph break the compiler skips those frames, unless the module has a hook (torch 2.12).
    A class stays as it is if a module of it has a hook of someone else.
    """
    inbuilt = [m for m in modules if type(m).__module__.startswith(("torch.nn.", "torch.ao."))]
    theirs = {type(m) for m in inbuilt if not all(hasattr(h, "tap") for h in hooks_of(m))}
    for kind in {type(m) for m in inbuilt} - theirs:
        code = getattr(kind.forward, "__code__", None)
        if code is not None:
            with _LOCK:
                _SKIPPED.add(code)
            skip(code)  # even if it was before: `torch._dynamo.reset()` forgets it


def mind_hooks(owner: TapOwner) -> bool:
    """Have the compiler, if it is there, see to it that modules without hooks stay so.

    It does not look for hooks where there were none: so code that was compiled for a model that
    is not watched would be taken for a watched one of the same class, and have none of our taps.
    """
    if not frames.is_loaded():
        return False
    frames.check_markers()
    with _LOCK:
        before = frames.set_hook_guards(False)
        if before is None:
            owner.troubles.absent(missing())
        elif not _BEFORE:  # not `_MINDING`: an owner may be gone without a word
            _BEFORE.append(before)
        _MINDING.add(owner)
        recompile_limit.report_to(_limited)
    return True


def mind_no_more(owner: TapOwner) -> None:
    """The owner's hooks are gone: be as before when all are."""
    with _LOCK:
        _MINDING.discard(owner)
        if not _MINDING:
            recompile_limit.report_to(None)
            if _BEFORE:
                frames.set_hook_guards(_BEFORE.pop())
            while _SKIPPED:
                frames.skip_no_more(_SKIPPED.pop())


def _limited(text: str) -> None:
    for owner in list(_MINDING):
        owner.troubles.limited(text)


def forget_compiled(modules: list[nn.Module]) -> bool:
    """Drop code that was compiled before there were taps in it; whether there was any.

    The compiler does not look for new hooks. What it compiled is compiled again when next called.
    """
    codes = {c for m in modules if (c := getattr(m.forward, "__code__", None)) is not None}
    return frames.forget_code(codes, lambda code: skip(code) if code in _SKIPPED else None)


# -- while tracing -----------------------------------------------------------------------------


@while_tracing
def is_placing() -> bool:
    """Whether hooks place operators into what is traced: not into what is exported, and not where
    this torch does not let them."""
    if is_exporting():
        return False
    if not tracing.is_ready():
        for owner in list(_MINDING):
            owner.troubles.absent(missing())
        return False
    return True


@while_tracing
def _begin() -> bool:
    known = traced("tap")
    return _TRACE.now().begin(known.value, known)


@while_tracing
def _end() -> int:
    _TRACE.now().end(traced("tap").value)
    return 0


@while_tracing
def _is_fixed() -> bool:
    tap = traced("tap").value
    return _TRACE.now().fixed.get(tap, False)


# A module that is the same whenever the code runs: its sign is a constant of the code, and guarded.


@while_tracing
def _new_key(sign: str, kind: Kind, slot: str) -> int:
    tap = SIGNED[sign]
    trace = _TRACE.now()
    return trace.key(tap, trace.place(tap, kind, slot), _traced_tensor())


@while_tracing
def _hooking() -> int:
    _TRACE.now().effects = tracing.side_effects()
    return 0


@while_tracing
def _hooked() -> int:
    """A hook was traced. The compiler replaces its record of side effects by a copy then, and does
    not find again what models write to objects that they made before (a cache of keys and values).
    Our hook writes nothing, so the record that was there is as good."""
    trace = _TRACE.now()
    tracing.restore_side_effects(trace.effects)
    trace.effects = None
    trace.renew(_traced_tensor())
    return 0


# Code that may serve several modules. An argument would become a guard, and the code would serve
# one module only: these take the tap from the compiler's record of the frame that it traces.


@while_tracing
def _new_place(kind: Kind, slot: str) -> int:
    return add_place(_TRACE.now().place(traced("tap").value, kind, slot))


@while_tracing
def _can_hook() -> bool:
    if not TRACES_HOOKS:
        traced("tap").value.owner.troubles.untraced(torch.__version__)
    return TRACES_HOOKS


@while_tracing
def _find_inner(sign: str, kind: Kind) -> bool | None:
    """Set the variable `tap` of the traced function to that of the owner's innermost call; whether
    it is fixed, None if there is none or nothing of it is wanted."""
    trace = _TRACE.now()
    inner = next(((t, k) for t, _, k in reversed(trace.stack) if t.owner.sign == sign), None)
    if inner is None or not _is_attached(inner[0], kind):
        return None
    set_traced("tap", inner[1])
    return trace.fixed[inner[0]]


@while_tracing
def _find_outer(sign: str, kind: Kind) -> int:
    """Set the variable `module` of the traced function to the module whose `forward` is compiled by
    itself; the number of its hook, -1 if there is none, or a call inside it, or no interest."""
    trace = _TRACE.now()
    outer = tracing.outermost_module()
    if outer is None or any(t.owner.sign == sign for t, _, _ in trace.stack):
        return -1
    module, record = outer
    for number, hook in forward_hooks(module).items():
        tap = getattr(hook, "tap", None)
        if isinstance(tap, Tap) and tap.owner.sign == sign and _is_attached(tap, kind):
            trace.meet(tap.owner)
            set_traced("module", record)
            return int(number)
    return -1


def _is_attached(tap: Tap, kind: Kind) -> bool:
    return tap.selected and kind in tap.owner.plan.kinds


def _traced_tensor() -> Tensor | None:
    """What stands for the variable `x` of the function that is being traced: the same if it is the
    same tensor, of a higher version once it was written to. None if that cannot be told."""
    try:
        x = tracing.example("x")
    except Exception as error:
        pass_on(error)
        return None
    return x if isinstance(x, Tensor) and not x.is_inference() else None


def enter(tap: Tap, tensors: list[tuple[str, Tensor]]) -> bool:
    """A module call begins, in a trace: whether its module is the same whenever the code runs."""
    is_fixed = _begin()
    for slot, x in tensors:
        if tap.input:
            _see(tap, "input", slot, x, is_fixed)
        if tap.input_grad and x.requires_grad:
            _see_gradient(tap, "input_grad", slot, x, is_fixed)
    return is_fixed


def leave(tap: Tap, tensors: list[tuple[str, Tensor]]) -> None:
    """A module call ends, in a trace."""
    is_fixed = _is_fixed() if tap.enters else enter(tap, [])
    for slot, x in tensors:
        if tap.output:
            _see(tap, "output", slot, x, is_fixed)
        if tap.output_grad and x.requires_grad:
            _see_gradient(tap, "output_grad", slot, x, is_fixed)
    _end()


def attach(owner: TapOwner, x: Tensor, name: str) -> None:
    """A tensor is given a name, in a trace."""
    _attach(owner.sign, "attach", x, name)
    if x.requires_grad:
        _attach(owner.sign, "attach_grad", x, name)


def _attach(sign: str, kind: Kind, x: Tensor, name: str) -> None:
    tap: Any = None
    module: Any = None  # both are set while tracing
    is_fixed = _find_inner(sign, kind)
    if is_fixed is None:
        number = _find_outer(sign, kind)
        if number < 0:
            return
        tap, is_fixed = forward_hook(module, number).tap, False
    if kind == "attach":
        _see(tap, kind, name, x, is_fixed)
    else:
        _see_gradient(tap, kind, name, x, is_fixed)


def _see(tap: Tap, kind: Kind, slot: str, x: Tensor, is_fixed: bool) -> None:
    if is_fixed:
        key = _new_key(tap.sign, kind, slot)
        if key >= 0:
            TAP(x.detach(), key)
    else:
        TAP_OF(x.detach(), tap.key, _new_place(kind, slot))


def _see_gradient(tap: Tap, kind: Kind, slot: str, x: Tensor, is_fixed: bool) -> None:
    if not _can_hook():
        return
    if is_fixed:
        key = _new_key(tap.sign, kind, slot)
        if key >= 0:
            _hooking()
            x.register_hook(lambda grad: TAP(grad, key))
            _hooked()
    else:
        module, place = tap.key, _new_place(kind, slot)
        _hooking()
        x.register_hook(lambda grad: TAP_OF(grad, module, place))
        _hooked()
