"""The reference: a model to compare with, usually the watched one as it was at its beginning.

Its forward is run by the user, before that of the watched model and on the same inputs, or else by
Sonde. What it computes is kept by module and call until the watched model has come to the same
place, and freed there. Passes are matched by the tensor that they were given, else in order.

A tensor is kept as it is, not copied. If it was changed in place afterwards it cannot be used; that
is told, and from then on it is copied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn

from sonde._errors import SondeError
from sonde._torch_internals.tensors import version_of
from sonde.capture.leaves import leaves
from sonde.capture.torch import names
from sonde.capture.torch.hooks import MAX_SLOTS
from sonde.capture.torch.metrics.isolation import Buffers, same_random_numbers
from sonde.capture.troubles import Troubles
from sonde.graph.torch.inert import InertHook

_PLAIN: Final = (
    Tensor,
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    torch.dtype,
    torch.device,
    torch.Size,
)
"""What a call can be given again without side effects."""

_MAX_WAITING: Final = 64
"""Reference passes that wait for the watched model; a user who never runs it must not pile up."""

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """A tensor and its version then."""

    x: Tensor
    version: int


@dataclass(slots=True)
class _Pass:
    """A pass of the reference: which module was called, with which first tensor."""

    path: str = ""
    given: ref[Tensor] | None = None
    shape: tuple[int, ...] = ()
    outputs: dict[tuple[str, int], dict[str, _Kept]] = field(default_factory=dict)
    inputs: dict[tuple[str, int], _Kept] = field(default_factory=dict)


class Reference:
    """A model with hooks on it that keep what it computes while that is wanted.

    If it `is_own`, a private copy, it is in the same mode as the watched model.
    """

    def __init__(
        self,
        model: nn.Module,
        like: nn.Module,
        troubles: Troubles,
        *,
        is_awake: Callable[[], bool],
        runs: bool,
        is_own: bool,
    ) -> None:
        self.model = names.unwrapped(model)
        self.modules = dict(names.modules(model))
        _check(self.modules, dict(names.modules(like)))
        self.parameters = {
            f"{path}.{name}" if path else name: p for path, name, _, p in names.parameters(model)
        }
        self.runs = runs
        self.wants_output: Callable[[str], bool] = lambda _path: False
        self.wants_input: Callable[[str], bool] = lambda _path: False
        self._is_awake = is_awake
        self._is_own = is_own
        self._troubles = troubles
        self._buffers: dict[nn.Module, Buffers] = {}
        self._copied: set[tuple[str, str]] = set()
        self._waiting: deque[_Pass] = deque(maxlen=_MAX_WAITING)
        self._current = _Pass()
        self._has_current = False
        self._open: _Pass | None = None
        self._stack: list[tuple[str, int]] = []
        self._calls: dict[str, int] = {}
        self._is_replaying = False
        self._handles = [
            handle
            for path, module in self.modules.items()
            for handle in (
                module.register_forward_pre_hook(
                    _ReferenceHook(self._enter, path, troubles), with_kwargs=True
                ),
                module.register_forward_hook(
                    _ReferenceHook(self._leave, path, troubles), always_call=True
                ),
            )
        ]

    def close(self) -> None:
        """Take every hook off and let go of what is kept."""
        for handle in self._handles:
            handle.remove()
        self.end_step()

    # -- what the watched model asks for -------------------------------------------------------

    def begin_pass(self, path: str, given: Tensor | None) -> None:
        """The watched model begins a pass: it is compared with the one here that was given the same
        tensor; if there is none, with the oldest one that looks like it."""
        self._has_current = False
        self._current = _Pass()
        alike = [p for p in self._waiting if p.path == path and p.shape == _shape(given)]
        same = [p for p in alike if p.given is not None and p.given() is given]
        chosen = next(iter(same or alike), None)
        if chosen is not None:
            self._has_current, self._current = True, chosen
            while self._waiting.popleft() is not chosen:
                pass

    def run(self, like: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Run the reference on what the watched model is about to be given, unless the user has."""
        if self._has_current or not self.runs:
            return
        if self._is_own:
            for path, module in names.modules(like):
                if path in self.modules:
                    self.modules[path].training = module.training
        if (strange := unrepeatable((args, kwargs))) is not None:
            self._troubles.skip("reference", f"a call with {strange} cannot be made twice")
            self.runs = False
            return
        with torch.no_grad(), same_random_numbers(), self._kept_buffers(self.model):
            given = self.moved((args, kwargs))
            self.model(*given[0], **given[1])
        self.begin_pass("", first_tensor(args, kwargs))

    def output(self, path: str, call: int, slot: str, like: Tensor) -> Tensor | None:
        """What the reference returned there, on the device of the tensor it is compared with."""
        kept = self._current.outputs.get((path, call), {}).get(slot)
        return self._usable(path, slot, kept, like)

    def input(self, path: str, call: int, like: Tensor) -> Tensor | None:
        """The first tensor that the reference was given there."""
        return self._usable(path, "input", self._current.inputs.get((path, call)), like)

    def parameter(self, full: str, like: Tensor) -> Tensor | None:
        """The parameter of that name."""
        found = self.parameters.get(full)
        return None if found is None else found.detach().to(like.device, non_blocking=True)

    def replay(self, path: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Call the module of the reference as the watched one is called now."""
        module = self.modules[path]
        self._is_replaying = True
        try:
            with torch.no_grad(), same_random_numbers(), self._kept_buffers(module):
                args, kwargs = self.moved((args, kwargs))
                return module(*args, **kwargs)
        finally:
            self._is_replaying = False

    def drop(self, path: str, call: int) -> None:
        """The watched model has left that place: what was kept for it is not needed any more."""
        self._current.outputs.pop((path, call), None)
        self._current.inputs.pop((path, call), None)

    def end_step(self) -> None:
        """Forget every pass, used or not."""
        self._waiting.clear()
        self._current, self._has_current = _Pass(), False

    def moved(self, value: T) -> T:
        """The same values on the reference's device, free of the graph of the watched model."""
        device = next((p.device for p in self.parameters.values()), None)
        found: T = _mapped(value, lambda x: x.detach() if device is None else x.detach().to(device))
        return found

    # -- hooks ---------------------------------------------------------------------------------

    def _enter(
        self, path: str, module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        if self._is_replaying:
            return
        if not self._stack:
            given = first_tensor(args, kwargs)
            about = (path, None if given is None else ref(given), _shape(given))
            self._open = _Pass(*about) if self._is_awake() else None
            self._calls.clear()
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        self._stack.append((path, call))
        if self._open is None:
            return
        if getattr(module, "inplace", False):
            self._copy_before_it_changes(args)
        if self.wants_input(path) and (first := first_tensor(args, kwargs)) is not None:
            self._open.inputs[path, call] = self._keep(path, "input", first)

    def _leave(
        self, path: str, module: nn.Module, args: tuple[object, ...], output: object
    ) -> None:
        if self._is_replaying or not self._stack:
            return
        while self._stack[-1][0] != path and len(self._stack) > 1:
            self._stack.pop()
        _, call = self._stack.pop()
        if self._open is not None and self.wants_output(path):
            self._open.outputs[path, call] = {
                slot: self._keep(path, slot, x) for slot, x in leaves(output, Tensor, MAX_SLOTS)
            }
        if not self._stack and self._open is not None:
            self._waiting.append(self._open)
            self._open = None

    def _keep(self, path: str, slot: str, x: Tensor) -> _Kept:
        x = x.detach()
        if (path, slot) in self._copied:
            x = x.clone()
        return _Kept(x, _version(x))

    def _copy_before_it_changes(self, args: object) -> None:
        """A module is about to write into its argument, which may be what another returned."""
        assert self._open is not None
        written = {x.untyped_storage().data_ptr() for _, x in leaves(args, Tensor, MAX_SLOTS)}
        several = [*self._open.inputs.values()]
        several += [kept for slots in self._open.outputs.values() for kept in slots.values()]
        for kept in several:
            if kept.x.untyped_storage().data_ptr() in written:
                kept.x = kept.x.clone()
                kept.version = _version(kept.x)

    def _usable(self, path: str, slot: str, kept: _Kept | None, like: Tensor) -> Tensor | None:
        if kept is None:
            return None
        if _version(kept.x) != kept.version:
            self._copied.add((path, slot))
            where = f"{path or '.'}/{slot}"
            self._troubles.skip(where, "the reference wrote into this tensor after it was made")
            return None
        return kept.x.to(like.device, non_blocking=True)

    def _kept_buffers(self, module: nn.Module) -> AbstractContextManager[None]:
        if module not in self._buffers:
            self._buffers[module] = Buffers(module)
        return self._buffers[module].kept()


class _ReferenceHook(InertHook):
    """A hook that does nothing in a copy of the reference."""

    def __init__(self, act: Callable[..., None], path: str, troubles: Troubles) -> None:
        self._act = act
        self._path = path
        self._troubles = troubles

    def __call__(self, module: nn.Module, args: tuple[object, ...], more: object) -> None:
        try:
            self._act(self._path, module, args, more)
        except Exception as error:
            self._troubles.failed("reference", error)


def first_tensor(args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor | None:
    """The first tensor that a call is given."""
    found = leaves(args, Tensor, 1) or leaves(kwargs, Tensor, 1)
    return found[0][1] if found else None


def unrepeatable(value: object, depth: int = 6) -> str | None:
    """The type of something in the arguments that a second call could change, such as a cache."""
    if value is None or isinstance(value, _PLAIN) or callable(value) or depth == 0:
        return None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return next((s for v in value if (s := unrepeatable(v, depth - 1)) is not None), None)
    return f"a {type(value).__name__}"


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(v, change) for v in value))
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _mapped(v, change) for k, v in value.items()}
    return value


def _shape(x: Tensor | None) -> tuple[int, ...]:
    return () if x is None else tuple(x.shape)


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else version_of(x)


def _check(found: dict[str, nn.Module], expected: dict[str, nn.Module]) -> None:
    missing = [p for p in expected if p not in found]
    more = [p for p in found if p not in expected]
    if missing or more:
        which = f"it lacks `{missing[0]}`" if missing else f"it also has `{more[0]}`"
        raise SondeError(
            f"A reference must have the same modules as the watched model, but {which}. "
            f"A copy does: copy.deepcopy(model)."
        )
