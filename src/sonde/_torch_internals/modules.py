"""Modules and optimizers: the dicts of hooks, and what else is held under private names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from sonde._torch_internals.registry import Internal, uses

# -- hooks -------------------------------------------------------------------------------------

HOOK_DICTS: Final = frozenset(
    {
        *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
        *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
        *("_backward_hooks", "_backward_pre_hooks"),
    }
)
"""The dicts of a module that hooks can be in."""

HAS_HOOK_DICTS: Final = uses(
    "module_hooks",
    "torch.nn:Module._forward_hooks",
    purpose="all modules of a watch have their hooks under one number, for code that several share",
    fallback="`register_forward_hook`; compiled code that serves several modules compiles for each",
).holds(lambda: vars(nn.Module()).keys() >= HOOK_DICTS)

_next_id = uses(
    "hook_number",
    "torch.utils.hooks:RemovableHandle.next_id",
    purpose="a number that no other hook has",
    fallback="numbers that torch does not reach",
).find()
_OWN_IDS: Final = iter(range(1 << 40, 1 << 41))
_HANDLES: Final[WeakKeyDictionary[nn.Module, dict[int, list[RemovableHandle]]]] = (
    WeakKeyDictionary()
)


class ModuleHooks(NamedTuple):
    """The hooks of one module: `before` may be None."""

    before: Callable[..., None] | None
    after: Callable[..., None]


def new_id() -> int:
    """Return a number that no hook of torch's has or will have."""
    if _next_id is None:
        return next(_OWN_IDS)
    number: int = RemovableHandle.next_id
    RemovableHandle.next_id += 1
    return number


def hang(module: nn.Module, hooks: ModuleHooks, number: int) -> None:
    """Put hooks on the module, under that number.

    It is the same on all modules of a watch, which no method of torch's would allow: compiled code
    that serves several modules asks for hooks by their number. With a hook before, that after is
    called also when the module raises.
    """
    if not HAS_HOOK_DICTS:
        _HANDLES.setdefault(module, {})[number] = _registered(module, hooks)
        return
    if hooks.before is not None:
        # First, for a signal may interrupt this: a hook without it is called in another way.
        module._forward_pre_hooks_with_kwargs[number] = True
        module._forward_pre_hooks[number] = hooks.before
        module._forward_hooks_always_called[number] = True
    module._forward_hooks[number] = hooks.after


def take_off(module: nn.Module, number: int, *, for_good: bool = False) -> None:
    """Take the hooks of that number off the module, if it has them."""
    if not HAS_HOOK_DICTS:
        for handle in _HANDLES.get(module, {}).pop(number, []):
            handle.remove()
        return
    for known in (
        module._forward_pre_hooks,
        module._forward_pre_hooks_with_kwargs,
        module._forward_hooks,
        module._forward_hooks_always_called,
    ):
        known.pop(number, None)
        if for_good and not known:
            known.clear()  # else it keeps its table, and with it memory around it


def _registered(module: nn.Module, hooks: ModuleHooks) -> list[RemovableHandle]:
    made: list[RemovableHandle] = []
    if hooks.before is not None:
        made.append(module.register_forward_pre_hook(hooks.before, with_kwargs=True))
    always = hooks.before is not None
    made.append(module.register_forward_hook(hooks.after, always_call=always))
    return made


def hooks_of(module: object) -> list[object]:
    """Return all hooks of a module; empty where this torch does not show them."""
    if not HAS_HOOK_DICTS:
        return []
    dicts = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [hook for name in dicts for hook in getattr(module, name).values()]


def forward_hooks(module: nn.Module) -> Mapping[int, object]:
    """Return the forward hooks of a module by their number."""
    return module._forward_hooks if HAS_HOOK_DICTS else {}


def forward_hook(module: nn.Module, number: int) -> Internal:
    """Return the forward hook of that number. The compiler traces this."""
    return module._forward_hooks[number]


def hooks_key(owner: Mapping[str, object]) -> int:
    """Return what a module (given as its `__dict__`) shares with replicas of it."""
    return id(owner.get("_forward_hooks"))


_optimizer = uses(
    "optimizer_hooks",
    "torch.optim:Optimizer._optimizer_step_pre_hooks",
    purpose="an optimizer that never called `Optimizer.__init__` is named as such",
    fallback="asks whether it has parameter groups",
).holds(lambda: "_optimizer_step_pre_hooks" in vars(_an_optimizer()))


def _an_optimizer() -> Optimizer:
    return Optimizer([nn.Parameter(Tensor())], {})


def optimizer_hooks(optimizer: object) -> object:
    """Return what stands for the hooks of an optimizer, None if it was not set up as torch's are.
    A wrapper that shows those of the optimizer in it has the same object."""
    name = "_optimizer_step_pre_hooks" if _optimizer else "param_groups"
    return getattr(optimizer, name, None)


