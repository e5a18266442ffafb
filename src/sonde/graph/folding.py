"""Folding: what repeats in a model, so that eighty equal blocks are drawn as one.

Two calls are alike when their modules are of the same type, say the same of themselves, took and
gave tensors of the same shapes, and the same holds for everything inside them. A run of alike
neighbours whose paths differ in one number (`h.0`, `h.1`, ...) or that are calls of the same module
folds into one. Sequences of a few neighbours that repeat (linear layer, activation, linear layer,
activation, ...) fold too: each place of the sequence is one. The same is done for the tree of
modules, called or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Literal, TypeVar

from sonde.graph.model import Graph, Node
from sonde.record import GraphEdge, GraphModule

MIN_RUN: Final = 3
"""Neighbours that are folded: two are as easily seen as one with a number on it."""

MAX_PERIOD: Final = 6
"""The longest sequence of neighbours that is looked for as a repeat."""

Flow = Literal["none", "chain", "parallel", "mixed"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fold:
    """One or more alike neighbours; the first stands for all. `flow` says how data goes through."""

    members: tuple[Node, ...]
    flow: Flow = "none"

    @property
    def first(self) -> Node:
        return self.members[0]

    @property
    def id(self) -> str:
        return self.first.id


@dataclass(frozen=True, slots=True)
class FoldedLevel:
    """A level with its repeats folded; edges join the first members of folds."""

    folds: tuple[Fold, ...]
    edges: tuple[GraphEdge, ...]


class Folder:
    """Folds levels of one graph. Shapes are compared once, when they are first needed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def _shapes(self) -> dict[str, int]:
        """A number per node that is the same for alike nodes."""
        extras = {m.path: m.extra for m in self._graph.modules}
        numbers: dict[object, int] = {}
        shapes: dict[str, int] = {}
        for node in _inside_first(self._graph):
            inner = tuple(shapes[n.id] for n in self._graph.inside.get(node.id, ()))
            key = (node.kind, node.type, extras.get(node.module), node.inputs, node.outputs, inner)
            shapes[node.id] = numbers.setdefault(key, len(numbers))
        return shapes

    def fold(
        self, nodes: Sequence[Node], edges: Iterable[GraphEdge], *, unfolded: Iterable[str] = ()
    ) -> FoldedLevel:
        """The level with runs of alike neighbours folded, except those that begin with the ids
        in `unfolded`; `*` stands for all."""
        kept_open = frozenset(unfolded)
        folds: list[Fold] = []
        repeat: dict[str, tuple[str, int]] = {}
        for runs in repeats_of(nodes, self._is_alike):
            is_open = "*" in kept_open or any(run[0].id in kept_open for run in runs)
            if is_open:
                folds += [Fold((node,)) for several in zip(*runs, strict=True) for node in several]
                continue
            folds += [Fold(tuple(run)) for run in runs]
            if len(runs) > 1:
                repeat |= {n.id: (runs[0][0].id, i) for run in runs for i, n in enumerate(run)}
        home = {node.id: fold.id for fold in folds for node in fold.members}
        chained: set[str] = set()
        outer: dict[tuple[str, str], int] = {}
        inner: dict[str, set[tuple[str, str]]] = {}
        for edge in edges:
            source, target = home[edge.source], home[edge.target]
            (left, i), (right, j) = (
                repeat.get(edge.source, ("", 0)),
                repeat.get(edge.target, ("", 0)),
            )
            if left and left == right and i != j:
                chained.add(left)
            if source == target and edge.source != edge.target:
                inner.setdefault(source, set()).add((edge.source, edge.target))
            else:
                known = outer.get((source, target), 0)
                outer[source, target] = max(known, edge.count)
        return FoldedLevel(
            tuple(
                Fold(
                    f.members,
                    "chain"
                    if repeat.get(f.id, ("", 0))[0] in chained
                    else _flow(f.members, inner.get(f.id, set())),
                )
                for f in folds
            ),
            tuple(GraphEdge(source, target, n) for (source, target), n in outer.items()),
        )

    def run_of(self, node: Node) -> tuple[Node, ...]:
        """The alike neighbours that the node is one of, itself among them."""
        for runs in repeats_of(self._graph.inside.get(node.parent, ()), self._is_alike):
            for run in runs:
                if any(n.id == node.id for n in run):
                    return tuple(run)
        return (node,)

    def _is_alike(self, a: Node, b: Node) -> bool:
        return (
            a.kind == b.kind == "module"
            and self._shapes[a.id] == self._shapes[b.id]
            and _are_numbered(a, b)
        )


@dataclass(frozen=True, slots=True)
class Branch:
    """A module in the tree. `children` are indices into the tree."""

    module: GraphModule
    name: str
    parent: int
    depth: int
    children: tuple[int, ...]


