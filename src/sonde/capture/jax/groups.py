"""Groups: what a traced function leaves at its taps, with the loops that repeat it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import jax.numpy as jnp
from jax import Array

from sonde.capture.jax.taps import Call, JaxTap
from sonde.kernels import xla
from sonde.metrics.model import Metric

MOST_TURNS: Final = 256
"""Turns of a loop that are told apart where no parameter says whether they are layers."""


@dataclass(eq=False)
class Loop:
    """A `scan`: how many turns it has, and the calls that happen in each. Or, with a `path`, a
    module whose parameters are stacked for one."""

    length: int
    calls: frozenset[Call] = frozenset()
    path: str | None = None

    def runs_over_layers(self, call: Call) -> bool:
        """Whether the model keeps parameters of the call's module for each turn."""
        if call.size and call.whole:
            return call.whole == self.length * call.size and self.length > 1
        return self.length <= MOST_TURNS


@dataclass(frozen=True)
class Cut:
    """An array that was tapped, as it was in the function."""

    tap: JaxTap
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Arrays that were sketched together: their rows, of shape (*loops, devices, cuts, ROW)."""

    cuts: tuple[Cut, ...]
    rows: Array
    loops: tuple[Loop, ...] = ()

    @property
    def n_rows(self) -> int:
        """Rows per device."""
        return math.prod(loop.length for loop in self.loops) * len(self.cuts)

    def empty(self) -> Array:
        """Rows of the same shape, of nothing: those of a branch that is not taken."""
        return jnp.broadcast_to(xla.empty_rows(1)[0], self.rows.shape)


@dataclass(frozen=True, kw_only=True)
class MetricGroup(Group):
    """What a metric returned for one array, of shape (*loops, 2): what its `size` elements were
    reduced to, and 1, or 0 in a branch that was not taken. Or, if `is_raw`, all that it returned.

    `key` is that of a dict, if it returned one.
    """

    metric: Metric
    key: str
    size: int
    is_raw: bool = False

    def empty(self) -> Array:
        return jnp.zeros(self.rows.shape, self.rows.dtype)
