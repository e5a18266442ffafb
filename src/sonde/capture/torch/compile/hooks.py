"""Taps inside of compiled code: how hooks put them there.

Under `torch.compile` our hooks are traced, not run: whatever they do in Python happens once, at
compile time. So there they do nothing but place an operator into the graph, in forward and, through
a traced tensor hook, in backward. At run time the operator (`operators.py`) finds its spot and does
what an eager hook does. It returns nothing and is marked as having an effect, so it is neither
removed nor moved across writes to its argument; no state of ours is read while tracing that could
change later, so a schedule that fires causes no recompilation.

Calls of a module are numbered within the code that is compiled together.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from types import CodeType
from typing import Any, Final, TypeVar
from weakref import WeakSet, ref

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sonde._signals import IGNORING, pass_on
from sonde.capture.torch.compile import operators, recompile_limit
from sonde.capture.torch.compile.dual import Compiler, both
from sonde.capture.torch.compile.guards import hooks_of, unguard
from sonde.capture.torch.compile.operators import TAP, TAP_OF, add_key, add_place, key_of
from sonde.capture.torch.compile.reached import is_reached_from
from sonde.capture.torch.compile.returned import returned
from sonde.capture.torch.compile.rewriting import rewriting
from sonde.capture.torch.tap import SIGNED, Tap, TapOwner, TapPlace
from sonde.record import Kind

F = TypeVar("F", bound=Callable[..., Any])

TRACES_HOOKS = importlib.util.find_spec("torch._higher_order_ops.register_hook") is not None
"""Whether the compiler can trace a hook on any tensor. One that cannot fails, and with it the
training, on a tensor that is written to afterwards; or it stops compiling there."""


class _Trace:
    """What is being traced: the modules whose calls have begun, how often each was called, who owns
    them."""

    def __init__(self) -> None:
        self.context: Any = None
        self.owners: WeakSet[TapOwner] = WeakSet()
        self.stack: list[tuple[Tap, int, Any]] = []
        self.calls: dict[Tap, int] = {}
        self.fixed: dict[Tap, bool] = {}
        self.keys: dict[tuple[str, bool, int], tuple[ref[Tensor], int, int]] = {}
        self.last: Callable[[], Tensor | None] = lambda: None
        self.effects: object = None

    def now(self) -> _Trace:
        """This, emptied if a new trace has begun: a retry, a recompilation, another function."""
        context = torch._guards.TracingContext.try_get()
        if self.context is None or self.context() is not context:
            self.context = ref(context) if context is not None else None
            self.owners = WeakSet()
            self.stack.clear()
            self.calls.clear()
            self.fixed.clear()
            self.keys.clear()
        return self

    def begin(self, tap: Tap, known: Any) -> bool:
        """A call begins: whether the module is the same whenever this code runs. `known` is the
        compiler's own record of the tap."""
        self.meet(tap.owner)
        call = self.calls.get(tap, 0)
        self.calls[tap] = call + 1
        self.stack.append((tap, call, known))
        if tap not in self.fixed:
            self.fixed[tap] = is_reached_from(tap.owner.root, known, self._scope())
        return self.fixed[tap]

    def end(self, tap: Tap) -> None:
        while self.stack and self.stack.pop()[0] is not tap:
            pass

    def _scope(self) -> dict[str, Any]:
        frame: Any = _translator().output.root_tx
        return {"G": frame.f_globals, "L": frame.f_locals}

    def meet(self, owner: TapOwner) -> None:
        """The code has taps of this owner: compile it a second time without taps, if some steps are
        not recorded."""
        owner.traced()
        if not self.owners:
            with IGNORING:  # then taps are all that there is
                output: Any = _translator().output
                compiler = output.compiler_fn
                if not owner.always and getattr(output, "package", None) is None:
                    compiler = both(compiler, operators.ALL, partial(_is_heard, self.owners))
                output.compiler_fn = self._finished(compiler, ref(output))
        self.owners.add(owner)

    def _finished(self, compiler: Compiler, output: ref[Any]) -> Compiler:
        """The compiler, but first what was traced is looked at as a whole."""

        @wraps(compiler)
        def finish(graph: GraphModule, inputs: Any) -> Any:
            with IGNORING:  # then they are read twice
                seen = [(known(), version, key) for known, version, key in self.keys.values()]
                unchanged = [k for x, version, k in seen if x is not None and x._version == version]
                for found in map(key_of, returned(graph, TAP, unchanged)):
                    if found is not None:
                        found.returned = True
            with IGNORING:  # then they are looked at each time
                unguard(output(), self._is_unguarded())
            with _rewriting(compiler):
                return compiler(graph, inputs)

        return finish

    def _is_unguarded(self) -> Callable[[object], bool]:
        """Whose hooks need no guards: modules that are the same whenever the code runs, except the
        first of each owner. Code that serves several modules checks the hooks of each."""
        fixed = [tap for tap in self.calls if self.fixed[tap]]
        firsts = {tap.owner: tap for tap in reversed(fixed)}
        unguarded = {tap for tap in fixed if firsts[tap.owner] is not tap}

        def is_unguarded(module: object) -> bool:
            hooks = hooks_of(module)
            return bool(hooks) and all(getattr(hook, "tap", None) in unguarded for hook in hooks)

        return is_unguarded

    def place(self, tap: Tap, kind: Kind, slot: str) -> TapPlace:
        call = next((c for t, c, _ in reversed(self.stack) if t is tap), 0)
        return TapPlace(kind, call, slot)

    def key(self, tap: Tap, place: TapPlace, x: Tensor | None) -> int:
        """A key for a tap there; -1 if one that sees this very tensor can report for it too."""
        if x is None:
            return add_key(tap, place)
        of = (tap.owner.sign, place.kind.endswith("_grad"), id(x))
        known = self.keys.get(of)
        if known is not None and known[0]() is x and known[1] == x._version:
            first = key_of(known[2])
            if first is not None:
                first.add(tap, place)
                return -1
        made = add_key(tap, place)
        self.keys[of] = (ref(x), x._version, made)
        self.last = ref(x)
        return made

    def renew(self, x: Tensor | None) -> None:
        """The tensor that was last given a key is now this one: some compilers put another in its
        place when it gets a hook."""
        last = self.last()
        if last is not None and x is not None and last is not x:
            for (sign, is_gradient, number), (_, _, key) in list(self.keys.items()):
                if number == id(last):
                    self.keys[sign, is_gradient, id(x)] = (ref(x), x._version, key)


