"""Keys in a run that is the user's as well: nothing of ours takes a name of theirs."""

from __future__ import annotations

from typing import Final

from sonde.sinks.sink import HISTOGRAM, Series

_GROUPS: Final = {"activation": "activations", "gradient": "gradients", "parameter": "parameters"}


def shared_key(series: Series) -> str:
    """`gradients/h.0.mlp.weight/rms`, `activations/h.0/rms`, `metrics/h.0.attn/entropy`,
    `sonde/loss`; behind the phase if that is not `train`. The histogram of a gradient is
    `gradients/h.0.mlp.weight`, as with `wandb.watch`."""
    phase = "" if series.phase == "train" else f"{series.phase}/"
    key = series.key.removeprefix(phase)
    if series.module is None:
        return f"{phase}sonde/{key}"
    group, _, rest = key.partition("/")
    if series.kind is None:
        return f"{phase}metrics/{rest}"
    return f"{phase}{_GROUPS.get(group, group)}/{rest}"


def torchwatcher_key(series: Series, base_namespace: str) -> str:
    """`model_internals/parameters/fc1/weight/mean`: the names of TorchWatcher, behind the phase if
    that is not `train`."""
    phase = "" if series.phase == "train" else f"{series.phase}/"
    key = shared_key(series).removeprefix(phase)
    if series.kind == "output_grad":  # what TorchWatcher calls the gradients of a layer
        key = key.replace("output_grad/", "gradients/", 1)
    if series.kind in {"param", "param_grad", "update", "optim"} and series.module:
        key = key.replace(f"/{series.module}.", f"/{series.module}/", 1)
    if series.name == HISTOGRAM and series.kind is not None:
        key = f"{key}/hist"
    return f"{phase}{base_namespace}/{key}"
