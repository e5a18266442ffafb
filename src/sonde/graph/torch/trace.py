"""A trace: one pass through a model, watched operation by operation.

Hooks say which module is being called; a dispatch mode sees every operation in between. Together
they tell which call's data reached which other call. Nothing is changed, nothing is computed, and
no operation is added: the mode passes each one on as it came.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Final

import torch
from torch import Tensor

from sonde._python import frame_at
from sonde._signals import pass_on
from sonde._torch_internals.frames import COMPILER_FOLDER
from sonde._torch_internals.tensors import (
    HAS_DISPATCH_MODES,
    HAS_SCHEMAS,
    QuietDispatchMode,
    current_mode,
    is_jit_tracing,
    is_under_infrastructure_mode,
    schema_of,
)
from sonde.graph.model import merge_ports, node_id
from sonde.graph.torch.origins import NOTHING, CallFrame, Origin, Origins, TensorOrigins
from sonde.record import CallPort, GraphNode, NodeKind

OUTSIDE: Final = "*"
"""The slot of an input that was not passed: a tensor that a call found somewhere else."""


_OVERWRITES: Final = frozenset(
    {"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "random_", "exponential_"}
)
"""Operations in place that do not read what they write to."""


class PassTrace:
    """What was seen of one pass."""

    def __init__(self, ignored: Iterable[Tensor], *, max_calls: int) -> None:
        self.nodes: dict[str, GraphNode] = {}
        self.edges: dict[tuple[str, str], None] = {}
        self.has_many_calls = False
        self._book = TensorOrigins(ignored)
        self._outermost = CallFrame("", None)
        self._frame = self._outermost
        self._calls: dict[str, int] = {}
        self._max_calls = max_calls
        self._effects: dict[object, _Effect] = {}

    @property
    def is_over(self) -> bool:
        return self._frame is self._outermost

    def enter(self, module: str, inputs: Sequence[tuple[str, Tensor]]) -> None:
        """A module is called."""
        call = self._calls.get(module, 0)
        self._calls[module] = call + 1
        if call >= self._max_calls:
            self.has_many_calls = True
            call = self._max_calls - 1
        node = node_id(module, call)
        caller = self._frame
        for _, x in inputs:
            self._join(self._book.of(x, caller), node)
        self._note(node, module, call, "module", caller.node, inputs=_ports(inputs))
        frame = self._frame = CallFrame(node, caller)
        for slot, x in inputs:
            entry = f"{node}/input/{slot}"
            self._note(entry, module, call, "input", node, outputs=_ports([(slot, x)]))
            self._book.passed(x, frozenset({(frame, entry)}), frame, is_input=True)

    def leave(self, module: str, outputs: Sequence[tuple[str, Tensor]]) -> None:
        """A module returned. Calls inside it that never returned are over, too."""
        while self._frame is not self._outermost:
            frame = self._frame
            if self.nodes[frame.node].module == module:
                break
            self._frame = frame.parent or self._outermost
        else:
            return
        call = self.nodes[frame.node].call
        for slot, x in outputs:
            leaving = f"{frame.node}/output/{slot}"
            self._note(leaving, module, call, "output", frame.node, inputs=_ports([(slot, x)]))
            self._join(self._book.of(x, frame), leaving)
        known = self.nodes[frame.node]
        self._note(known.id, module, call, "module", known.parent, outputs=_ports(outputs))
        caller = self._frame = frame.parent or self._outermost
        for _, x in outputs:
            own: Origins = frozenset({(caller, frame.node)})
            if self._seen_from(caller, self._book.of(x, caller)) != own:
                self._book.passed(x, own, caller, is_input=False)

    def attach(self, name: str, x: Tensor) -> None:
        """A tensor was given a name."""
        frame = self._frame
        if frame is self._outermost:
            return
        known = self.nodes[frame.node]
        node = f"{frame.node}/attach/{name}"
        port = _ports([(name, x)])
        self._note(node, known.module, known.call, "attach", frame.node, inputs=port, outputs=port)
        self._join(self._book.of(x, frame), node)
        self._book.passed(x, frozenset({(frame, node)}), frame, is_input=False)

    def operation(
        self,
        func: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object] | None,
        result: object,
    ) -> None:
        """An operation ran."""
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = _Effect(func)
        written = effect.written(args, kwargs)
        read = _tensors((args, kwargs))
        origins = NOTHING
        for x in read:
            if not (effect.overwrites and any(x is w for w in written)):
                origins |= self._book.of(x, self._frame)
        origins = self._seen_from(self._frame, origins)
        for x in written:
            self._book.written(x, origins, self._frame)
        for x in _tensors(result):
            if any(x is w for w in written):
                continue
            if effect.is_view:
                self._book.viewed(x, origins)
            else:
                self._book.made(x, origins)

    def used_nodes(self) -> dict[str, GraphNode]:
        """The nodes that count. Tensors that enter or leave a call do if they are joined to
        something inside it; those of an outermost call always."""
        joined = {node for edge in self.edges for node in edge}
        with_inside = {n.parent for n in self.nodes.values() if n.kind in {"module", "attach"}}
        tops = {n.id for n in self.nodes.values() if not n.parent}
        return {
            n.id: n
            for n in self.nodes.values()
            if n.kind in {"module", "attach"}
            or n.parent in tops
            or (n.parent in with_inside and n.id in joined)
        }

    def _note(
        self,
        id: str,
        module: str,
        call: int,
        kind: NodeKind,
        parent: str,
        *,
        inputs: tuple[CallPort, ...] = (),
        outputs: tuple[CallPort, ...] = (),
    ) -> None:
        known = self.nodes.get(id)
        if known is not None:
            inputs = merge_ports(known.inputs, inputs)
            outputs = merge_ports(known.outputs, outputs)
            parent = known.parent
        self.nodes[id] = GraphNode(id, module, call, kind, parent, inputs, outputs)

    def _join(self, origins: Origins, target: str) -> None:
        """Data from there reached a node of the current frame."""
        for _, source in self._seen_from(self._frame, origins):
            if source != target:
                self.edges[source, target] = None

    def _seen_from(self, frame: CallFrame, origins: Origins) -> Origins:
        """The same origins as nodes of this frame."""
        others = [origin for origin in origins if origin[0] is not frame]
        if not others:
            return origins
        # Hundreds of experts may be summed up here one by one: those that are known stay.
        return origins.difference(others).union([self._lifted(frame, o) for o in others])

    def _lifted(self, frame: CallFrame, origin: Origin) -> Origin:
        """An origin in another frame, as a node of this one.

        What was made inside a call comes from that call. What was made outside this frame
        and not passed to it enters through a port of its own.
        """
        made_in, node = origin
        common: CallFrame = made_in
        while common.depth > frame.depth or not _is_above(common, frame):
            node = common.node
            assert common.parent is not None
            common = common.parent
        way: list[CallFrame] = []
        at = frame
        while at is not common:
            way.append(at)
            assert at.parent is not None
            at = at.parent
        for inner in reversed(way):
            if node != inner.node:
                self.edges[node, inner.node] = None
            node = f"{inner.node}/input/{OUTSIDE}"
            if not inner.took_outside:
                inner.took_outside = True
                known = self.nodes[inner.node]
                self._note(node, known.module, known.call, "input", inner.node)
        return frame, node


class TraceMode(QuietDispatchMode):
    """Shows every operation to a trace, and passes it on unchanged."""

    supports_higher_order_operators = True

    def __init__(self, trace: PassTrace, failed: Callable[[Exception], None]) -> None:
        super().__init__()
        self._trace: PassTrace | None = trace
        self._failed = failed

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        trace = self._trace
        if trace is not None:
            try:
                trace.operation(func, args, kwargs, result)
            except Exception as error:
                pass_on(error)
                self._trace = None
                self._failed(error)
        return result

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code runs compiled, not operation by operation because it is observed."""
        return True

    def stop(self) -> bool:
        """Look no more, and leave the stack of modes if we are on top of it; false if not yet."""
        self._trace = None
        if current_mode() is not self:
            return False
        self.leave()
        return True


