"""The module tree with its repeats folded, and searching in it."""

from __future__ import annotations

from typing import Final

from sonde.graph.folding import Branch
from sonde.store import patterns
from sonde.views import ids
from sonde.views.questions import SearchQuestion, TreeQuestion
from sonde.views.runs.opened_run import MAX_LABEL, MAX_PATH, OpenedRun, RunStructure, shown
from sonde.views.specs import Hit, Hits, Instance, Tree, TreeNode

_MAX_NODES: Final = 5000
_MAX_INSTANCES: Final = 1024


def answer(subject: OpenedRun, question: TreeQuestion) -> Tree:
    """The modules below one of them, depth first. Inside repeats only the first is shown."""
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


def search(subject: OpenedRun, question: SearchQuestion) -> Hits:
    """Modules whose path matches, those that match closest to their end first."""
    structure = subject.structure
    branches = structure.tree.branches
    meant = _matching(question.q, [(b.module.path, b.module.type) for b in branches])
    found = [b for b, is_meant in zip(branches, meant, strict=True) if is_meant]
    found.sort(
        key=lambda b: (_rank(b.module.path, question.q), structure.tree.index[b.module.path])
    )
    hits = tuple(_hit(structure, b) for b in found[: question.limit])
    return Hits(hits, max(len(found) - question.limit, 0))


def _node(structure: RunStructure, run: list[int], parent: int, depth: int) -> TreeNode:
    branches = structure.tree.branches
    first = branches[run[0]]
    path = first.module.path
    label = first.name or first.module.type or ids.ROOT_LABEL
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


def _hit(structure: RunStructure, branch: Branch) -> Hit:
    path = branch.module.path
    return Hit(
        module=ids.of_name(path),
        node=structure.node_of(path),
        path=shown(path or ids.ROOT_LABEL, MAX_PATH),
        type=shown(branch.module.type, MAX_LABEL),
        kinds=structure.kinds_of(path),
    )


def _matching(q: str, modules: list[tuple[str, str]]) -> list[bool]:
    """For each path, with its type, whether it is meant. Words may be in either; all else is only
    looked for in paths, and only in as much of them as can be shown."""
    paths = [path for path, _ in modules]
    if q.startswith("="):
        wanted = "" if q == "=." else q[1:]
        return [path == wanted for path in paths]
    shorter = [path[:MAX_PATH] for path in paths]
    if q.startswith(patterns.EXPRESSION):
        return patterns.search(q.removeprefix(patterns.EXPRESSION), shorter, ignore_case=True)
    if patterns.is_pattern(q):
        glob = patterns.glob_matcher(q.lower())
        return [glob(path.lower()) for path in shorter]
    words = q.lower().split()
    texts = [f"{path} {kind}".lower() for path, kind in modules]
    return [all(word in text for word in words) for text in texts]


def _rank(path: str, q: str) -> int:
    low, wanted = path.lower(), q.lower()
    if low == wanted:
        return 0
    if low.endswith(f".{wanted}"):
        return 1
    return 2 if low.endswith(wanted) else 3
