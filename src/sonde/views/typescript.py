"""Types for the page, written from the specs and questions: `python -m sonde.views.typescript`.

The result is `web/src/api.gen.ts`; a test compares it with what this module writes.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Literal, Union, get_args, get_origin, get_type_hints

from sonde.record import KINDS
from sonde.views import envelope, questions, specs
from sonde.views.routes import ROUTES
from sonde.views.specs import numbers, pairs, parts, runs, structure, traced

_ARRAYS = {
    specs.F64: "Float64Array",
    specs.F32: "Float32Array",
    specs.I32: "Int32Array",
    specs.U8: "Uint8Array",
}

_SPECS = (parts, runs, structure, numbers, pairs, traced)

_LITERALS = {get_args(v): n for n, v in vars(parts).items() if get_origin(v) is Literal}

_ANSWER = """/** Every answer, decoded (web/API.md). `run` is null where none was asked about. */
export interface Answer<T> {
  api: number;
  version: string;
  view: string;
  run: RunState | null;
  spec: T;
}"""


def generate() -> str:
    """The whole file."""
    found = [
        "// Written by `python -m sonde.views.typescript`. Do not edit.",
        f"export const API = {envelope.API};",
        f"export const KINDS = [{', '.join(_quoted(k) for k in KINDS)}] as const;",
        "export const EMPTY = 0;\nexport const NUMBER = 1;\nexport const NONFINITE = 2;",
        "\n".join(f"export type {n} = {_union(a)};" for a, n in _LITERALS.items()),
        _ANSWER,
        *(_interface(c, is_question=False) for c in _specs()),
        *(_interface(c, is_question=True) for c in _questions()),
        _routes(),
    ]
    return "\n\n".join(found) + "\n"


def _dataclasses(module: types.ModuleType) -> Iterator[type]:
    """The dataclasses of a module in the order in which they stand there."""
    found = [
        c
        for c in vars(module).values()
        if isinstance(c, type) and is_dataclass(c) and c.__module__ == module.__name__
    ]
    yield from sorted(found, key=lambda c: inspect.getsourcelines(c)[1])


def _specs() -> list[type]:
    """Specs of ours, then those that a view brings along in its own module."""
    found = [c for m in _SPECS for c in _dataclasses(m)]
    for route in ROUTES.values():
        _reach(route.answer, found)
    return found


def _questions() -> list[type]:
    asked = [*_dataclasses(questions), *(route.question for route in ROUTES.values())]
    return list(dict.fromkeys(asked))


def _reach(hint: object, found: list[type]) -> None:
    """Add the dataclasses that a type is made of, those that others need first."""
    if isinstance(hint, type) and is_dataclass(hint):
        if hint not in found:
            for inside in get_type_hints(hint).values():
                _reach(inside, found)
            found.append(hint)
        return
    for inside in get_args(hint):
        _reach(inside, found)


def _interface(of: type, *, is_question: bool) -> str:
    hints = get_type_hints(of)
    lines = []
    for f in fields(of):
        has_default = f.default is not MISSING or f.default_factory is not MISSING
        mark = "?" if is_question and has_default else ""
        lines.append(f"  {f.name}{mark}: {_type(hints[f.name], is_question=is_question)};")
    return f"{_comment(of)}export interface {of.__name__} {{\n" + "\n".join(lines) + "\n}"


def _comment(of: type) -> str:
    text = inspect.cleandoc(of.__doc__ or "")
    body = "\n".join(f" * {line}".rstrip() for line in text.splitlines())
    return f"/**\n{body}\n */\n" if text else ""


def _routes() -> str:
    lines = [
        f"  {r.name}: {{ question: {r.question.__name__}; answer: {r.answer.__name__} }};"
        for r in ROUTES.values()
    ]
    return (
        "/** Every view: `GET api/<name>?<question>`. */\n"
        "export interface Routes {\n" + "\n".join(lines) + "\n}"
    )


def _type(hint: object, *, is_question: bool) -> str:
    for array, name in _ARRAYS.items():
        if hint == array:
            return name
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _LITERALS.get(inside, _union(inside))
    if origin in {Union, types.UnionType}:
        kept = [a for a in inside if not (is_question and a is type(None))]
        return " | ".join(_type(a, is_question=is_question) for a in kept)
    if origin is tuple:
        one = _type(inside[0], is_question=is_question)
        return f"({one})[]" if "|" in one else f"{one}[]"
    simple = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
    assert isinstance(hint, type)
    return simple.get(hint, hint.__name__)


def _union(words: tuple[str, ...]) -> str:
    return " | ".join(_quoted(w) for w in words)


def _quoted(text: str) -> str:
    return f'"{text}"'


if __name__ == "__main__":
    sys.stdout.write(generate())
