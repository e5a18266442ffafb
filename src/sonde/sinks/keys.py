"""Keys in a run that is the user's as well: nothing of ours takes a name of theirs."""

from __future__ import annotations

from typing import Final

from sonde.sinks.sink import Series

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
