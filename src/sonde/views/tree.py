"""The module tree with its repeats folded, and searching in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Final

from sonde._errors import SondeError
from sonde.graph.folding import Branch
from sonde.views import ids
from sonde.views.questions import SearchQuestion, TreeQuestion
from sonde.views.specs import Hit, Hits, Instance, Tree, TreeNode
from sonde.views.subject import MAX_LABEL, MAX_PATH, Structure, Subject, shown

_MAX_NODES: Final = 5000
_MAX_INSTANCES: Final = 1024
_MAX_EXPRESSION: Final = 100
_MAX_REPEATS: Final = 3


def answer(subject: Subject, question: TreeQuestion) -> Tree:
    """The modules below one of them, depth first. Inside of repeats only the first is shown."""
    structure = subject.structure
    top = structure.tree.index[subject.path(question.module or ids.ROOT)]
    nodes: list[TreeNode] = []
    left_out = 0
    waiting: list[tuple[list[int], int, int]] = [([top], -1, 0)]
    while waiting:
        run, parent, depth = waiting.pop()
        if len(nodes) >= _MAX_NODES:
            left_out += 1
            continue
        at = len(nodes)
        nodes.append(_node(structure, run, parent, depth))
        runs = structure.tree.runs(run[0])
        if not question.fold and run[0] == top:
            runs = [[i] for i in structure.tree.branches[top].children]
        waiting.extend((below, at, depth + 1) for below in reversed(runs))
    return Tree(tuple(nodes), left_out)


def search(subject: Subject, question: SearchQuestion) -> Hits:
    """Modules whose path matches, those that match closest to their end first."""
    structure = subject.structure
    matches = _matcher(question.q)
    found = [b for b in structure.tree.branches if matches(b.module.path)]
    found.sort(
        key=lambda b: (_rank(b.module.path, question.q), structure.tree.index[b.module.path])
    )
    hits = tuple(_hit(structure, b) for b in found[: question.limit])
    return Hits(hits, max(len(found) - question.limit, 0))


def _node(structure: Structure, run: list[int], parent: int, depth: int) -> TreeNode:
    branches = structure.tree.branches
    first = branches[run[0]]
    path = first.module.path
    label = first.name or first.module.type or "model"
    if len(run) > 1:
        label = f"{first.name}…{branches[run[-1]].name}"
    instances = (
        tuple(
            Instance(
                structure.node_of(branches[i].module.path),
                ids.of_name(branches[i].module.path),
                shown(branches[i].name, MAX_LABEL),
            )
            for i in run[:_MAX_INSTANCES]
        )
        if len(run) > 1
        else ()
    )
    return TreeNode(
        module=ids.of_name(path),
        node=structure.node_of(path),
        parent=parent,
        depth=depth,
        label=shown(label, MAX_LABEL),
        path=shown(path, MAX_PATH),
        type=shown(first.module.type, MAX_LABEL),
        count=len(run),
        instances=instances,
        children=len(first.children),
        parameters=first.module.parameters,
        kinds=structure.kinds_of(path),
    )


def _hit(structure: Structure, branch: Branch) -> Hit:
    path = branch.module.path
    return Hit(
        module=ids.of_name(path),
        node=structure.node_of(path),
        path=shown(path or "model", MAX_PATH),
        type=shown(branch.module.type, MAX_LABEL),
        kinds=structure.kinds_of(path),
    )


def _matcher(q: str) -> Callable[[str], bool]:
    if q.startswith("="):
        wanted = "" if q == "=." else q[1:]
        return lambda path: path == wanted
    if q.startswith("re:"):
        expression = _expression(q[3:])
        return lambda path: expression.search(path[:MAX_PATH]) is not None
    if any(c in q for c in "*?["):
        glob = re.compile(translate(q.lower()))
        return lambda path: glob.match(path[:MAX_PATH].lower()) is not None
    words = q.lower().split()
    return lambda path: all(word in path.lower() for word in words)


def _expression(text: str) -> re.Pattern[str]:
    """A regular expression; refused if it could take for ever: one with repeated groups, or with
    more than a few repeats."""
    repeats = len(re.findall(r"[+*{]", text))
    if len(text) > _MAX_EXPRESSION or repeats > _MAX_REPEATS or re.search(r"\)[+*{]", text):
        raise SondeError(f"`re:{shown(text, 60)}` is too involved. Use a glob: `*.attn.*`.")
    try:
        return re.compile(text, re.IGNORECASE)
    except (re.error, RecursionError) as error:
        raise SondeError(f"`re:{shown(text, 60)}` is not a regular expression: {error}.") from None


def _rank(path: str, q: str) -> int:
    low, wanted = path.lower(), q.lower()
    if low == wanted:
        return 0
    if low.endswith(f".{wanted}"):
        return 1
    return 2 if low.endswith(wanted) else 3
