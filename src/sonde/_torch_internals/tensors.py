"""Tensors, autograd and modes: what torch does not show in public."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from operator import attrgetter
from types import CodeType, FrameType
from typing import Final

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef

from sonde._python import frame_at
from sonde._torch_internals.registry import Internal, uses


class OutOfReachError(Exception):
    """A tensor cannot be read, for a reason that is no error; the text says why."""


# -- versions and values -----------------------------------------------------------------------

_fresh = count(1 << 40).__next__

HAS_VERSIONS: Final = (
    uses(
        "version",
        "torch:Tensor._version",
        purpose="whether a tensor was written to since it was met",
        fallback="each look counts as a change, so tensors are read again",
    ).find()
    is not None
)
version_of: Final[Callable[[Tensor], int]] = (
    attrgetter("_version") if HAS_VERSIONS else lambda _x: _fresh()
)
"""The version of a tensor, which every operation raises that writes to it."""

_zeros = uses(
    "zero_tensor",
    "torch:Tensor._is_zerotensor",
    purpose="tensors that stand for zeros and have no memory",
    fallback="a tensor without an address is copied before it is read",
).find()


def _has_no_address(x: Tensor) -> bool:
    try:
        return x.data_ptr() == 0 and x.numel() > 0
    except RuntimeError:
        return True


stands_for_zeros: Final[Callable[[Tensor], bool]] = _zeros[0] if _zeros else _has_no_address
"""Whether a tensor has no memory because all its values are zero."""

_cdata = uses(
    "storage_key",
    "torch:UntypedStorage._cdata",
    purpose="which tensors share memory, for the model's graph",
    fallback="the address in a weak reference, which is slower",
).find()


def storage_key(x: Tensor) -> int:
    """Return a number for the storage, the same while it lives."""
    storage = x.untyped_storage()
    key: int = storage._cdata if _cdata else StorageWeakRef(storage).cdata
    return key


_foreach = uses(
    "foreach_copy",
    "torch:_foreach_copy_",
    purpose="parameters are copied with one launch",
    fallback="one copy each",
).find()


def copy_each(to: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy each tensor to the one at the same place."""
    if _foreach:
        _foreach[0](to, tensors)
    else:
        for target, x in zip(to, tensors, strict=True):
            target.copy_(x)


# -- gradients ---------------------------------------------------------------------------------

HAS_HOOK_DICTS: Final = uses(
    "gradient_hooks",
    "torch:Tensor._backward_hooks",
    purpose="a hook on a gradient in a third of the time, and by the native path",
    fallback="`Tensor.register_hook`, and no native path",
).holds(
    lambda: (
        hasattr(Tensor, "_backward_hooks")
        and hasattr(torch.zeros((), requires_grad=True).exp().grad_fn, "_register_hook_dict")
    )
)


def hook_gradient(x: Tensor, hook: Callable[[Tensor], None], number: int) -> None:
    """Call the hook with the gradient of a tensor that has one and is no leaf.

    What `Tensor.register_hook` does without the handle to remove it, which is most of its time.
    """
    if HAS_HOOK_DICTS and x._backward_hooks is None and type(x) is Tensor:
        x._backward_hooks = OrderedDict(((number, hook),))
        x.grad_fn._register_hook_dict(x)  # type: ignore[union-attr]
    else:
        x.register_hook(hook)


_graph_task = uses(
    "current_backward",
    "torch._C:_current_graph_task_id",
    purpose="a forward inside a backward recomputes: it is counted once",
    fallback="looks for a running `backward` in the frames of the thread",
).find()
_RUNNING: Final[frozenset[CodeType]] = frozenset(
    {torch.autograd.backward.__code__, torch.autograd.grad.__code__}
)


def _backward_in_frames() -> int:
    frame: FrameType | None = frame_at(1)
    last = frame
    while frame is not None:
        if frame.f_code in _RUNNING:
            return 0
        last, frame = frame, frame.f_back
    # Threads of autograd, one for each device, begin in neither a program nor a Python thread.
    is_python = last is not None and last.f_code.co_name in ("<module>", "_bootstrap")
    return -1 if is_python else 0


current_backward: Final[Callable[[], int]] = _graph_task[0] if _graph_task else _backward_in_frames
"""Return the number of the backward pass that runs in this thread, -1 outside.

A forward inside a backward is a recomputation (activation checkpointing), to be counted once.
torch's own checkpointing asks the same way.
"""

