"""Canonical names: what a module or parameter is called when no wrapper stands in between."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import nn

_TRANSPARENT: Final = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
"""Attributes under which compile, FSDP, checkpoint wrappers and Fabric keep the real module."""


def modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, under the first of its canonical paths; wrappers are passed through.

    The root is `""`. A model that has an attribute called `module` keeps it in its names: only the
    one of `DataParallel` and `DistributedDataParallel` is dropped.
    """
    met: set[int] = set()
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        path, module = waiting.pop()
        if id(module) in met:
            continue
        met.add(id(module))
        inner = _wrapped(module)
        if inner is not None:
            waiting.append((path, inner))
            continue
        yield path, module
        children = [
            (f"{path}.{name}" if path else name, child)
            for name, child in module._modules.items()
            if child is not None
        ]
        waiting.extend(reversed(children))


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, without the wrappers around it."""
    inner = _wrapped(model)
    return model if inner is None else unwrapped(inner)


def parameters(model: nn.Module) -> Iterator[tuple[str, str, nn.Module, nn.Parameter]]:
    """Every parameter once: path of its owner, its own name, its owner, itself."""
    met: set[int] = set()
    for path, module in modules(model):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in met:
                met.add(id(parameter))
                yield path, name, module, parameter


def _wrapped(module: nn.Module) -> nn.Module | None:
    for name, child in module._modules.items():
        if name in _TRANSPARENT and child is not None:
            return child
    if type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
        return module._modules.get("module")
    return None
