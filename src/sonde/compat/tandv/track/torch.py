"""`track` for PyTorch, under the names of `tandv.track.torch`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from sonde.compat.tandv.track.stash_values import (
    stash_all_stats_and_hist,
    stash_full_tensor,
    stash_hist,
    stash_scalar_stats,
)
from sonde.compat.tandv.track.tracker import NamePattern, OffloadType, Tracker
from sonde.record import Kind
from sonde.watching import watch

__all__ = [
    "TorchTracker",
    "stash_all_stats_and_hist",
    "stash_full_tensor",
    "stash_hist",
    "stash_scalar_stats",
    "track",
]

StashValueFn = Callable[[Tensor], Any]


class TorchTracker(Tracker):
    """Tracks a torch module."""

    is_ended_by_optimizer = False

    def step(self) -> None:
        """End the step. Call it after the optimizer's update; one that was given ends it itself."""
        if not self.is_ended_by_optimizer:
            self.watch.step()


def track(
    module: nn.Module,
    track_gradients: bool = True,
    optimizer: Optimizer | None = None,
    track_weights: bool = True,
    include: NamePattern = None,
    exclude: NamePattern = None,
    stash_value: StashValueFn | None = None,
    async_offload: bool = False,
    offload_inc: int = 10,
    offload_type: OffloadType = ".pkl",
    use_wandb: bool = False,
    only_stash_during_training: bool = True,
    init_step: int | None = None,
) -> TorchTracker:
    """Record every step of a module into `./tandv/<run>`, with a LogFrame at the end.

    `async_offload` and `offload_inc` have no effect: a thread of the watch writes the run every two
    seconds. docs/migration.md says what else differs.
    """
    del async_offload, offload_inc
    kinds: list[Kind] = ["output"]
    kinds += ["output_grad"] if track_gradients else []
    kinds += ["param"] if track_weights else []
    kinds += ["param_grad"] if track_weights and track_gradients else []
    kinds += ["optim"] if optimizer is not None else []
    tracker = TorchTracker(
        partial(watch, module, optimizer),
        kinds,
        stash_value,
        include=include,
        exclude=exclude,
        offload_type=offload_type,
        use_wandb=use_wandb,
        init_step=init_step,
        phases=("train",) if only_stash_during_training else ("train", "eval"),
    )
    tracker.is_ended_by_optimizer = optimizer is not None
    return tracker