# -- what a module holds -----------------------------------------------------------------------

_parts = uses(
    "module_parts",
    "torch.nn:Module._modules",
    purpose="children, parameters and buffers of one module, in a microsecond",
    fallback="`named_children`, `named_parameters` and `named_buffers`",
).holds(lambda: vars(nn.Module()).keys() >= {"_modules", "_parameters", "_buffers"})

_compiled = uses(
    "compiled_call",
    "torch.nn:Module._compiled_call_impl",
    purpose="whether `module.compile()` was called",
    fallback="`module.compile()` is not noticed; `torch.compile(module)` is",
    left_out="modules that `module.compile()` compiled are named as if they were not",
).find()

if _parts:

    def children(module: nn.Module) -> Mapping[str, nn.Module | None]:
        """Return the modules that a module holds, by name."""
        return module._modules

    def own_parameters(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
        """Return the parameters that a module itself holds, by name."""
        return module._parameters

    def own_buffers(module: nn.Module) -> Mapping[str, Tensor | None]:
        """Return the buffers that a module itself holds, by name."""
        return module._buffers

else:

    def children(module: nn.Module) -> Mapping[str, nn.Module | None]:
        """Return the modules that a module holds, by name."""
        return dict(module.named_children())

    def own_parameters(module: nn.Module) -> Mapping[str, nn.Parameter | None]:
        """Return the parameters that a module itself holds, by name."""
        return dict(module.named_parameters(recurse=False))

    def own_buffers(module: nn.Module) -> Mapping[str, Tensor | None]:
        """Return the buffers that a module itself holds, by name."""
        return dict(module.named_buffers(recurse=False))


def set_buffer(module: nn.Module, name: str, x: Tensor) -> None:
    """Make the tensor the buffer of that name."""
    if _parts:
        module._buffers[name] = x
    else:
        setattr(module, name, x)


def compiled_call(module: nn.Module) -> object:
    """Return what `module.compile()` has put in place of the module's call, None if nothing."""
    return getattr(module, "_compiled_call_impl", None) if _compiled else None


# Attributes under which compile, FSDP, checkpoint wrappers and Fabric keep the real module. Each is
# asked of the modules at hand, so a name that is gone is one that no module has.
COMPILED_CHILD: Final = "_orig_mod"
WRAPPED_CHILDREN: Final = frozenset(
    {COMPILED_CHILD, "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)

_replica = uses(
    "replica",
    "torch.nn:Module._replicate_for_data_parallel",
    purpose="copies of a module that `DataParallel` makes count as the module",
    fallback="they do not",
    left_out="modules inside `torch.nn.DataParallel` are not recorded",
).holds(lambda: getattr(nn.Module()._replicate_for_data_parallel(), "_is_replica", False))


def is_replica(module: nn.Module) -> bool:
    """Whether the module is a copy that `DataParallel` has made."""
    return bool(_replica) and getattr(module, "_is_replica", False)


def is_replica_of(owner: Mapping[str, object]) -> bool:
    """Whether a module, given as its `__dict__`, is a copy that `DataParallel` has made."""
    return "_is_replica" in owner


_call = uses(
    "module_call",
    "torch.nn:Module._call_impl.__code__",
    purpose="a call of a module inside another call of it is found among the frames",
    fallback="frames of `Module.__call__`",
).find()
CALL: Final = _call[0] if _call else nn.Module.__call__.__code__
"""The code that every call of a module runs."""


# -- families ----------------------------------------------------------------------------------


def _family(name: str, symbol: str, known: Iterable[type]) -> tuple[type, ...]:
    found = uses(
        name,
        symbol,
        purpose="all modules of a family, those of other packages too",
        fallback="the classes that torch exports",
    ).find()
    return (*found,) if found else (*known,)


CONVOLUTIONS: Final = _family(
    "convolutions",
    "torch.nn.modules.conv:_ConvNd",
    (
        *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
        *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ),
)
BATCH_NORMS: Final = _family(
    "batch_norms",
    "torch.nn.modules.batchnorm:_BatchNorm",
    (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
)
INSTANCE_NORMS: Final = _family(
    "instance_norms",
    "torch.nn.modules.instancenorm:_InstanceNorm",
    (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
RUNNING_NORMS: Final = _family(
    "running_norms", "torch.nn.modules.batchnorm:_NormBase", (*BATCH_NORMS, *INSTANCE_NORMS)
)
"""Norms with running statistics, which their kernels write without raising the version."""
DROPOUTS: Final = _family(
    "dropouts",
    "torch.nn.modules.dropout:_DropoutNd",
    (
        *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
        *(nn.AlphaDropout, nn.FeatureAlphaDropout),
    ),
)
