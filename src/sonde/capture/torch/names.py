"""Canonical names: what a module or parameter is called when no wrapper stands in between.

`Structure` keeps the names of a model and notices when the model was changed. Nothing here keeps a
module or a parameter alive.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final, NamedTuple
from weakref import ref

from torch import nn
from torch.nn.parameter import is_lazy

from sonde._torch_internals.modules import (
    COMPILED_CHILD,
    WRAPPED_CHILDREN,
    children,
    compiled_call,
    own_parameters,
)
from sonde._torch_internals.placements import swaps_parameters

_PARALLEL: Final = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, under the first of its canonical paths; wrappers are passed through.

    The root is `""`. A model that has an attribute called `module` keeps it in its names: only the
    one of `DataParallel` and `DistributedDataParallel` is dropped.
    """
    for path, module in _walk(model):
        if _wrapped(module) is None:
            yield path, module


def _walk(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module and wrapper once, with its canonical path."""
    met: set[int] = set()
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        yield path, module
        inner = _wrapped(module)
        if inner is not None:
            waiting.append((path, inner))
            continue
        below = [
            (f"{path}.{name}" if path else name, child)
            for name, child in children(module).items()
            if child is not None
        ]
        waiting.extend(reversed(below))


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without the wrappers around it."""
    inner = _wrapped(model)
    return model if inner is None else unwrapped(inner)


def parameters(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, nn.Parameter]]:
    """Every parameter once: path of its owner, its own name, its owner, itself.

    A tied parameter goes by the first of its names. One that a lazy module has yet to make is left
    out.
    """
    met: set[int] = set()
    for path, module in modules(model):
        for name, parameter in own_parameters(module).items():
            if parameter is None or id(parameter) in met or is_lazy(parameter):
                continue
            met.add(id(parameter))
            yield path, name, module, parameter


class NamedParameter(NamedTuple):
    """A parameter and where it lives."""

    path: str
    name: str
    module: ref[nn.Module]
    ref: ref[nn.Parameter]

    @property
    def full(self) -> str:
        return f"{self.path}.{self.name}" if self.path else self.name


class ModelStructure:
    """The modules and parameters of a model by name, as they were when last looked at.

    `version` is another one whenever something had changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.version = 0
        self.modules: list[tuple[str, ref[nn.Module]]] = []
        self.parameters: list[NamedParameter] = []
        self._model: Callable[[], nn.Module | None] = ref(model)
        self.is_stale = True
        self._held: list[ref[nn.Module]] = []
        self._regions: set[str] = set()
        self._print: bytes | None = None
        self._shape: bytes | None = None
        self.swaps = False

    def refresh(self, *, in_forward: bool = False) -> None:
        """Look whether the model has changed, and at all of it if so.

        `in_forward`: it is being called. A model that `swaps` its parameters then (FSDP2) has
        others for the time; only its modules are compared.
        """
        model = self._model()
        if model is None:
            return
        if not self.is_stale:
            if in_forward and self.swaps:
                if self._fingerprint(with_parameters=False) == self._shape:
                    return
            elif self._fingerprint() == self._print:
                return
        self.version += 1
        # A parameter that is still to be made keeps its identity when it is.
        self.is_stale = any(is_lazy(p) for p in model.parameters())
        self.modules = [(path, ref(m, self._died)) for path, m in modules(model)]
        self.parameters = [
            NamedParameter(path, name, ref(module), ref(p, self._died))
            for path, name, module, p in parameters(model)
        ]
        wrappers = [ref(m, self._died) for _, m in _walk(model) if _wrapped(m) is not None]
        self._held = [r for _, r in self.modules] + wrappers
        self._regions = {path for path, m in _walk(model) if path and _is_compiled(m)}
        self.swaps = any(swaps_parameters(m) for m in model.modules())
        self._print = self._fingerprint()
        self._shape = self._fingerprint(with_parameters=False) if self.swaps else None

    def forget(self) -> None:
        """Let go of all that is known of the model."""
        self.modules, self.parameters, self._held = [], [], []
        self._print = None
        self._model = lambda: None
        self.version += 1

    @property
    def has_regions(self) -> bool:
        """Whether parts of the model are compiled by themselves."""
        return bool(self._regions)

    def _fingerprint(self, *, with_parameters: bool = True) -> bytes:
        """Who holds whom, in numbers. Numbers are used again only after a death, which is told."""
        everybody = chain.from_iterable(
            _held_by(reference(), with_parameters) for reference in self._held
        )
        return array("q", everybody).tobytes()

    def _died(self, _reference: object) -> None:
        self.is_stale = True


def _held_by(module: nn.Module | None, with_parameters: bool) -> list[int]:
    if module is None:
        return []
    held = children(module).values()
    own = own_parameters(module).values() if with_parameters else ()
    return [*map(id, held), *map(id, own), id(compiled_call(module))]


def _wrapped(module: nn.Module) -> nn.Module | None:
    for name, child in children(module).items():
        if name in WRAPPED_CHILDREN and child is not None:
            return child
    if isinstance(module, _PARALLEL):
        return children(module).get("module")
    return None


def _is_compiled(module: nn.Module) -> bool:
    return compiled_call(module) is not None or COMPILED_CHILD in children(module)
