"""`track` for JAX and Flax, under the names of `tandv.track.jax`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

import jax

from sonde.compat.tandv.track.stash_values import (
    stash_all_stats_and_hist,
    stash_full_tensor,
    stash_hist,
    stash_scalar_stats,
)
from sonde.compat.tandv.track.tracker import NamePattern, OffloadType, Tracker
from sonde.jax import watch
from sonde.record import Kind

__all__ = [
    "JaxTracker",
    "stash_all_stats_and_hist",
    "stash_full_tensor",
    "stash_hist",
    "stash_scalar_stats",
    "track",
]

Tree = Any
P = ParamSpec("P")
T = TypeVar("T")


class JaxTracker(Tracker):
    """Tracks functions of JAX, jitted or not."""

    model_state: Tree = None
    needs: tuple[str, ...] = ()

    def intercept(self, f: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `f(*args)` returns; the modules of Flax that it calls are recorded."""
        return self.watch.intercept(f, *args, **kwargs)

    def step(
        self, model_state: Tree = None, optimizer_state: Tree = None, gradients: Tree = None
    ) -> None:
        """End the step, with the trees that are tracked: what the update returned."""
        given = {
            "model_state": model_state,
            "optimizer_state": optimizer_state,
            "gradients": gradients,
        }
        for name in self.needs:
            if given[name] is None:
                raise AssertionError(
                    f"Pass `{name}` to `tracker.step()`: it is tracked, as `track()` was told."
                )
        used, self.model_state = self.model_state, model_state
        self.watch.step(_alive(used), optimizer_state, gradients)


def track(
    model_state: Tree = None,
    optimizer_state: Tree = None,
    track_gradients: bool = False,
    include: NamePattern = None,
    exclude: NamePattern = None,
    stash_value: Callable[[jax.Array], Any] | None = None,
    async_offload: bool = False,
    offload_inc: int = 10,
    offload_type: OffloadType = ".pkl",
    use_wandb: bool = False,
    init_step: int | None = None,
) -> JaxTracker:
    """Record every step of a training into `./tandv/<run>`, with a LogFrame at the end.

    `async_offload` and `offload_inc` have no effect: a thread of the watch writes the run every two
    seconds. docs/migration.md says what else differs.
    """
    del async_offload, offload_inc
    kinds: list[Kind] = ["output"]
    kinds += ["output_grad", "param_grad"] if track_gradients else []
    kinds += ["param"] if model_state is not None else []
    kinds += ["optim"] if optimizer_state is not None else []
    tracker = JaxTracker(
        partial(watch, _no_tree if model_state is None else model_state),
        kinds,
        stash_value,
        include=include,
        exclude=exclude,
        offload_type=offload_type,
        use_wandb=use_wandb,
        init_step=init_step,
    )
    tracker.model_state = model_state
    tracker.needs = (
        *(["model_state"] if model_state is not None else []),
        *(["optimizer_state"] if optimizer_state is not None else []),
        *(["gradients"] if track_gradients else []),
    )
    return tracker


def _no_tree(params: Tree) -> Tree:
    """What is watched where no parameters are given: any function over a pytree."""
    return params


def _alive(tree: Tree) -> Tree:
    """The weights that the step used; None where they were donated: then calls have shown them."""
    leaves = jax.tree.leaves(tree)
    return None if any(isinstance(x, jax.Array) and x.is_deleted() for x in leaves) else tree
