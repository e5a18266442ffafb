"""Which taps in a graph see what the compiled code returns: hooks outside of it see it again.

The output of a model is often its largest tensor, and that of its last module too: the one is seen
outside of compiled code and the other one inside, and so are their gradients. What is found here
lets each be read once.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

_TRIVIAL: Final = frozenset({"view_as", torch._C._set_grad_enabled})
_HOOKS: Final = frozenset({"register_hook", "autograd_function_apply"})
"""What compilers make of a hook on a tensor: something that takes it and gives it back."""


def returned(graph: GraphModule, tap: Any, unchanged: Collection[int]) -> set[int]:
    """Keys of taps whose tensor is returned, of those to whose tensors nothing was written since;
    and of taps whose gradient is that of what is returned, because there is no other use of it."""
    sources: dict[Node, Node] = {}
    gradients: dict[Node, set[int]] = defaultdict(set)
    for node in graph.graph.nodes:
        keys = _hooked(graph, node, tap)
        is_same = node.target == "detach" or keys
        if node.target is operator.getitem:
            is_same = bool(_hooked(graph, node.args[0], tap))
        tensors = [n for n in node.all_input_nodes if n.op != "get_attr"]
        sources[node] = sources[tensors[0]] if is_same and tensors else node
        gradients[sources[node]] |= keys
    uses: dict[Node, list[Node]] = defaultdict(list)
    for node, source in sources.items():
        uses[source] += [user for user in node.users if sources[user] is not source]
    found: set[int] = set()
    results = [sources[n] for n in _flat(graph.graph.output_node().args[0])]
    for source in set(results):
        seen = {user.args[1] for user in uses[source] if user.target is tap}
        found.update(key for key in unchanged if key in seen)
        others = [u for u in uses[source] if u.op != "output" and u.target is not tap]
        if results.count(source) == 1 and not others:
            found |= gradients[source]
    return found


def _hooked(graph: GraphModule, node: Node, tap: Any) -> set[int]:
    """Keys of the taps in a hook, if that is what the node is and if it does nothing else."""
    if getattr(node.target, "_name", None) not in _HOOKS:
        return set()
    parts = [n.target for n in node.all_input_nodes if n.op == "get_attr"]
    bodies = [b for part in parts if isinstance(b := getattr(graph, str(part)), GraphModule)]
    calls = [n for body in bodies for n in body.graph.nodes if n.op.startswith("call_")]
    keys: set[int] = {n.args[1] for n in calls if n.target is tap}
    return keys if all(n.target is tap or n.target in _TRIVIAL for n in calls) else set()


def _flat(arguments: Any) -> list[Node]:
    return [n for n in arguments if isinstance(n, Node)] if isinstance(arguments, tuple) else []
