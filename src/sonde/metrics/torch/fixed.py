"""Functions of tensors that do the same whenever they are called: what they do on a device can be
recorded once and replayed.

Two things are looked at. `fixed` reads the code of a function: it must depend on its arguments and
on constants alone, not on anything that a program may change. `Probe` watches a call: nothing in it
may need a value on the host, draw random numbers, or write to memory. A function of which either
cannot be said is not wrong: it is just called each time.
"""

from __future__ import annotations

import builtins
import dis
import math
from collections.abc import Callable, Sequence
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    ModuleType,
    NoneType,
)
from typing import Any, Final

import torch
from torch import Tensor

from sonde._signals import pass_on
from sonde._torch_internals.tensors import HAS_DISPATCH_MODES, DispatchMode, schema_of

_CONSTANTS: Final = (int, float, complex, str, bytes, NoneType, EllipsisType, torch.dtype)
_BUILT_IN: Final = frozenset(
    {"abs", "bool", "enumerate", "float", "int", "len", "list", "max", "min", "pow", "range"}
    | {"reversed", "round", "slice", "sorted", "sum", "tuple", "zip"}
)
_CHANGING: Final = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR"}
    | {"DELETE_SUBSCR", "IMPORT_NAME", "YIELD_VALUE", "LOAD_NAME", "STORE_NAME"}
)
"""What a function does that has effects, or that is none."""
_STATE: Final = frozenset({"cuda", "random", "initial_seed", "_C", "ops", "backends", "config"})
"""Parts of torch that are not functions of tensors."""
_UNSURE: Final = frozenset(
    {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    | {torch.Tag.nondeterministic_seeded}
)
_WAITING: Final = ("linalg_", "_linalg_", "equal", "svd", "eig", "lu", "cholesky", "triangular")
"""Beginnings of operations that ask the device whether they went well."""


class FixedFunction:
    """A function that does the same each time, as long as this `holds`."""

    __slots__ = ("_cells", "_names")

    def __init__(self) -> None:
        self._names: list[tuple[dict[str, object], str, object]] = []
        self._cells: list[tuple[CellType, object]] = []

    def holds(self) -> bool:
        """Whether all that the function refers to is still what it was."""
        return all(names.get(name) is value for names, name, value in self._names) and all(
            cell.cell_contents is value for cell, value in self._cells
        )

    def takes(self, value: object, depth: int = 0) -> bool:
        """Whether that is a constant, or a function that does the same each time."""
        if isinstance(value, _CONSTANTS):
            return True
        if isinstance(value, tuple | frozenset):
            return all(self.takes(v, depth) for v in value)
        if isinstance(value, ModuleType):
            return _is_of_torch(value.__name__) or value is math
        if isinstance(value, FunctionType) and not _is_of_torch(value.__module__):
            return depth < 8 and self._takes_function(value, depth + 1)
        is_function = isinstance(value, BuiltinFunctionType | FunctionType | type)
        return is_function and (_is_of_torch(value.__module__) or value.__module__ == "math")

    def _takes_function(self, fn: FunctionType, depth: int) -> bool:
        given = (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())
        cells = [(cell, cell.cell_contents) for cell in fn.__closure__ or ()]
        self._cells += cells
        if not all(self.takes(v, depth) for v in (*given, *(value for _, value in cells))):
            return False
        return all(self._takes_code(code, fn, depth) for code in _codes(fn.__code__))

    def _takes_code(self, code: CodeType, fn: FunctionType, depth: int) -> bool:
        for step in dis.get_instructions(code):
            if step.opname in _CHANGING or (
                step.opname == "STORE_DEREF" and step.argval in fn.__code__.co_freevars
            ):
                return False
            if step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD")) and step.argval in _STATE:
                return False
            if step.opname == "LOAD_GLOBAL" and not self._takes_name(step.argval, fn, depth):
                return False
        return True

    def _takes_name(self, name: str, fn: FunctionType, depth: int) -> bool:
        if name not in fn.__globals__:
            self._names.append((fn.__globals__, name, None))  # until it is redefined
            return name in _BUILT_IN and hasattr(builtins, name)
        value = fn.__globals__[name]
        self._names.append((fn.__globals__, name, value))
        return self.takes(value, depth)


def fixed(fn: Callable[..., object]) -> FixedFunction | None:
    """What there is to say of a function that does the same each time, None if it may not."""
    found = FixedFunction()
    try:
        return found if HAS_DISPATCH_MODES and callable(fn) and found.takes(fn) else None
    except Exception as error:  # something that looks like a function
        pass_on(error)
        return None


class ReplayProbe(DispatchMode):  # type: ignore[misc]  # of torch
    """Inside this block, sees whether what is done on a device can be recorded and replayed."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.is_fit = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        schema = schema_of(func)
        if schema is None:
            self.is_fit = False
            return result
        name: str = schema.name.removeprefix("aten::")
        waits = name.startswith(_WAITING) and name != "linalg_vector_norm"
        others = [x for x in (result, *args) if isinstance(x, Tensor) and x.device != self._device]
        if waits or others or schema.is_mutable or not _UNSURE.isdisjoint(func.tags):
            self.is_fit = False
        return result


def _is_of_torch(name: str | None) -> bool:
    return name is not None and (name == "torch" or name.startswith("torch."))


def _codes(code: CodeType) -> list[CodeType]:
    """A function's code and that of those within it."""
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [code, *(one for c in inner for one in _codes(c))]