_after = uses(
    "backward_callback",
    "torch.autograd:Variable._execution_engine",
    purpose="a step that is a backward pass ends with it, while its gradients are there",
    fallback="it ends when the next forward begins",
).find()
after_backward: Final[Callable[[Callable[[], None]], None] | None] = (
    _after[0].queue_callback if _after else None
)
"""Call a function once the backward pass that runs now is over. None where torch cannot."""

_forward_mode = uses(
    "forward_mode",
    "torch._C:_is_fwd_grad_enabled",
    purpose="the forward of an autograd function, which is part of training, and `no_grad` differ",
    fallback="a forward-mode gradient is computed to see whether there is one",
).find()


def _has_forward_gradients() -> bool:
    try:
        with forward_ad.dual_level():
            x = torch.zeros(())
            return forward_ad.unpack_dual(forward_ad.make_dual(x, x)).tangent is not None
    except RuntimeError:  # a level is open, so gradients are computed forward
        return True


is_forward_mode_enabled: Final[Callable[[], bool]] = (
    _forward_mode[0] if _forward_mode else _has_forward_gradients
)
"""Whether forward-mode gradients are on, as they are except in an autograd function's forward."""

_grad_mode = uses(
    "grad_mode",
    "torch._C:_set_grad_enabled",
    purpose="gradients are switched off without a context manager",
    fallback="`torch.set_grad_enabled`",
).find()
SET_GRAD_ENABLED: Final[Callable[[bool], object]] = (
    _grad_mode[0] if _grad_mode else torch.set_grad_enabled
)
"""Switch gradients on or off. In graphs of the compiler, a call of this is a node."""

_saving = uses(
    "saving_hooks",
    "torch._C:_autograd._top_saved_tensors_default_hooks",
    purpose="code inside a checkpoint keeps the same tensors when it runs again",
    fallback="compiled code always has its taps, so steps that are not recorded cost more",
).find()


def has_saving_hooks() -> bool:
    """Whether something, a checkpoint for one, decides how tensors are kept for backward; true
    where that cannot be told."""
    return _saving is None or _saving[0](True) is not None


# -- torch.func --------------------------------------------------------------------------------

_transforms = uses(
    "transforms",
    "torch._C:_functorch.maybe_current_level",
    "torch._C:_functorch.is_functorch_wrapped_tensor",
    "torch._C:_functorch.get_unwrapped",
    "torch._C:_DisableFuncTorch",
    purpose="tensors inside a `torch.func` transformation are read as they lie in memory",
    fallback="tensors without an address, and operations inside a transformation, are left out",
    left_out="tensors inside `torch.func` transformations (grad, vmap) are not recorded",
).find()
HAS_TRANSFORMS: Final = _transforms is not None
"""Whether `transform_level` tells all; if not, `is_wrapped` has to be asked for each tensor."""
_WITHOUT_TRANSFORMS: Final = "it is inside a `torch.func` transformation, which this torch hides"


def _is_without_address(x: Tensor) -> bool:
    try:
        x.data_ptr()
    except RuntimeError:
        return type(x) is Tensor and x.layout is torch.strided and not x.is_meta
    return False


@contextmanager
def _checked() -> Iterator[None]:
    if _is_without_address(torch.empty(1)):
        raise OutOfReachError(_WITHOUT_TRANSFORMS)
    yield


def _out_of_reach(_x: Tensor) -> Tensor:
    raise OutOfReachError(_WITHOUT_TRANSFORMS)


def _level_of_new_tensor() -> int | None:
    return 0 if _is_without_address(torch.empty(1)) else None


transform_level: Final[Callable[[], int | None]] = (
    _transforms[0] if _transforms else _level_of_new_tensor
)
"""Return how many transformations of `torch.func` run in this thread, None for none."""
is_wrapped: Final[Callable[[Tensor], bool]] = _transforms[1] if _transforms else _is_without_address
"""Whether a tensor is one that a transformation hands out."""
unwrapped: Final[Callable[[Tensor], Tensor]] = _transforms[2] if _transforms else _out_of_reach
"""Return the tensor that a transformation has wrapped."""
outside_transforms: Final[Callable[[], AbstractContextManager[object]]] = (
    _transforms[3] if _transforms else _checked
)
"""Inside this block, operations belong to no transformation.

Raises:
    OutOfReachError: if that cannot be had with this torch, and one is running.
"""

# -- traces and modes --------------------------------------------------------------------------

