"""What torch's own code generator is told to do about taps, before it generates code."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch.fx import Graph

from sonde.capture.torch.compile import operators
from sonde.capture.torch.compile.gathering import gather
from sonde.capture.torch.compile.narrowing import narrow


def rewriting() -> AbstractContextManager[Any]:
    """Inside of this block, taps look through wider copies and are gathered; unless somebody has
    given the generator something else to do at these points."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Whole(CustomGraphPass):
        """For forward and backward as one: the latter is generated later, when nobody asks us."""

        def __call__(self, graph: Graph) -> None:
            narrow(graph, operators.TAP)
            gather(graph, operators.TAP, operators.TAPS, operators.who, grads=True)

        def uuid(self) -> str:
            return "sonde-whole-1"  # of what it does: generated code is kept by this, too

    class Forward(CustomGraphPass):
        """For forward, when it is known what is kept for backward."""

        def __call__(self, graph: Graph) -> None:
            gather(graph, operators.TAP, operators.TAPS, operators.who, grads=False)

        def uuid(self) -> str:
            return "sonde-forward-1"

    wanted = {"joint_custom_post_pass": Whole(), "post_grad_custom_pre_pass": Forward()}
    free = {name: step for name, step in wanted.items() if getattr(config, name) is None}
    patched: AbstractContextManager[Any] = config.patch(free)
    return patched
