"""The backend for JAX. Loaded only where Flax has been imported, or by `sonde.jax`."""

from __future__ import annotations

from typing import Final

import jax
import numpy as np

from sonde._errors import SondeError
from sonde.capture.backend import Backend, Prepared, described
from sonde.capture.drain import Drain
from sonde.capture.jax import modules
from sonde.capture.jax.session import JaxSession
from sonde.capture.plan import Plan, Schedule


class PlainFunction:
    """A function over a pytree of parameters in place of a model, or the parameters themselves."""

    def __init__(self, function: object) -> None:
        is_function = callable(function) and not isinstance(function, type)
        if not is_function and not _holds_arrays(function):
            raise SondeError(
                "`model` must be a flax.nnx.Module, a flax.linen.Module, a function over a pytree "
                f"of parameters, or such a pytree, got {described(function)}."
            )
        self.function = function
        named = getattr(function, "__name__", type(function).__name__)
        self.name = str(named) if is_function else "parameters"


def _holds_arrays(tree: object) -> bool:
    return any(isinstance(x, jax.Array | np.ndarray) for x in jax.tree_util.tree_leaves(tree))


class JaxBackend:
    """Watches modules of Flax, and plain functions where `sonde.jax.watch` is asked."""

    name = "jax"

    def takes(self, model: object) -> bool:
        return modules.is_model(model) or isinstance(model, PlainFunction)

    def prepare(self, model: object, optimizer: object, plan: Plan) -> Prepared:
        _check_optimizer(optimizer)

        def start(schedule: Schedule, drain: Drain, step: int) -> JaxSession:
            return JaxSession(model, plan, schedule, drain, step=step)

        return Prepared(
            model_type=model.name if isinstance(model, PlainFunction) else type(model).__name__,
            optimizer_types=[] if optimizer is None else [type(optimizer).__name__],
            updates=_updates_of(optimizer),
            start=start,
        )


def _check_optimizer(optimizer: object) -> None:
    """An `nnx.Optimizer` or an optimizer of optax's."""
    if optimizer is not None and not callable(getattr(optimizer, "update", None)):
        raise SondeError(
            f"`optimizer` must be an nnx.Optimizer or an optax optimizer, got "
            f"{type(optimizer).__name__}."
        )


def _updates_of(optimizer: object) -> int | None:
    """How many updates an `nnx.Optimizer` has made."""
    step = getattr(optimizer, "step", None)
    if step is None or not hasattr(step, "get_value"):
        return None
    return int(step.get_value())


BACKEND: Final[Backend] = JaxBackend()
