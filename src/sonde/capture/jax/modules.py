"""Calls of Flax modules while a function is traced: what goes in and out is tapped.

Linen has interceptors for methods. Modules of nnx are plain classes: while a function is traced,
and only then, `__call__` of the classes in the model is a wrapper. A module of nnx carries its path
during its outermost call, and so do the copies that `nnx.scan`, `nnx.remat` and `nnx.vmap` make.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Final

from flax import linen, nnx
from jax import Array

from sonde.capture.jax import trees
from sonde.capture.jax.taps import Call, JaxTap, Tracing, current, tap
from sonde.record import Kind

_Args = tuple[object, ...]
_Kwargs = Mapping[str, object]

_MARK: Final = "sonde_path"
_OF_INPUTS: Final = frozenset({"input", "input_grad"})
_WRAPPERS: Final = ("Checkpoint", "Remat", "Jit", "Vmap", "MapVariables")
"""How linen's transforms name the class around a module; those that run it once."""


def is_model(x: object) -> bool:
    """Whether it is a module of Flax."""
    return isinstance(x, linen.Module | nnx.Module)


@contextmanager
def intercepted(model: object) -> Iterator[None]:
    """Tap what modules take and return inside the block."""
    with ExitStack() as stack:
        stack.enter_context(linen.intercept_methods(_intercept))
        if isinstance(model, nnx.Module):
            stack.enter_context(_patched({type(m) for _, m in nnx.iter_modules(model)}, model))
        yield


# -- linen -------------------------------------------------------------------------------------


def _intercept(
    next_fun: Callable[..., object],
    args: _Args,
    kwargs: _Kwargs,
    context: linen.module.InterceptorContext,
) -> object:
    tracing = current()
    module = context.module
    if tracing is None or context.method_name != "__call__" or module.is_initializing():
        return next_fun(*args, **kwargs)
    path = ".".join(str(p) for p in module.path)
    around = tracing.call
    if around is not None and around.path == path and around.type.startswith(_WRAPPERS):
        return next_fun(*args, **kwargs)
    variables = module.variables
    if around is None:
        _see_variables(tracing, path, variables, module)
    size = sum(math.prod(x.shape) for _, x in trees.named(variables.get("params", {})))
    call = Call(path, type(module).__name__, module, around, size, tracing.sizes.get(path, 0))
    tracing.modules.setdefault(path, module)
    return _called(tracing, call, next_fun, args, kwargs)


def _see_variables(
    tracing: Tracing, path: str, variables: Mapping[str, object], module: object
) -> None:
    """Parameters and buffers as the outermost call uses them."""
    for collection, tree in variables.items():
        for keys, x in trees.named(tree):
            inner, name = trees.place_of(keys)
            owner = ".".join(p for p in (path, inner) if p)
            is_parameter = collection == "params"
            if is_parameter:
                _count(tracing, owner, math.prod(x.shape))
            if not tracing.has_parameters and collection not in ("intermediates", "cache"):
                what = JaxTap("param", owner, name, None, "", module, requires_grad=is_parameter)
                tap(x, what)
    tracing.has_parameters = True


def _count(tracing: Tracing, owner: str, size: int) -> None:
    """Add a parameter's size to its module and all modules around it."""
    parts = owner.split(".") if owner else []
    for n in range(len(parts) + 1):
        at = ".".join(parts[:n])
        tracing.sizes[at] = tracing.sizes.get(at, 0) + size


# -- nnx ---------------------------------------------------------------------------------------


@contextmanager
def _patched(classes: set[type], model: nnx.Module) -> Iterator[None]:
    """Wrap `__call__` of these classes inside the block."""
    name = "__call__"
    own = [(cls, vars(cls).get(name), getattr(cls, name)) for cls in classes if _is_callable(cls)]
    try:
        for cls, _, call in own:
            setattr(cls, name, _wrapper(call, model))
        yield
    finally:
        for cls, before, _ in own:
            if before is None:  # it was inherited
                delattr(cls, name)
            else:
                setattr(cls, name, before)


