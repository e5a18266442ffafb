"""What only traces use of torch that it does not promise to keep.

Everything else is in `sonde._torch_internals`, where `registry` says what each entry is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Final

from torch import nn

from sonde._errors import SondeError
from sonde._torch_internals import frames
from sonde._torch_internals.modules import compiled_call
from sonde._torch_internals.registry import uses

_FRAMES: Final = "torch._dynamo.eval_frame"
_DISABLED: Final = "_torchdynamo_disable"

_store = uses(
    "default_store",
    "torch.distributed.distributed_c10d:_get_default_store",
    purpose="ranks send values to rank 0 through the store of the process group",
    fallback="an error that says so: pass `gather_every=None`",
)
_stance = uses(
    "compiler_stance",
    "torch._dynamo.eval_frame:_stance",
    purpose="a compiled part that must stay whole may be traced while compiled code is off",
    fallback="it is taken to be on",
)
_optimized = uses(
    "compiled_module",
    "torch._dynamo.eval_frame:OptimizedModule",
    purpose="modules that `torch.compile` has wrapped",
    fallback="those that have a child under the name that it uses",
)


def default_store() -> object:
    """Return the key-value store that all ranks of the process group reach.

    Raises:
        SondeError: This torch does not give it out.
    """
    found = _store.find()
    if found is None:
        raise SondeError(
            "Values cannot be gathered on rank 0: this torch does not give out the store of its "
            "process group. Trace on one rank, or pass `gather_every=None`."
        )
    return found[0]()


def compiler_contexts(model: nn.Module) -> Iterator[object]:
    """Yield what the compiler keeps of each compiled part of a model, unless it is switched off."""
    if _FRAMES not in sys.modules:
        return
    stance = _stance.find()
    if stance is not None and stance[0].stance == "force_eager":
        return
    for module in model.modules():
        if is_compiled_module(module):
            yield getattr(module, "dynamo_ctx", None)
        compiled = compiled_call(module)
        for cell in getattr(compiled, "__closure__", None) or ():
            if _holds(cell):
                yield cell.cell_contents


def is_compiled_module(module: nn.Module) -> bool:
    """Whether `torch.compile` has made the module."""
    if _FRAMES not in sys.modules:
        return False
    found = _optimized.find()
    if found is None:
        return type(module).__name__ == "OptimizedModule"
    return isinstance(module, found[0])


def keep_whole(function: FunctionType) -> Callable[[], None]:
    """Leave a function to Python while it is observed, but not what it calls; undone by what is
    returned."""
    before = vars(function).get(_DISABLED)
    setattr(function, _DISABLED, True)  # asked for when inlining
    frames.skip(function.__code__)
    code = function.__code__

    def undo() -> None:
        if before is None:
            vars(function).pop(_DISABLED, None)
        frames.skip_no_more(code)

    return undo


def _holds(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # empty
        return False
