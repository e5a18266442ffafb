"""Numerics of a step: means over all tensors of a type, as Track & Visualize logs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from sonde.record import Kind
from sonde.sketch import Sketch, columns_of, merge_groups, row, statistic

_TYPES: Final[Mapping[Kind, str]] = {
    "output": "Activation",
    "output_grad": "Gradient",
    "param": "Weights",
    "param_grad": "Weight_Gradients",
    "optim": "Optimiser_State",
}
_LOW, _HIGH = -17, 16
"""Values below 2**-17 count as underflow, those of 2**16 and above as overflow."""


def numerics(tensors: Iterable[tuple[Kind, Sketch]], stats: Sequence[str]) -> dict[str, float]:
    """`Numerics.Activation/rms` and so on: means over tensors of what is finite, and the shares of
    values that underflow and overflow, `Numerics.Activation/underflow_rate`."""
    by_type: dict[str, list[Sketch]] = {}
    for kind, sketch in tensors:
        if kind in _TYPES:
            by_type.setdefault(_TYPES[kind], []).append(sketch)
    found: dict[str, float] = {}
    for name, sketches in by_type.items():
        columns = columns_of(sketches)
        for stat in stats:
            values = statistic(stat)(columns)
            values = values[np.isfinite(values)]
            found[f"Numerics.{name}/{stat}"] = float(values.mean()) if len(values) else np.nan
        together = merge_groups(columns, np.zeros(len(sketches), np.int64), 1)
        under, over = _rates(row(together, 0))
        found[f"Numerics.{name}/underflow_rate"] = under
        found[f"Numerics.{name}/overflow_rate"] = over
    return found


def _rates(sketch: Sketch) -> tuple[float, float]:
    """Shares of all values but zeros and NaN."""
    found = sketch.exponents()
    over = found.counts[found.exponents >= _HIGH].sum() + found.pos_infs + found.neg_infs
    under = found.counts[found.exponents < _LOW].sum()
    total = found.counts.sum() + found.pos_infs + found.neg_infs
    return (float(under / total), float(over / total)) if total else (np.nan, np.nan)
