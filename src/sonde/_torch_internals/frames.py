"""Which functions the compiler compiles, and the code that it keeps. Loads no compiler."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Final, TypeVar

import torch

from sonde._torch_internals.registry import Internal, uses

F = TypeVar("F", bound=Callable[..., object])

_COMPILER: Final = "torch._dynamo"
NOT_RECORDED: Final = "nothing is recorded inside compiled code"

COMPILER_FOLDER: Final = os.path.join("torch", "_dynamo", "")
"""What the paths of the compiler's own code contain."""

RECOMPILE_LOG: Final = logging.getLogger(f"{_COMPILER}.convert_frame")
"""The log in which the compiler says that it has reached its recompile limit, and nowhere else."""

_strategy = uses(
    "frame_strategy",
    "torch._C:_dynamo.eval_frame.set_code_exec_strategy",
    "torch._C:_dynamo.eval_frame._FrameAction",
    "torch._C:_dynamo.eval_frame._FrameExecStrategy",
    purpose="hooks that run outside compiled code are not compiled themselves",
    fallback="hooks do nothing where the compiler meets them",
    left_out=NOT_RECORDED,
).find()
CAN_STAY_OUT: Final = _strategy is not None
"""Whether the compiler can be kept from compiling a function."""

_cache = uses(
    "compiled_code",
    "torch._C:_dynamo.eval_frame._debug_get_cache_entry_list",
    "torch._C:_dynamo.eval_frame.reset_code",
    purpose="code that was compiled before a model was watched is compiled again, with taps",
    fallback="`torch.compiler.reset`, so code of other models is compiled again, too",
).find()
_resumed = uses(
    "resumed_code",
    "torch._dynamo.resume_execution:ContinueExecutionCache.cache",
    purpose="the rest of a function after a graph break is compiled again, too",
    fallback="`torch.compiler.reset`",
)
_guards = uses(
    "hook_guards",
    "torch._dynamo:config.skip_nnmodule_hook_guards",
    purpose="code that was compiled for a model without hooks does not serve a watched one",
    fallback="it may",
    left_out="compiled code of an unwatched model may serve a watched one of the same class, "
    "whose tensors are then not recorded",
)
_constant = uses(
    "constant_function",
    "torch.compiler:assume_constant_result",
    purpose="a function runs while the compiler traces, and its result is a constant",
    fallback="`torch.compiler.assume_constant_result`, once the compiler is loaded",
)
_exporting = uses(
    "export_flag",
    "torch.compiler:_is_exporting_flag",
    purpose="hooks leave nothing in a model that is exported",
    fallback="`torch.compiler.is_exporting`",
).find()
TRACES_HOOKS: Final = uses(
    "traced_hooks",
    "torch._higher_order_ops.register_hook:",
    purpose="the compiler can trace a hook on any tensor",
    fallback="gradients of what modules return are left out of compiled code; the run says so",
    seen=("2.13", "2.15"),
).holds(lambda: importlib.util.find_spec("torch._higher_order_ops.register_hook") is not None)
"""Whether the compiler can trace a hook on any tensor. One that cannot fails, and with it the
training, on a tensor that is written to afterwards; or it stops compiling there."""

_CONSTANTS: Final[list[Callable[..., object]]] = []


def is_loaded() -> bool:
    """Whether the compiler is there, and not just being imported."""
    return hasattr(sys.modules.get(_COMPILER), "assume_constant_result")


# -- functions that are not compiled -----------------------------------------------------------


def stay_out_of(code: CodeType) -> None:
    """Do not compile this function by itself, nor what it calls.

    It may still be traced as a part of something else. Hooks of the outermost compiled module run
    outside the compiled code and would each become a graph of their own.
    """
    _set(code, "SKIP", "SKIP")


def skip(code: CodeType) -> None:
    """Do not compile this function by itself; what it calls may be."""
    _set(code, "SKIP", "DEFAULT")


def skip_no_more(code: CodeType) -> None:
    """Compile this function, and what it calls, as if nothing had been said."""
    _set(code, "DEFAULT", "DEFAULT")


def _set(code: CodeType, itself: str, called: str) -> None:
    if _strategy is not None:
        set_strategy, action, strategy = _strategy
        set_strategy(code, strategy(getattr(action, itself), getattr(action, called)))


def never_trace(function: Internal) -> None:
    """Call the function as it is where the compiler meets it; and all that it calls."""
    function._torchdynamo_disable = True
    stay_out_of(function.__code__)


def while_tracing(function: F) -> F:
    """Run the function while the compiler traces; what it returns is a constant of the graph."""
    # What torch.compiler.assume_constant_result does, which would import the whole compiler (4 s).
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    _CONSTANTS.append(function)
    return function


def check_markers() -> None:
    """The compiler is loaded: see whether it knows the mark of `while_tracing`; mark again by what
    is public if it does not."""
    if _constant.is_there is None:
        one: object = torch.compiler.assume_constant_result(_nothing)
        if not _constant.holds(lambda: hasattr(one, "_dynamo_marked_constant")):
            for function in _CONSTANTS:
                torch.compiler.assume_constant_result(function)


def _nothing() -> None:
    """Stands for a function, to see how it is marked."""


@while_tracing
def is_exporting() -> bool:
    """Whether what is traced will be exported. (Up to 2.11, the compiler takes torch's own function
    of that name for one that is always true.)"""
    if _exporting is None:
        return torch.compiler.is_exporting()
    return bool(torch.compiler._is_exporting_flag)


# -- code that was compiled --------------------------------------------------------------------


def is_compiled(value: object) -> bool:
    """Whether it is a function that `torch.compile` has made."""
    return callable(value) and hasattr(value, "_torchdynamo_orig_callable")


def forget_code(codes: Iterable[CodeType], forgotten: Callable[[CodeType], None]) -> bool:
    """Drop what was compiled of these functions, and of their parts after graph breaks; whether
    there was anything. `forgotten` is called with each.

    It is compiled again when next called.
    """
    if _COMPILER not in sys.modules:
        return False
    resumed = _resumed.find()
    if _cache is None or resumed is None:
        torch.compiler.reset()
        for code in codes:
            forgotten(code)
        return True
    entries, reset = _cache
    found = False
    for code in codes:
        for each in (code, *resumed[0].get(code, {}).values()):
            if entries(each):
                reset(each)
                found = True
                forgotten(each)
    return found


def set_hook_guards(skipped: bool) -> bool | None:
    """Say whether the compiler leaves out guards on modules without hooks; return what it did
    before, None if there is no such setting."""
    if _guards.is_there is None:
        _guards.find()
    if not _guards.is_there:
        return None
    config: Internal = sys.modules[_COMPILER].config
    before: bool = config.skip_nnmodule_hook_guards
    config.skip_nnmodule_hook_guards = skipped
    return before
