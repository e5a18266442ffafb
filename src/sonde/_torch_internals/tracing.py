"""The state of the compiler while it traces: frames, variables, guards, side effects.

Loaded with capture, without loading the compiler: that is there when something is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final
from weakref import ref

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from sonde._torch_internals.frames import CAN_STAY_OUT, NOT_RECORDED
from sonde._torch_internals.modules import HOOK_DICTS
from sonde._torch_internals.registry import Internal, uses

CompilerFunction = Callable[[GraphModule, Sequence[object]], Callable[..., object]]

_context = uses(
    "tracing_context",
    "torch._guards:TracingContext.try_get",
    purpose="a new trace begins: a retry, a recompilation, another function",
    fallback="hooks do nothing where the compiler meets them",
    left_out=NOT_RECORDED,
).find()
_translator = uses(
    "translator",
    "torch._dynamo.symbolic_convert:InstructionTranslator.current_tx",
    purpose="hooks place operators into the graph that is being traced",
    fallback="hooks do nothing where the compiler meets them",
    left_out=NOT_RECORDED,
)


def is_ready() -> bool:
    """Whether hooks can place operators into what is being traced. Loads the compiler."""
    if _translator.is_there is None:
        _translator.find()
    return CAN_STAY_OUT and _context is not None and bool(_translator.is_there)


def trace_context() -> Internal:
    """Return what stands for the trace that is going on, None outside."""
    return None if _context is None else _context[0]()


def _output() -> Internal:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    return InstructionTranslator.current_tx().output


# -- variables ---------------------------------------------------------------------------------


def traced(name: str) -> Internal:
    """Return the compiler's record of a variable of the function that is being traced."""
    return _output().current_tx.symbolic_locals[name].realize()


def set_traced(name: str, record: Internal) -> None:
    """Set a variable of the function that is being traced."""
    _output().current_tx.symbolic_locals[name] = record


def example(name: str) -> Internal:
    """Return what stands for the tensor of a variable that is being traced."""
    return traced(name).as_proxy().node.meta["example_value"]


def outermost_module() -> tuple[nn.Module, Internal] | None:
    """Return the module whose method is compiled, and the compiler's record of it; None if it is no
    method of a module."""
    frame: Internal = _output().root_tx
    for name in ("self", *frame.f_code.co_varnames[:1]):
        found = frame.f_locals.get(name)
        if isinstance(found, nn.Module):
            return found, frame.symbolic_locals[name]
    return None


def is_reached_from(root: nn.Module | None, tap: Internal) -> bool:
    """Whether the module of a tap is reached from that root in the frame that is being traced.

    A frame that reaches its modules from the model (`model.blocks[3].up`) runs the same modules
    each time. A frame that starts at a part of it (the `forward` of a block, the rest of a function
    after a graph break, a function with a module as argument) may serve every module of that class.
    `tap` is the compiler's record of the tap.
    """
    scope = _scope(_output())
    source = hooked(tap.source)
    while source is not None:
        if source.get_value(scope, {}, {}) is root:
            return root is not None
        source = getattr(source, "base", None)
    return False


def _scope(output: Internal) -> dict[str, object]:
    return {"G": output.root_tx.f_globals, "L": output.root_tx.f_locals}


# -- side effects ------------------------------------------------------------------------------


def side_effects() -> object:
    """Return the compiler's record of what the code writes to objects."""
    effects: object = _output().side_effects
    return effects


def restore_side_effects(effects: object) -> None:
    """Put a record of side effects back in place of the one that is there."""
    output = _output()
    if isinstance(effects, type(output.side_effects)):
        output.side_effects = effects


# -- what is compiled in the end ---------------------------------------------------------------


class TracedOutput:
    """The code that is being made, held weakly."""

    def __init__(self) -> None:
        self._output: ref[Internal] = ref(_output())

    @property
    def is_packaged(self) -> bool:
        """Whether the code is made to be stored."""
        return getattr(self._output(), "package", None) is not None

    def wrap_compiler(self, wrap: Callable[[CompilerFunction], CompilerFunction]) -> None:
        """Replace the function that compiles the graph by what `wrap` makes of it."""
        output: Internal = self._output()
        output.compiler_fn = wrap(output.compiler_fn)


def hooked(source: Internal) -> Internal:
    """Return the module through whose hooks the source leads, None if through none."""
    while source is not None:
        base = getattr(source, "base", None)
        if getattr(source, "member", None) in HOOK_DICTS:
            return base
        source = base
    return None


# -- nodes -------------------------------------------------------------------------------------

_has_name = uses(
    "operator_name",
    "torch._ops:HigherOrderOperator._name",
    purpose="hooks on tensors are found in graphs",
    fallback="they are not: a tensor that compiled code returns is read twice",
).holds(lambda: hasattr(torch.ops.higher_order.cond, "_name"))
_SOURCE: Final = "_dynamo_source"


def higher_order_name(node: Node) -> str | None:
    """Return the name of the higher-order operator that a node calls, None if it calls another."""
    return getattr(node.target, "_name", None) if _has_name else None


def copy_sources(graph: Graph, copy: Iterable[Node]) -> None:
    """Give the nodes of a copy the sources that a copy leaves out."""
    for old, new in zip(graph.nodes, copy, strict=True):
        if hasattr(old, _SOURCE):
            setattr(new, _SOURCE, getattr(old, _SOURCE))
