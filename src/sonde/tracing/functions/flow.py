"""Flow: where in a function a variable can have a value at all, and where it cannot change.

A loop over a hundred layers before `y` is assigned need not be looked at line by line for `y`.
"""

from __future__ import annotations

import dis
from collections.abc import Collection
from inspect import CO_OPTIMIZED, CO_VARARGS, CO_VARKEYWORDS
from types import CodeType

_NEVER = 1 << 30
_IDLE = frozenset(
    {
        *("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK", "LOAD_SMALL_INT"),
        *("RETURN_CONST", "RETURN_VALUE"),
    }
)


def first_line_start(code: CodeType, names: Collection[str] | None) -> int:
    """The offset of the first line after which one of the names can have a value.

    0 if that may be so from the beginning; beyond the code if it never is.
    """
    if names is None or not code.co_flags & CO_OPTIMIZED:
        return 0
    if not set(names).isdisjoint((*_arguments(code), *code.co_cellvars, *code.co_freevars)):
        return 0
    instructions = list(dis.get_instructions(code))
    stores = [i.offset for i in instructions if _stores(i, names)]
    if not stores:
        return _NEVER
    first = min(stores)
    while back := [
        int(i.argval)
        for i in instructions
        if "JUMP" in i.opname and isinstance(i.argval, int) and i.argval < first <= i.offset
    ]:
        first = min(back)
    starts = [offset for offset, _ in dis.findlinestarts(code) if offset <= first]
    return max(starts, default=0)


def quiet_lines(code: CodeType, names: Collection[str] | None) -> frozenset[int]:
    """The lines before which the names need no look, if a look is taken at the end.

    Those before any of them can have a value, and those that change nothing. None for all names.
    """
    if names is None:
        return frozenset()
    first = first_line_start(code, names)
    before: set[int | None] = set()
    after: set[int | None] = set()
    for offset, line in dis.findlinestarts(code):
        (before if offset < first else after).add(line)
    return _bare_lines(code).union(line for line in before - after if line is not None)


def _bare_lines(code: CodeType) -> frozenset[int]:
    """The lines that only name or return variables and constants: they change nothing."""
    found: dict[int, bool] = {}
    line: int | None = None
    starts = dict(dis.findlinestarts(code))
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        if line is not None:
            found[line] = found.get(line, True) and instruction.opname in _IDLE
    return frozenset(line for line, is_bare in found.items() if is_bare)


def _arguments(code: CodeType) -> tuple[str, ...]:
    n = code.co_argcount + code.co_kwonlyargcount
    n += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
    return code.co_varnames[:n]


def _stores(instruction: dis.Instruction, names: Collection[str]) -> bool:
    if "STORE_FAST" not in instruction.opname:
        return False
    stored = instruction.argval
    several = stored if isinstance(stored, tuple) else (stored,)
    return any(name in names for name in several)