def _rewriting(compiler: Any) -> AbstractContextManager[Any]:
    if getattr(compiler, "_compiler_name", None) == "inductor":
        with IGNORING:  # then they stay as they are
            return rewriting()
    return nullcontext()


_MINDING: Final[WeakSet[TapOwner]] = WeakSet()
_BEFORE: Final[list[bool]] = []
"""What the compiler did about modules without hooks before anybody minded."""
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


def stay_out_of(code: CodeType) -> None:
    """Tell the compiler not to compile this function by itself, nor what it calls.

    It may still be traced as a part of something else. Hooks of the outermost compiled module run
    outside of the compiled code and would each become a graph of their own.
    """
    frames = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


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
            _skip(code)  # even if it was before: `torch._dynamo.reset()` forgets it


def _skip(code: CodeType) -> None:
    """Do not compile this function by itself; what it calls may be."""
    frames = torch._C._dynamo.eval_frame
    action = frames._FrameAction
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))


def mind_hooks(owner: TapOwner) -> bool:
    """Have the compiler, if it is there, see to it that modules without hooks stay so.

    It does not look for hooks where there were none: so code that was compiled for a model that
    nobody watches would be taken for a watched one of the same class, and have none of our taps.
    """
    config: Any = getattr(sys.modules.get("torch._dynamo"), "config", None)
    if not hasattr(config, "skip_nnmodule_hook_guards"):  # not there, or being imported
        return False
    with _LOCK:
        if not _BEFORE:  # not `_MINDING`: an owner may be gone without a word
            _BEFORE.append(config.skip_nnmodule_hook_guards)
        config.skip_nnmodule_hook_guards = False
        _MINDING.add(owner)
        recompile_limit.report_to(_limited)
    return True


def mind_no_more(owner: TapOwner) -> None:
    """The owner's hooks are gone: be as before when all are."""
    with _LOCK:
        _MINDING.discard(owner)
        if not _MINDING and _BEFORE:
            sys.modules["torch._dynamo"].config.skip_nnmodule_hook_guards = _BEFORE.pop()
            recompile_limit.report_to(None)
            frames = torch._C._dynamo.eval_frame
            default = frames._FrameAction.DEFAULT
            while _SKIPPED:
                strategy = frames._FrameExecStrategy(default, default)
                frames.set_code_exec_strategy(_SKIPPED.pop(), strategy)


def _limited(text: str) -> None:
    for owner in list(_MINDING):
        owner.troubles.limited(text)


def forget_compiled(modules: list[nn.Module]) -> bool:
    """Drop code that was compiled before there were taps in it; whether there was any.

    The compiler does not look for new hooks. What it compiled is compiled again when next called.
    """
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo.resume_execution import ContinueExecutionCache

    frames = torch._C._dynamo.eval_frame
    found = False
    for code in {c for m in modules if (c := getattr(m.forward, "__code__", None)) is not None}:
        resumed = ContinueExecutionCache.cache.get(code, {}).values()
        for each in (code, *resumed):
            if frames._debug_get_cache_entry_list(each):
                frames.reset_code(each)
                found = True
                if each in _SKIPPED:
                    _skip(each)
    return found


# -- while tracing -----------------------------------------------------------------------------


