"""Taps that look at the narrow original of a wider copy.

Under autocast, the gradient of what a float32 module returns is a copy of numbers in 16 bits, which
generated code would not write to memory if there were no tap. The numbers are the same.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.fx import Graph, Node

_NARROW: Final = (torch.bfloat16, torch.float16)


def narrow(graph: Graph, tap: Any) -> None:
    """Have taps look through wider copies."""
    for node in graph.find_nodes(op="call_function", target=tap):
        source = _narrower(node.args[0])
        if source is not None:
            node.update_arg(0, source)


def _narrower(x: Any) -> Node | None:
    """What a tensor is a wider copy of."""
    if not isinstance(x, Node) or x.target is not torch.ops.prims.convert_element_type.default:
        return None
    source, to = x.args
    if not isinstance(source, Node) or to != torch.float32:
        return None
    return source if source.meta["val"].dtype in _NARROW else None