class ModuleTree:
    """The modules by their paths, depth first, each after its parent. Paths that lead to a module
    but belong to none that is known get one without a type."""

    def __init__(self, modules: Iterable[GraphModule]) -> None:
        known = {m.path: m for m in modules}
        below = _children_by_path(known)
        places: list[tuple[str, int, int]] = []
        children: list[list[int]] = []
        waiting: list[tuple[str, int, int]] = [("", -1, 0)]
        while waiting:
            path, parent, depth = waiting.pop()
            at = len(places)
            places.append((path, parent, depth))
            children.append([])
            if parent >= 0:
                children[parent].append(at)
            waiting.extend((child, at, depth + 1) for child in reversed(below.get(path, [])))
        self.index = {path: i for i, (path, _, _) in enumerate(places)}
        self.branches = [
            Branch(known.get(path) or GraphModule(path, ""), _own_name(path), parent, depth, inner)
            for (path, parent, depth), inner in zip(places, map(tuple, children), strict=True)
        ]

    @cached_property
    def _shapes(self) -> list[int]:
        numbers: dict[object, int] = {}
        shapes = [0] * len(self.branches)
        for i in range(len(self.branches) - 1, -1, -1):  # children come after their parents
            b = self.branches[i]
            inner = tuple((self.branches[c].name, shapes[c]) for c in b.children)
            key = (b.module.type, b.module.extra, b.module.parameters, inner)
            shapes[i] = numbers.setdefault(key, len(numbers))
        return shapes

    def runs(self, i: int) -> list[list[int]]:
        """The children of a branch, repeats with numbers for names together."""

        def is_alike(a: int, b: int) -> bool:
            names = (self.branches[a].name, self.branches[b].name)
            return self._shapes[a] == self._shapes[b] and all(n.isdecimal() for n in names)

        return [run for runs in repeats_of(self.branches[i].children, is_alike) for run in runs]

    @cached_property
    def folded_path(self) -> Mapping[str, tuple[str, str]]:
        """For each path that of the module that stands for it when all repeats are folded, and the
        same with a star in place of each number that is folded."""
        found: dict[str, tuple[str, str]] = {"": ("", "")}
        for i, branch in enumerate(self.branches):
            home, pattern = found[branch.module.path]
            for run in self.runs(i):
                first = self.branches[run[0]].name
                star = "*" if len(run) > 1 else first
                paths = (_joined(home, first), _joined(pattern, star))
                found.update((self.branches[member].module.path, paths) for member in run)
        return found


def repeats_of(items: Sequence[T], is_alike: Callable[[T, T], bool]) -> Iterator[list[list[T]]]:
    """Repeated sequences of neighbours, the shortest first: of each the list of those that are at
    its first place, at its second, and so on. What does not repeat comes alone."""
    at = 0
    while at < len(items):
        period, times = 1, 1
        for length in range(1, MAX_PERIOD + 1):
            found = _times(items, at, length, is_alike)
            if found >= MIN_RUN:
                period, times = length, found
                break
        end = at + period * times
        yield [list(items[at + place : end : period]) for place in range(period)]
        at = end


def _times(items: Sequence[T], at: int, length: int, is_alike: Callable[[T, T], bool]) -> int:
    """How often the `length` items from `at` on come one after the other."""
    end = at + length
    while end < len(items) and is_alike(items[at + (end - at) % length], items[end]):
        end += 1
    return (end - at) // length


def _are_numbered(a: Node, b: Node) -> bool:
    """Whether two calls are of the same module, or of modules that differ in one number."""
    if a.module == b.module:
        return True
    if a.call != b.call:
        return False
    left, right = a.module.split("."), b.module.split(".")
    if len(left) != len(right):
        return False
    differing = [(x, y) for x, y in zip(left, right, strict=True) if x != y]
    return len(differing) == 1 and all(part.isdecimal() for part in differing[0])


def _flow(members: Sequence[Node], inner: set[tuple[str, str]]) -> Flow:
    if len(members) == 1:
        return "none"
    if not inner:
        return "parallel"
    ids = [node.id for node in members]
    return "chain" if inner == set(pairwise(ids)) else "mixed"


def _inside_first(graph: Graph) -> Iterator[Node]:
    """Every node, each after all that is inside it."""
    order: list[Node] = []
    waiting = list(graph.inside.get("", ()))
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting.extend(graph.inside.get(node.id, ()))
    return reversed(order)


def _children_by_path(known: Iterable[str]) -> dict[str, list[str]]:
    """The paths right below each path, in order, also of paths that only lead to others."""
    found: dict[str, dict[str, None]] = {}
    for path in known:
        at = path
        while at:
            above = at.rpartition(".")[0]
            siblings = found.setdefault(above, {})
            if at in siblings:
                break
            siblings[at] = None
            at = above
    return {path: list(below) for path, below in found.items()}


def _joined(above: str, name: str) -> str:
    return f"{above}.{name}" if above else name


def _own_name(path: str) -> str:
    return path.rpartition(".")[2]
