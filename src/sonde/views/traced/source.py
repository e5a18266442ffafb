"""The source of traced methods, with what each line gave to the variables that were traced.

A value is shown by its latest: a tensor by dtype, shape and statistics, all else by a short text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sonde._errors import SondeError
from sonde.store.reading import traces
from sonde.store.reading.selection import Selection
from sonde.store.tensors import TraceRow

if TYPE_CHECKING:
    from sonde.store.reading.run import Run

_MAX_TEXT: Final = 60
_MAX_PARTS: Final = 200
_GRAD: Final = "@grad"


@dataclass(frozen=True, slots=True)
class AssignedValue:
    """The latest value that a line has given to a variable."""

    variable: str
    """As it is called in the method; `return` for what it returns."""
    step: int
    rank: int
    call: int
    text: str
    """Of what is no tensor."""
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    not_finite: int = 0


@dataclass(frozen=True, slots=True)
class AnnotatedLine:
    """A line of source."""

    number: int
    text: str
    assigned: list[AssignedValue] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AnnotatedMethod:
    """A method of a module, line by line."""

    name: str
    lines: list[AnnotatedLine]
    elsewhere: list[AssignedValue] = field(default_factory=list)
    """Of which the line is not in the source: the file was another one by then."""


def methods(
    run: Run, pattern: str = "**", *, step: int | None = None, rank: int | None = None
) -> list[AnnotatedMethod]:
    """The traced methods that a pattern stands for, as they were at a step or at the end.

    Raises:
        SondeError: if there is none.
    """
    sources = traces.sources(run)
    chosen = [name for name in sources if traces.matches(pattern, name)]
    if not chosen:
        known = ", ".join(f"`{name}`" for name in list(sources)[:8])
        hint = f"There is: {known}." if known else "No method was traced in it."
        raise SondeError(f"`{pattern}` is no traced method of `{run.name}`. {hint}")
    by_method: dict[str, dict[int, list[AssignedValue]]] = {name: {} for name in chosen}
    found = traces.latest(run, step=step, rank=rank)
    for n, name in enumerate(found.names):
        method = _method_of(name, sources)
        if method in by_method:
            value = _assigned(found, n, _inside(name, method))
            by_method[method].setdefault(found.lines[n], []).append(value)
    return [_method(sources[name], by_method[name]) for name in chosen]


def around(run: Run, row: TraceRow, context: int) -> tuple[str, list[tuple[int, str]]]:
    """The method in which a row of `traces` got its value, and its lines around that one.

    Of the same rank and attempt: the source of another may be another one. Without a line that is
    in a source that was kept there is nothing.
    """
    name, line = row["name"] or "", row["line"]
    parts = name.removesuffix(_GRAD).split(".")[:_MAX_PARTS]
    names = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    chosen = Selection(["kind = 'source'"]).equal("rank", row["rank"])
    chosen.equal("attempt", row["attempt"]).one_of("name", names)
    found = traces.sources(run, chosen)
    for source in sorted(found.values(), key=lambda s: -len(s.name)):
        lines = _method(source, {}).lines
        at = -1 if line is None or source.first_line is None else line - source.first_line
        if 0 <= at < len(lines):
            near = lines[max(0, at - context) : at + context + 1]
            return source.name, [(line.number, line.text) for line in near]
    return "", []


def _method(
    source: traces.TracedSource, assigned: dict[int, list[AssignedValue]]
) -> AnnotatedMethod:
    text = source.text.splitlines()
    indent = min((len(t) - len(t.lstrip()) for t in text if t.strip()), default=0)
    lines = [
        AnnotatedLine(number, line[indent:], assigned.pop(number, []))
        for number, line in enumerate(text, source.first_line)
    ]
    return AnnotatedMethod(
        source.name, lines, [each for rest in assigned.values() for each in rest]
    )


def _method_of(name: str, methods: Iterable[str]) -> str:
    """The method that a variable belongs to; `""` if it is the output of a module."""
    plain = name.removesuffix(_GRAD)
    fitting = [m for m in methods if plain == m or plain.startswith(f"{m}.")]
    return max(fitting, key=len, default="")


def _inside(name: str, method: str) -> str:
    end = _GRAD if name.endswith(_GRAD) else ""
    inner = name.removesuffix(_GRAD)[len(method) + 1 :]
    return (inner or "return") + end


def _assigned(found: traces.Traced, n: int, variable: str) -> AssignedValue:
    when = (found.iterations[n], found.ranks[n], found.calls[n])
    value = found.values[n]
    if found.dtypes[n] is None or isinstance(value, traces.Lost):
        text = value.reason if isinstance(value, traces.Lost) else text_of(value)
        return AssignedValue(variable, *when, text)
    plain = AssignedValue(variable, *when, "", found.dtypes[n], found.shapes[n])
    return _with_statistics(plain, value)


def _with_statistics(assigned: AssignedValue, array: NDArray[np.generic]) -> AssignedValue:
    numbers = np.abs(array) if np.iscomplexobj(array) else array
    numbers = numbers.astype(np.float64).reshape(-1)
    finite = numbers[np.isfinite(numbers)]
    found = replace(assigned, not_finite=int(numbers.size - finite.size))
    if not finite.size:
        return found
    return replace(
        found,
        mean=float(finite.mean()),
        std=float(finite.std()),
        low=float(finite.min()),
        high=float(finite.max()),
    )


def text_of(value: object, limit: int = _MAX_TEXT) -> str:
    """A text for whatever was traced, cut where it is longer."""
    with np.printoptions(threshold=4, edgeitems=1, precision=3):
        text = repr(value).replace("\n", " ")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