_jit = uses(
    "jit_tracing",
    "torch._C:_get_tracing_state",
    purpose="calls that `torch.jit` traces are not recorded",
    fallback="`torch.jit.is_tracing`",
).find()


_jit_is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]  # not typed


def is_jit_tracing() -> bool:
    """Whether `torch.jit` traces in this thread."""
    return _jit[0]() is not None if _jit else bool(_jit_is_tracing())


_fx = uses(
    "fx_tracing",
    "torch.fx._symbolic_trace:is_fx_symbolic_tracing",
    purpose="calls that `torch.fx` traces are not recorded",
    fallback="looks for `torch.fx.Tracer.trace` in the frames of the thread",
).find()
_FX_TRACE: Final[CodeType] = torch.fx.Tracer.trace.__code__


def _fx_in_frames() -> bool:
    frame: FrameType | None = frame_at(1)
    while frame is not None and frame.f_code is not _FX_TRACE:
        frame = frame.f_back
    return frame is not None


is_fx_tracing: Final[Callable[[], bool]] = _fx[0] if _fx else _fx_in_frames
"""Whether `torch.fx` runs a model in this thread to see what it does."""

_modes = uses(
    "no_modes",
    "torch._C:_len_torch_dispatch_stack",
    "torch.utils._python_dispatch:_disable_current_modes",
    purpose="copies of parameters are real, whatever mode is on",
    fallback="under a mode that makes other tensors, parameters are left out of that step",
).find()


def without_modes() -> AbstractContextManager[object]:
    """Inside this block, operations give real tensors, whatever a mode would make of them.

    Raises:
        OutOfReachError: if this torch cannot do that, and a mode makes other tensors.
    """
    if _modes:
        context: AbstractContextManager[object] = _modes[1]() if _modes[0]() else nullcontext()
        return context
    if type(torch.empty(())) is not Tensor:
        raise OutOfReachError("a dispatch mode is on, which this torch cannot switch off")
    return nullcontext()


_dispatch = uses(
    "dispatch_mode",
    "torch.utils._python_dispatch:TorchDispatchMode",
    "torch.utils._python_dispatch:_get_current_dispatch_mode",
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
    purpose="every operation of one pass is seen, for the model's graph",
    fallback="no graph of the model; metrics are computed without CUDA graphs",
    left_out="the model's graph is not recorded",
).find()
HAS_DISPATCH_MODES: Final = _dispatch is not None


class _NoMode:
    def __enter__(self) -> object:
        raise OutOfReachError("this torch has no dispatch modes")

    def __exit__(self, *_error: object) -> None:
        """Do nothing: it was never entered."""


DispatchMode: Internal = _dispatch[0] if _dispatch else _NoMode
"""The class of modes that see every operation inside their block: `TorchDispatchMode`."""


class QuietDispatchMode(DispatchMode):  # type: ignore[misc]  # torch's, if it is there
    """A mode that does not load the compiler."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Would load the whole compiler (seconds) on the first operation.
        return False

    def leave(self) -> None:
        """End the block. Call it again if a signal handler has raised in it: torch takes the flags
        from before the block out of its lists one by one, so they are put there each time."""
        known = self.__dict__
        if "_flags" not in known:
            self._flags = {name: deque(x) for name, x in known.items() if isinstance(x, deque)}
        known.update({name: deque(x) for name, x in self._flags.items()})
        self.__exit__(None, None, None)


def current_mode() -> object:
    """Return the dispatch mode on top of the stack."""
    return _dispatch[1]() if _dispatch else None


def is_under_infrastructure_mode() -> bool:
    """Whether operations run for the sake of a compiler or an exporter."""
    if _dispatch is None:
        return False
    return any(
        type(mode).is_infra_mode() for mode in _dispatch[2]() if hasattr(mode, "is_infra_mode")
    )


HAS_SCHEMAS: Final = uses(
    "schema",
    "torch._ops:OpOverload._schema",
    purpose="what an operator writes to",
    fallback="no graph of the model, no gathered taps, metrics without CUDA graphs",
    left_out="the model's graph is not recorded",
).holds(lambda: hasattr(torch.ops.aten.add.Tensor, "_schema"))


def schema_of(operator: object) -> Internal:
    """Return the schema of an operator, None if it has none."""
    return getattr(operator, "_schema", None) if HAS_SCHEMAS else None


def may_write(operator: object) -> bool:
    """Whether an operator of a graph may write to what it is given."""
    schema = schema_of(operator)
    return bool(schema.is_mutable) if schema is not None else not HAS_SCHEMAS