def _while_tracing(function: F) -> F:
    """Run the function while the compiler traces; what it returns is a constant of the graph."""
    # What torch.compiler.assume_constant_result does, which would import the whole compiler (4 s).
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@_while_tracing
def is_exporting() -> bool:
    """Whether what is traced will be exported. (Up to 2.11, the compiler takes torch's own function
    of that name for one that is always true.)"""
    return getattr(torch.compiler, "_is_exporting_flag", False)


@_while_tracing
def _begin() -> bool:
    known = _traced("tap")
    return _TRACE.now().begin(known.value, known)


@_while_tracing
def _end() -> int:
    _TRACE.now().end(_traced("tap").value)
    return 0


@_while_tracing
def _is_fixed() -> bool:
    tap = _traced("tap").value
    return _TRACE.now().fixed.get(tap, False)


# A module that is the same whenever the code runs: its sign is a constant of the code, and guarded.


@_while_tracing
def _new_key(sign: str, kind: Kind, slot: str) -> int:
    tap = SIGNED[sign]
    trace = _TRACE.now()
    return trace.key(tap, trace.place(tap, kind, slot), _traced_tensor())


@_while_tracing
def _hooking() -> int:
    _TRACE.now().effects = _translator().output.side_effects
    return 0


@_while_tracing
def _hooked() -> int:
    """A hook was traced. The compiler replaces its record of side effects by a copy then, and does
    not find again what models write to objects that they made before (a cache of keys and values).
    Our hook writes nothing, so the record that was there is as good."""
    trace = _TRACE.now()
    output = _translator().output
    if isinstance(trace.effects, type(output.side_effects)):
        output.side_effects = trace.effects
    trace.effects = None
    trace.renew(_traced_tensor())
    return 0


# Code that may serve several modules. An argument would become a guard, and the code would serve
# one module only: these take the tap from the compiler's record of the frame that it traces.


@_while_tracing
def _new_place(kind: Kind, slot: str) -> int:
    return add_place(_TRACE.now().place(_traced("tap").value, kind, slot))


@_while_tracing
def _can_hook() -> bool:
    if not TRACES_HOOKS:
        _traced("tap").value.owner.troubles.untraced(torch.__version__)
    return TRACES_HOOKS


@_while_tracing
def _find_inner(sign: str, kind: Kind) -> bool | None:
    """Set the variable `tap` of the traced function to that of the owner's innermost call; whether
    it is fixed, None if there is none or nothing of it is wanted."""
    trace = _TRACE.now()
    inner = next(((t, k) for t, _, k in reversed(trace.stack) if t.owner.sign == sign), None)
    if inner is None or not _is_attached(inner[0], kind):
        return None
    _translator().output.current_tx.symbolic_locals["tap"] = inner[1]
    return trace.fixed[inner[0]]


@_while_tracing
def _find_outer(sign: str, kind: Kind) -> int:
    """Set the variable `module` of the traced function to the module whose `forward` is compiled by
    itself; the number of its hook, -1 if there is none, or a call inside of it, or no interest."""
    trace = _TRACE.now()
    output = _translator().output
    frame: Any = output.root_tx
    names = ["self", *frame.f_code.co_varnames[:1]]
    name = next((n for n in names if isinstance(frame.f_locals.get(n), nn.Module)), None)
    if name is None or any(t.owner.sign == sign for t, _, _ in trace.stack):
        return -1
    for number, hook in frame.f_locals[name]._forward_hooks.items():
        tap = getattr(hook, "tap", None)
        if isinstance(tap, Tap) and tap.owner.sign == sign and _is_attached(tap, kind):
            trace.meet(tap.owner)
            output.current_tx.symbolic_locals["module"] = frame.symbolic_locals[name]
            return int(number)
    return -1


def _is_attached(tap: Tap, kind: Kind) -> bool:
    return tap.selected and kind in tap.owner.plan.kinds


def _traced_tensor() -> Tensor | None:
    """What stands for the variable `x` of the function that is being traced: the same if it is the
    same tensor, of a higher version once it was written to. None if that cannot be told."""
    try:
        x = _traced("x").as_proxy().node.meta["example_value"]
    except Exception as error:
        pass_on(error)
        return None
    return x if isinstance(x, Tensor) and not x.is_inference() else None


def _traced(name: str) -> Any:
    return _translator().output.current_tx.symbolic_locals[name].realize()


def _translator() -> Any:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    return InstructionTranslator.current_tx()


def enter(tap: Tap, tensors: list[tuple[str, Any]]) -> bool:
    """A module call begins, in a trace: whether its module is the same whenever the code runs."""
    is_fixed = _begin()
    for slot, x in tensors:
        if tap.input:
            _see(tap, "input", slot, x, is_fixed)
        if tap.input_grad and x.requires_grad:
            _see_gradient(tap, "input_grad", slot, x, is_fixed)
    return is_fixed


def leave(tap: Tap, tensors: list[tuple[str, Any]]) -> None:
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
        tap, is_fixed = module._forward_hooks[number].tap, False
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
