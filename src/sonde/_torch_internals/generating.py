"""Passes over the graphs from which the compiler generates code."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch.fx import Graph

from sonde._torch_internals.registry import Internal, uses

_passes = uses(
    "graph_passes",
    "torch._inductor.custom_graph_pass:CustomGraphPass",
    "torch._inductor:config.joint_custom_post_pass",
    "torch._inductor:config.post_grad_custom_pre_pass",
    purpose="taps are gathered and look through wider copies",
    fallback="each tap is an operator of its own",
)


def is_generator(compiler: object) -> bool:
    """Whether a compiler function is the code generator that comes with torch."""
    return getattr(compiler, "_compiler_name", None) == "inductor"


def passes(
    joint: Callable[[Graph], None], forward: Callable[[Graph], None], sign: str
) -> AbstractContextManager[object]:
    """Inside this block, graphs go through these functions: forward and backward as one through
    `joint` (backward is generated later, out of reach), then forward through `forward`, when it is
    known what is kept for backward. A pass that a user has set is left in place.

    `sign` stands for what they do: generated code is kept by it, too.
    """
    found = _passes.find()
    if found is None:
        return nullcontext()
    base = found[0]
    made = {"joint_custom_post_pass": joint, "post_grad_custom_pre_pass": forward}
    from torch._inductor import config

    free = {
        name: _made(base, function, f"{sign}-{name}")
        for name, function in made.items()
        if getattr(config, name) is None
    }
    patched: AbstractContextManager[object] = config.patch(free)
    return patched


def _made(base: Internal, function: Callable[[Graph], None], sign: str) -> object:
    class GraphPass(base):  # type: ignore[misc]  # of the code generator
        def __call__(self, graph: Graph) -> None:
            function(graph)

        def uuid(self) -> str:
            return sign

    return GraphPass()