class _Effect:
    """What an operator does to its arguments, by its schema."""

    __slots__ = ("_names", "_places", "is_view", "overwrites")

    def __init__(self, func: object) -> None:
        self._places: list[int] = []
        self._names: list[str] = []
        self.is_view = False
        self.overwrites = False
        schema = schema_of(func)
        if schema is None:
            return
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self._places.append(i)
                self._names.append(argument.name)
        self.is_view = any(
            r.alias_info is not None and not r.alias_info.is_write for r in schema.returns
        )
        name = schema.name.rpartition("::")[2]
        is_out = any(schema.arguments[i].is_out for i in self._places)
        self.overwrites = name in _OVERWRITES or is_out

    def written(self, args: tuple[object, ...], kwargs: dict[str, object] | None) -> list[Tensor]:
        found: list[Tensor] = []
        for place, name in zip(self._places, self._names, strict=True):
            value = args[place] if place < len(args) else (kwargs or {}).get(name)
            found += _tensors(value)
        return found


def _is_above(a: CallFrame, b: CallFrame) -> bool:
    """Whether `b` is `a`, or inside it."""
    at: CallFrame | None = b
    while at is not None and at.depth > a.depth:
        at = at.parent
    return at is a


def _ports(tensors: Sequence[tuple[str, Tensor]]) -> tuple[CallPort, ...]:
    return tuple(
        CallPort(slot, str(x.dtype).removeprefix("torch."), tuple(int(n) for n in x.shape))
        for slot, x in tensors
    )


def _tensors(value: object) -> list[Tensor]:
    """All tensors in what an operator takes or gives: nested lists, tuples and dicts of them."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for one in value for x in _tensors(one)]
    if isinstance(value, dict):
        return [x for one in value.values() for x in _tensors(one)]
    return []


def is_inside_compiled_call() -> bool:
    """Whether the compiler called the code that runs now: what it calls next will be compiled."""
    frame: FrameType | None = frame_at(1)
    while frame is not None:
        if COMPILER_FOLDER in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def is_traceable() -> bool:
    """Whether operations run for real now, and not for the sake of a compiler or an exporter."""
    if not (HAS_DISPATCH_MODES and HAS_SCHEMAS):
        return False
    if is_jit_tracing() or torch.compiler.is_compiling():
        return False
    return not is_under_infrastructure_mode()
