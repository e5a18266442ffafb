"""A torch model as a tree of modules, and what hangs on it while it is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from torch import Tensor, nn

from sonde._errors import SondeError
from sonde._torch_internals.frames import never_trace
from sonde._torch_internals.modules import children, compiled_call, hooks_key, is_replica_of
from sonde._torch_internals.tensors import current_backward
from sonde.capture.leaves import leaves
from sonde.capture.torch import names
from sonde.capture.torch.compile.hooks import forget_compiled
from sonde.tracing.functions.mechanism import own_functions
from sonde.tracing.functions.methods import own_methods
from sonde.tracing.torch.internals import compiler_contexts, is_compiled_module

MAX_GRADS = 64
"""Tensors of one value whose gradients are followed."""


class TorchTree:
    """See `sonde.tracing.resolving.ModelTree`. Wrappers around modules are passed through."""

    def __init__(self, model: object) -> None:
        if not isinstance(model, nn.Module):
            what = (
                f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
            )
            raise SondeError(f"`model` must be a torch.nn.Module, got {what}.")
        self.root: nn.Module = names.unwrapped(model)

    def methods(self, module: nn.Module) -> list[str]:
        """Of classes of torch only `forward`: the others are no part of a model."""
        found = own_methods(module, nn.Module)
        return found if not type(module).__module__.startswith("torch.") else ["forward"]

    def children(self, module: nn.Module) -> Iterable[tuple[str, nn.Module]]:
        for name, child in children(module).items():
            if child is not None:
                yield name, names.unwrapped(child)


class Receivers:
    """Which module a method was called on. Replicas of `DataParallel` count as their original."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        # A replica has its own attributes but shares the dict of hooks.
        self._originals = {hooks_key(vars(module)): id(module) for module in modules}

    def key(self, receiver: object) -> int:
        """What the module is known by; of a replica, what its original is known by."""
        # Not by `getattr`: asking a module for an attribute that it lacks takes microseconds.
        own = getattr(receiver, "__dict__", None)
        if own is not None and is_replica_of(own):
            return self._originals.get(hooks_key(own), 0)
        return id(receiver)


class _Inert:
    """Copied or pickled with its module, a hook does nothing any more and needs no Sonde."""

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[..., None]) -> None:
        self._tell = tell

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return contextlib.nullcontext().__exit__

    def __reduce__(self) -> tuple[object, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class OutputHook(_Inert):
    """A forward hook that tells of outputs."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._tell(output)


class PassHook(_Inert):
    """A forward pre-hook that tells of passes that begin."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...]) -> None:
        self._tell()


class EndHook(_Inert):
    """A forward hook that tells of passes that end."""

    __slots__ = ()

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        self._tell()


def on_output(module: nn.Module, tell: Callable[[object], None]) -> Callable[[], None]:
    """Tell of each output of the module, until what is returned is called."""
    return module.register_forward_hook(OutputHook(tell)).remove


def around_calls(
    module: nn.Module, begin: Callable[[], None], end: Callable[[], None]
) -> Callable[[], None]:
    """Tell of each call of the module that begins, and that ends, also by an exception."""
    before = module.register_forward_pre_hook(PassHook(begin), prepend=True)
    after = module.register_forward_hook(EndHook(end), always_call=True)

    def remove() -> None:
        before.remove()
        after.remove()

    return remove


def on_gradients(value: object, tell: Callable[[str, Tensor], None]) -> list[Callable[[], None]]:
    """Tell of the gradient of each tensor in the value, once it is known, by its path inside."""
    handles = []
    for inner, tensor in leaves(value, Tensor, MAX_GRADS):
        if tensor.requires_grad:
            where = "" if tensor is value else inner
            hook = tensor.register_hook(lambda grad, where=where: tell(where, grad))
            handles.append(hook.remove)
    return handles


def is_redone() -> bool:
    """Whether this is a part of a forward that is computed again in a backward pass."""
    return current_backward() != -1


def compiled_modules(model: nn.Module) -> Iterator[str]:
    """The modules that `torch.compile` was asked to replace, by path."""
    wrapped = {id(names.unwrapped(m)) for m in model.modules() if is_compiled_module(m)}
    for path, module in names.modules(model):
        if id(module) in wrapped or compiled_call(module) is not None:
            yield path


def is_whole(model: nn.Module) -> bool:
    """Whether a compiled part of the model has to stay in one piece, so that nothing may stop it.

    Not while compiled code is switched off.
    """
    found = compiler_contexts(model)
    return any(getattr(each, "fullgraph", False) is True for each in found)  # 2.6 does not say


def compile_again(model: nn.Module) -> Callable[[], None]:
    """Drop code that was compiled without a trace, or, by what is returned, with one."""
    several = [module for _, module in names.modules(model)]
    forget_compiled(several)

    def undo() -> None:
        forget_compiled(several)

    return undo


_OURS: list[Callable[..., object]] = [
    *own_functions(),
    OutputHook.__call__,
    PassHook.__call__,
    EndHook.__call__,
]
for _ours in _OURS:
    never_trace(_ours)
