"""What an optax optimizer takes and returns while a function is traced.

`tapped` is the same optimizer with taps: gradients (also before clipping), parameters, updates and
state. It is in place of the user's own where Flax keeps one, `nnx.Optimizer` and `TrainState`, for
as long as a function is traced; other functions use it by name, as `watch.optimizer(tx)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Final

import jax
import optax
from flax import nnx
from flax.training import train_state
from jax import Array

from sonde.capture.jax import trees
from sonde.capture.jax.taps import JaxTap, Tracing, current, tap
from sonde.record import Kind

_CLIPS: Final = ("clip", "adaptive_grad_clip", "per_example")
"""How functions of optax that clip gradients are called."""

_COUNTERS: Final = (
    "count",
    "step",
    "mini_step",
    "gradient_step",
    "notfinite_count",
    "total_notfinite",
)


_HYPERPARAMETERS: Final = frozenset({"hyperparams", "hyperparams_states"})
"""Where `optax.inject_hyperparams` keeps the numbers that an optimizer works with."""

_NAMES: Final = {"learning_rate": "lr", "b1": "betas.0", "b2": "betas.1"}
"""Hyperparameters that PyTorch calls otherwise: names are those of a run of PyTorch."""


_Updated = tuple[optax.Updates, optax.OptState]


def tapped(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """The same optimizer; its arrays are tapped where a function is traced for recording."""
    update = optax.with_extra_args_support(tx).update

    @wraps(update)
    def tapped_update(
        grads: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: object,
    ) -> _Updated:
        tracing = current()
        if tracing is None or tracing.has_update:  # or inside another one
            plain: _Updated = update(grads, state, params, **extra)
            return plain
        tracing.has_update = True
        try:
            return _update(tracing, update, grads, state, params, extra)
        finally:
            tracing.has_update = False

    return optax.GradientTransformationExtraArgs(tx.init, tapped_update)


@contextmanager
def intercepted() -> Iterator[None]:
    """Use tapped optimizers wherever Flax updates parameters inside the block."""
    nnx_update = nnx.Optimizer.update
    apply_gradients = train_state.TrainState.apply_gradients

    @wraps(nnx_update)
    def update(self: nnx.Optimizer, *args: object, **kwargs: object) -> object:
        own = self.tx
        object.__setattr__(self, "tx", tapped(own))
        try:
            return nnx_update(self, *args, **kwargs)
        finally:
            object.__setattr__(self, "tx", own)

    @wraps(apply_gradients)
    def apply(self: train_state.TrainState, **kwargs: object) -> train_state.TrainState:
        return apply_gradients(self.replace(tx=tapped(self.tx)), **kwargs).replace(tx=self.tx)

    nnx.Optimizer.update = update
    train_state.TrainState.apply_gradients = apply
    try:
        yield
    finally:
        nnx.Optimizer.update = nnx_update
        train_state.TrainState.apply_gradients = apply_gradients


def see_trees(
    tracing: Tracing, params: object = None, state: object = None, grads: object = None
) -> list[tuple[JaxTap, Array]]:
    """What there is to record of trees that were given by hand."""
    known = {keys for keys, _ in trees.named(params if params is not None else grads)}
    return [
        *_taps_of(tracing, params, "param"),
        *_taps_of(tracing, grads, "param_grad"),
        *_state_taps(tracing, state, known),
    ]


def scalars_of(state: object) -> list[tuple[str, Array]]:
    """Hyperparameters that an optimizer keeps in its state, by name: `lr`, `weight_decay`.

    Those of one part of `optax.partition` have its label in the name: `lr/head`.
    """
    found: dict[str, Array] = {}
    leaves = jax.tree_util.tree_flatten_with_path(state, is_leaf=_is_injected)[0]
    for path, part in leaves:
        if not _is_injected(part):
            continue
        labels = [str(k.key) for k in path if isinstance(k, jax.tree_util.DictKey)]
        inner = scalars_of(getattr(part, "inner_state", None))
        for name, x in [*getattr(part, "hyperparams", {}).items(), *inner]:
            if isinstance(x, Array) and x.size == 1:
                full = "/".join([_NAMES.get(name, name), *labels])
                found[full if full not in found else f"{full}/{len(found)}"] = x
    return list(found.items())


def _is_injected(part: object) -> bool:
    return isinstance(part, tuple) and isinstance(getattr(part, "hyperparams", None), Mapping)


def _update(
    tracing: Tracing,
    update: Callable[..., _Updated],
    grads: optax.Updates,
    state: optax.OptState,
    params: optax.Params | None,
    extra: Mapping[str, object],
) -> _Updated:
    if params is not None and not tracing.has_parameters:
        _see(_taps_of(tracing, params, "param"))
        tracing.has_parameters = True
    stages = _stages(update, state)
    first, rest = _clipping(stages)
    taken, states = grads, []
    if first:
        _see(_taps_of(tracing, grads, "param_grad", "/before_clip"))
        for own, part in first:
            taken, new = part(taken, own, params, **extra)
            states.append(new)
    _see(_taps_of(tracing, taken, "param_grad"))
    if stages is None:
        updates, new_state = update(taken, state, params, **extra)
    else:
        updates = taken
        for own, part in rest:
            updates, new = part(updates, own, params, **extra)
            states.append(new)
        new_state = tuple(states)
    _see(_taps_of(tracing, updates, "update"))
    known = {keys for keys, _ in trees.named(grads)}
    _see(_state_taps(tracing, new_state, known))
    _see([(JaxTap("optim", "", name, scalar=name), x) for name, x in scalars_of(new_state)])
    return updates, new_state


_Part = tuple[optax.OptState, Callable[..., _Updated]]
"""A stage of a chain: its state and its function."""


def _stages(update: Callable[..., _Updated], state: optax.OptState) -> list[_Part] | None:
    """The states and functions of a chain, in order; None if it is no chain that is known.

    `optax.chain` keeps its functions in a closure. They are called here as it calls them.
    """
    if getattr(update, "__qualname__", "") != "chain.<locals>.update_fn":
        return None
    names = update.__code__.co_freevars
    cells = dict(zip(names, update.__closure__ or (), strict=True))
    if "update_fns" not in cells or not isinstance(state, tuple):
        return None
    functions = cells["update_fns"].cell_contents
    if len(functions) != len(state):
        return None
    return list(zip(state, functions, strict=True))


def _clipping(stages: list[_Part] | None) -> tuple[list[_Part], list[_Part]]:
    """The stages up to the last that clips, if nothing but clipping comes before; and the rest."""
    n = 0
    for _, part in stages or ():
        if not _name(part).startswith(_CLIPS):
            break
        n += 1
    return (stages or [])[:n], (stages or [])[n:]


def _name(part: object) -> str:
    """Which function of optax made it, also behind the wrapper that takes more arguments."""
    for cell in getattr(part, "__closure__", None) or ():
        inner = cell.cell_contents
        made = getattr(getattr(inner, "update", None), "__qualname__", "")
        if made:
            return str(made)
    return str(getattr(part, "__qualname__", ""))


def _see(taps: list[tuple[JaxTap, Array]]) -> None:
    for what, x in taps:
        tap(x, what)


def _taps_of(
    tracing: Tracing, tree: object, kind: Kind, suffix: str = ""
) -> list[tuple[JaxTap, Array]]:
    if tree is None or kind not in tracing.kinds:
        return []
    found = []
    for keys, x in trees.named(tree):
        path, name = trees.place_of(keys)
        trains = True if kind == "param" else None
        module = tracing.modules.get(path)
        found.append((JaxTap(kind, path, name + suffix, None, "", module, trains), x))
    return found


def _state_taps(
    tracing: Tracing, state: object, known: set[trees.Keys]
) -> list[tuple[JaxTap, Array]]:
    """State by parameter: `kernel/mu`. Counters are left out, as they say nothing about tensors."""
    if state is None or "optim" not in tracing.kinds:
        return []
    found: dict[tuple[str, str], tuple[JaxTap, Array]] = {}
    for keys, x in trees.named(state):
        if not _HYPERPARAMETERS.isdisjoint(keys):
            continue
        at = next((i for i in range(len(keys)) if keys[i:] in known), None)
        if at is None:
            if keys and keys[-1] in _COUNTERS:
                continue
            path, slot = "", ".".join(keys)
        else:
            path, name = trees.place_of(keys[at:])
            words = [k for k in keys[:at] if not k.isdigit()]
            slot = f"{name}/{words[-1] if words else 'state'}"
            if (path, slot) in found:
                slot = f"{name}/{'.'.join(keys[:at])}"
        module = tracing.modules.get(path)
        found[path, slot] = (JaxTap("optim", path, slot, None, "", module), x)
    return list(found.values())
