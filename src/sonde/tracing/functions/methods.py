"""Methods: from a name on an object to the Python function that runs when it is called."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from types import CodeType, FunctionType, MethodType
from typing import Final, Literal

Receives = Literal["instance", "class", "nothing"]
"""What a function gets as its first argument besides what the caller gives."""

_MAX_UNWRAPS: Final = 32


@dataclass(frozen=True, slots=True)
class Method:
    """A method that can be observed."""

    name: str
    function: FunctionType
    receives: Receives


def method_of(owner: object, name: str) -> Method | None:
    """The method of that name, without what decorators put around it; None if there is none."""
    own: dict[str, object] = getattr(owner, "__dict__", {})
    found = own.get(name)
    if found is None:
        found = inspect.getattr_static(type(owner), name, None)
        return _unwrapped(name, found, "instance")
    # Put on the object itself: a bound method knows its receiver, a plain function has none.
    return _unwrapped(name, found, "nothing")


def own_methods(owner: object, base: type) -> list[str]:
    """Public methods that the classes of the object define below `base`."""
    names: dict[str, None] = {}
    for kind in type(owner).__mro__:
        if kind is base:
            break
        for name in vars(kind):
            if not name.startswith("_"):
                names[name] = None
    return [name for name in names if method_of(owner, name) is not None]


def receiver_in(code: CodeType) -> tuple[str | None, bool]:
    """The variable with the first argument, whatever it is called; true if it is in `*args`."""
    if code.co_argcount:
        return code.co_varnames[0], False
    if code.co_flags & inspect.CO_VARARGS:
        return code.co_varnames[code.co_kwonlyargcount], True
    return None, False


def _unwrapped(name: str, found: object, receives: Receives) -> Method | None:
    for _ in range(_MAX_UNWRAPS):
        inner, receives = _one_layer_off(found, receives)
        if inner is None:
            return Method(name, found, receives) if isinstance(found, FunctionType) else None
        found = inner
    return None


def _one_layer_off(found: object, receives: Receives) -> tuple[object, Receives]:
    """What a decorator or a descriptor holds, None if it is neither; what that receives."""
    match found:
        case MethodType():
            return found.__func__, "instance"
        case staticmethod():
            return found.__func__, "nothing"
        case classmethod():
            return found.__func__, "class"
        case property():
            return found.fget, receives
        case functools.partial() | functools.partialmethod() | functools.cached_property():
            return found.func, receives
        case _:
            return getattr(found, "__wrapped__", None), receives
