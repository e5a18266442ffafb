"""Underflow and overflow rates of tensors, per type and step."""

from __future__ import annotations

import math

from sonde.logframe.schema import Frame, exponent, validate


def rates(frame: Frame) -> Frame:
    """`underflow_rate` and `overflow_rate` by tensor type and step, as shares of all values."""
    validate(frame)
    counts = frame["exponent_counts"]
    places = {exponent(name): name for name in counts.columns}
    keys = [frame["metadata", "tensor_type"], frame["metadata", "step"]]
    summed = counts.groupby([k.rename(k.name[1]) for k in keys]).sum()
    total = summed.sum(axis=1)
    found = summed[[places[-math.inf], places[math.inf]]].div(total.where(total > 0), axis=0)
    found.columns = ["underflow_rate", "overflow_rate"]
    return found