def _is_callable(cls: type) -> bool:
    """Whether instances of the class can be called."""
    return any("__call__" in vars(c) for c in cls.__mro__)


def _wrapper(call: Callable[..., object], model: nnx.Module) -> Callable[..., object]:
    @wraps(call)
    def called(self: nnx.Module, *args: object, **kwargs: object) -> object:
        tracing = current()
        if tracing is None or (tracing.call is not None and tracing.call.module is self):
            return call(self, *args, **kwargs)
        if tracing.call is not None:
            return _nnx_call(tracing, self, call, args, kwargs)
        marked = _mark(tracing, self, model)
        try:
            return _nnx_call(tracing, self, call, args, kwargs)
        finally:
            for module in marked:
                delattr(module, _MARK)

    return called


def _nnx_call(
    tracing: Tracing,
    module: nnx.Module,
    call: Callable[..., object],
    args: _Args,
    kwargs: _Kwargs,
) -> object:
    path = vars(module).get(_MARK)
    if path is None:  # made inside the call: it is no part of the model
        return call(module, *args, **kwargs)
    params = nnx.state(module, nnx.Param)
    size = sum(math.prod(x.shape) for _, x in trees.named(params))
    made = Call(path, type(module).__name__, module, tracing.call, size, tracing.sizes.get(path, 0))
    tracing.modules.setdefault(path, module)
    return _called(tracing, made, lambda *a, **k: call(module, *a, **k), args, kwargs)


def _mark(tracing: Tracing, root: nnx.Module, model: nnx.Module) -> list[nnx.Module]:
    """Give every module under an outermost call its path, and tap what they hold."""
    prefix = _prefix(root, model)
    marked = []
    for parts, module in nnx.iter_modules(root):
        if _MARK not in vars(module):
            path = ".".join([*prefix, *(str(p) for p in parts)])
            setattr(module, _MARK, path)
            marked.append(module)
            _see_held(tracing, path, module)
    tracing.has_parameters = True
    return marked


def _see_held(tracing: Tracing, path: str, module: nnx.Module) -> None:
    for name, variable in vars(module).items():
        if not isinstance(variable, nnx.Variable) or isinstance(variable, nnx.RngState):
            continue
        x = variable.get_value()
        is_parameter = isinstance(variable, nnx.Param)
        if not trees.is_array(x):
            continue
        if is_parameter:
            _count(tracing, path, math.prod(x.shape))
        if not tracing.has_parameters:
            what = JaxTap("param", path, name, None, type(module).__name__, module, is_parameter)
            tap(x, what)


def _prefix(root: nnx.Module, model: nnx.Module) -> list[str]:
    """Where a module that is called by itself lies in the model."""
    if type(root) is type(model):
        return []
    places = [parts for parts, m in nnx.iter_modules(model) if type(m) is type(root)]
    return [str(p) for p in places[0]] if len(places) == 1 else [type(root).__name__]


# -- both --------------------------------------------------------------------------------------


def _called(
    tracing: Tracing, call: Call, function: Callable[..., object], args: _Args, kwargs: _Kwargs
) -> object:
    if not tracing.kinds.isdisjoint(_OF_INPUTS):
        # A tap parts the uses inside the module from the others, so that gradients are added up in
        # another order: only where it is wanted.
        named = {**{str(i): a for i, a in enumerate(args)}, **kwargs}
        seen = trees.mapped(named, lambda slot, x: _see(call, "input", slot, x), _is_object)
        args, kwargs = tuple(seen[str(i)] for i in range(len(args))), {k: seen[k] for k in kwargs}
    tracing.stack.append(call)
    try:
        result = function(*args, **kwargs)
    finally:
        tracing.stack.pop()
    return trees.mapped(result, lambda slot, x: _see(call, "output", slot, x), _is_object)


def _see(call: Call, kind: Kind, slot: str, x: Array) -> Array:
    return tap(x, JaxTap(kind, call.path, slot, call, call.type, call.module))


def _is_object(x: object) -> bool:
    """Objects of nnx are passed on as they are: a copy would lose who they are."""
    return isinstance(x, nnx.Module | nnx.Variable)
