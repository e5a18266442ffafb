"""Taps that look at the narrow original of a wider copy.

Under autocast, the gradient of what a float32 module returns is a copy of numbers in 16 bits, which
generated code would not write to memory if there were no tap. The numbers are the same.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.fx import Graph, Node

_NARROW: Final = (torch.bfloat16, torch.float16)


def narrowed(tap: Any) -> AbstractContextManager[Any]:
    """Inside of this block, torch's own code generator has taps look through wider copies; unless
    somebody has given it something else to do at that point."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Narrow(CustomGraphPass):
        def __call__(self, graph: Graph) -> None:
            for node in graph.find_nodes(op="call_function", target=tap):
                source = _narrower(node.args[0])
                if source is not None:
                    node.update_arg(0, source)

        def uuid(self) -> str:
            return "sonde-narrow-1"  # of what it does: generated code is kept by this, too

    if config.joint_custom_post_pass is not None:
        return nullcontext()
    patched: AbstractContextManager[Any] = config.patch(joint_custom_post_pass=Narrow())
    return patched


def _narrower(x: Any) -> Node | None:
    """What a tensor is a wider copy of."""
    if not isinstance(x, Node) or x.target is not torch.ops.prims.convert_element_type.default:
        return None
    source, to = x.args
    if not isinstance(source, Node) or to != torch.float32:
        return None
    return source if source.meta["val"].dtype in _NARROW else None
