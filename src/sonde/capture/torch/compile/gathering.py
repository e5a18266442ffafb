"""Taps of generated code that are gathered: several tensors that are read by one operator.

Most of what a tap costs is the call of it, and where memory is fast the launch of a kernel. The
tensors of a few layers can as well be read together, when the last of them is there. Those before
it are kept that long, which is little: many are kept for backward anyway, the others are counted.

This is done to graphs in which nothing is written to in place: what a tensor is does not depend on
when it is read. Where a graph does write, nothing is kept across it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from sonde.capture.native import MOST_TOGETHER

_SHARE: Final = 0.02
"""Bytes that may be kept for the sake of taps, of those that a graph is given and returns, and of
what its modules return: that is about what a training's memory is full of."""

_READ_TOGETHER: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})


class TapIdentity(NamedTuple):
    """Whose tap it is: those of one owner can be gathered, gradients by themselves."""

    owner: str
    is_gradient: bool


def gather(
    graph: Graph, tap: Any, taps: Any, who: Callable[[int], TapIdentity | None], *, grads: bool
) -> None:
    """Have one `taps(xs, keys)` in place of some calls of `tap(x, key)` each, if there is a native
    path for it: of taps on gradients, or of the others. `who` is asked for each key."""
    if MOST_TOGETHER < 2:
        return
    nodes = list(graph.nodes)
    asked = {n: found for n in nodes if n.target is tap and (found := who(n.args[1])) is not None}
    ends = [n for n in nodes if n.op == "placeholder"] + graph.output_node().all_input_nodes
    kept_anyway = frozenset(ends)
    returned = {n.args[0] for n, found in asked.items() if not found.is_gradient}
    allowed = int(_SHARE * sum(_bytes(n) or 0 for n in kept_anyway | returned))
    open_: dict[Hashable, _TapGroup] = {}
    for node in nodes:
        if node.target is not tap:
            if _writes(node):
                for group in open_.values():
                    group.close(graph, taps)
                open_.clear()
            continue
        x, found = node.args[0], asked.get(node)
        size = _bytes(x)
        if found is None or found.is_gradient != grads or size is None:
            continue
        if x.meta["val"].dtype not in _READ_TOGETHER:
            continue
        place = (found, x.meta["val"].device)
        group = open_.setdefault(place, _TapGroup())
        more = 0 if x in kept_anyway else size
        if group.nodes and (group.kept + more > allowed or len(group.nodes) == MOST_TOGETHER):
            group.close(graph, taps)
            group = open_[place] = _TapGroup()
        group.nodes.append(node)
        group.kept += more
    for group in open_.values():
        group.close(graph, taps)


class _TapGroup:
    """Calls of taps, in order; and how many bytes are kept until the last of them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.kept = 0

    def close(self, graph: Graph, taps: Any) -> None:
        if len(self.nodes) < 2:
            return
        tensors, keys = (list(each) for each in zip(*(n.args for n in self.nodes), strict=True))
        last = self.nodes[-1]
        with graph.inserting_after(last):
            made = graph.call_function(taps, (tensors, keys))
        made.meta = dict(last.meta)
        for node in self.nodes:
            graph.erase_node(node)


def _bytes(x: Any) -> int | None:
    """Of the tensor that a node stands for; None if that is not known before the code runs."""
    value = x.meta.get("val") if isinstance(x, Node) else None
    if not isinstance(value, Tensor) or not isinstance(value.numel(), int):
        return None
    return value.numel() * value.element_size()


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
