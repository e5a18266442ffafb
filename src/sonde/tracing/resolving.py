"""Resolving: from paths to the places in a model where their values will appear.

All that can be known before the model runs is checked here, so that a path that cannot match is an
error at the start and not an empty result at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol

from sonde._errors import SondeError
from sonde.tracing.functions.mechanism import names_in
from sonde.tracing.functions.methods import Method, method_of
from sonde.tracing.paths import (
    ANY_DEPTH,
    RETURN,
    Path,
    is_wild,
    matches,
    parse,
    quoted,
    suggestion,
    under,
)

_MAX_NAMES: Final = 20_000
"""Names among which the nearest is looked for."""


class ModelTree(Protocol):
    """A model as a tree of named modules. `Any`: of whichever framework."""

    @property
    def root(self) -> object: ...

    def methods(self, module: Any) -> Iterable[str]:
        """The names of the methods that a wildcard can stand for."""

    def children(self, module: Any) -> Iterable[tuple[str, object]]:
        """The modules inside a module, by name; wrappers are passed through."""


@dataclass(frozen=True, slots=True)
class TracedPlace:
    """Where values of a path appear: in a method of a module, or as a module's output.

    `inner` is the way from there: a variable (or `return`), then into its value. Nothing: what is
    returned.
    """

    path: Path
    module_path: str
    module: object
    method: Method | None
    inner: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        name = self.method.name if self.method else None
        return (self.path.text, id(self.module), name, self.inner)


def resolve(texts: Iterable[str], tree: ModelTree) -> list[TracedPlace]:
    """The places of all paths.

    Raises:
        SondeError: if a path cannot match anything; with the nearest names.
    """
    if isinstance(texts, str):
        texts = [texts]
    paths = [parse(text) for text in texts]
    if not paths:
        raise SondeError("`paths` is empty. Name something to trace, such as `forward.x`.")
    places: list[TracedPlace] = []
    for path in paths:
        found = {p.key: p for p in _walk(path, "", tree.root, path.parts, tree)}
        sound = [p for p in found.values() if _can_match(p)]
        if not sound:
            raise SondeError(_cannot_match(path, list(found.values()), tree))
        places += sound
    return places


def modules_of(tree: ModelTree) -> Iterator[tuple[str, Any]]:
    """Every module with its path, each once, the root first."""
    waiting: list[tuple[str, object]] = [("", tree.root)]
    met: set[int] = set()
    while waiting:
        path, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        yield path, module
        inside = [(under(path, name), child) for name, child in tree.children(module)]
        waiting.extend(reversed(inside))


def _walk(
    path: Path,
    at: str,
    module: object,
    parts: Sequence[str],
    tree: ModelTree,
    met: tuple[int, ...] = (),
) -> Iterator[TracedPlace]:
    """Places of the rest of a path from this module on. `at` is the module's own path."""
    if not parts:
        if at:
            yield TracedPlace(path, at, module, None)
        else:
            yield from _of_method(path, at, module, "forward", ())
        return
    first, rest = parts[0], tuple(parts[1:])
    if id(module) in met:
        return
    if first == ANY_DEPTH:
        yield from _walk(path, at, module, rest, tree)
        inside = (*met, id(module))
        for name, child in tree.children(module):
            yield from _walk(path, under(at, name), child, parts, tree, inside)
        yield from _of_methods(path, at, module, "*", rest, tree)
        return
    for name, child in tree.children(module):
        if matches(first, name):
            yield from _walk(path, under(at, name), child, rest, tree)
    if is_wild(first):
        yield from _of_methods(path, at, module, first, rest, tree)
    else:
        yield from _of_method(path, at, module, first, rest)


def _of_methods(
    path: Path, at: str, module: object, pattern: str, inner: tuple[str, ...], tree: ModelTree
) -> Iterator[TracedPlace]:
    """A wildcard stands for a method only on the way to a variable, and for those of the model."""
    if not inner or inner[0] in (ANY_DEPTH, RETURN):
        return
    for name in tree.methods(module):
        if matches(pattern, name):
            yield from _of_method(path, at, module, name, inner)


def _of_method(
    path: Path, at: str, module: object, name: str, inner: tuple[str, ...]
) -> Iterator[TracedPlace]:
    method = method_of(module, name)
    if method is not None:
        yield TracedPlace(path, at, module, method, inner)


def _can_match(place: TracedPlace) -> bool:
    """Whether the method has a variable like that. What is inside it shows only later."""
    if place.method is None or not place.inner or place.inner[0] == RETURN:
        return True
    names = names_in(place.method.function.__code__)
    first = place.inner[0]
    return first == ANY_DEPTH or any(matches(first, name) for name in names)


def _cannot_match(path: Path, found: Sequence[TracedPlace], tree: ModelTree) -> str:
    kind = type(tree.root).__name__
    in_methods = [p for p in found if p.method is not None and p.inner]
    # The closest: what was meant for a module may have been taken for variables of a method.
    least = min((len(p.inner) for p in in_methods), default=0)
    closest = [p for p in in_methods if len(p.inner) == least]
    if closest and (least == 1 or not is_wild(path.parts[-least - 1])):
        return _no_variable(path, closest)
    known = list(islice(_all_names(tree), _MAX_NAMES))
    nearest = suggestion(path.text, known) or f" Names begin with {quoted(known[:5])}."
    return f"`{path.text}` matches no module and no method of {kind}.{nearest}"


def _no_variable(path: Path, places: Sequence[TracedPlace]) -> str:
    where, known = [], []
    for place in places:
        assert place.method is not None
        method = under(place.module_path, place.method.name)
        where.append(method)
        known += [under(method, n) for n in names_in(place.method.function.__code__)]
    more = f" and {len(where) - 3} more" if len(where) > 3 else ""
    nearest = suggestion(path.text, known) or f" There are {quoted(known[:10])}."
    wanted = places[0].inner[0]
    return (
        f"`{path.text}` cannot match: no variable `{wanted}` in {quoted(where[:3])}{more}.{nearest}"
    )


def _all_names(tree: ModelTree) -> Iterator[str]:
    for at, module in modules_of(tree):
        if at:
            yield at
        for name in tree.methods(module):
            yield under(at, name)
