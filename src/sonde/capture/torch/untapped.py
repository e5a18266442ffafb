"""Compiled code without taps, for the times when nobody would hear them.

A tap costs even when it is silent: what it looks at has to be written to memory, where the compiler
would have gone on with it, and the host has to call it. So what was traced is compiled a second
time without taps, in the same go, and each call takes the one of the two that is needed: training
that is not recorded runs what it would run if nobody watched, and nothing is compiled when the
schedule fires.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch
from torch.fx import GraphModule

Code = Callable[..., Any]
Compiler = Callable[[GraphModule, Any], Code]

has_saving_hooks: Final = torch._C._autograd._top_saved_tensors_default_hooks
"""What decides, if anything, how tensors are kept for backward: a checkpoint, for one."""


def both(compiler: Compiler, taps: frozenset[Any], is_heard: Callable[[], bool]) -> Compiler:
    """A compiler that makes code with taps and code without, of which each call runs one."""

    @functools.wraps(compiler)
    def compile_both(graph: GraphModule, inputs: Any) -> Code:
        bare, plain = None, None
        with suppress(Exception):  # taps that are always there are no fault
            bare = untapped(graph, taps)
        tapped = compiler(graph, inputs)
        if bare is not None:
            with suppress(Exception):
                plain = compiler(bare, inputs)
        return tapped if plain is None else _either(tapped, plain, is_heard)

    return compile_both


def _either(tapped: Code, plain: Code, is_heard: Callable[[], bool]) -> Code:
    def call(*inputs: Any) -> Any:
        # A checkpoint runs this again, in backward, and must find the same tensors kept as before.
        if has_saving_hooks(True) is not None or is_heard():
            return tapped(*inputs)
        return plain(*inputs)

    return call


def untapped(graph: GraphModule, taps: frozenset[Any]) -> GraphModule:
    """The graph without the taps in it and in what it calls. Hooks of gradients stay, and do
    nothing."""
    made = copy.deepcopy(graph.graph)
    for old, new in zip(graph.graph.nodes, made.nodes, strict=True):
        if hasattr(old, "_dynamo_source"):  # which a copy leaves out
            new._dynamo_source = old._dynamo_source
    for node in reversed(made.nodes):
        if node.target in taps or (node.target == "detach" and not node.users):
            made.erase_node(node)
    module = GraphModule(graph, made)
    for name, body in list(module.named_children()):
        if isinstance(body, GraphModule):
            setattr(module, name, untapped(body, taps))
    for name, value in vars(graph).items():
        vars(module).setdefault(name, value)
    module.meta = dict(graph.meta)
    return module
