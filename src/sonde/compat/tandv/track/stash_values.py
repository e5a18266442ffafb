"""Stash functions: what a LogFrame holds of one tensor, as a dict. For torch and for JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sonde.logframe import describe

Tensor = Any
"""Of torch or of JAX."""


def stash_all_stats_and_hist(
    tensor: Tensor, min_exp: int = -16, max_exp: int = 16
) -> dict[str, Any]:
    """Statistics and counts of exponents. The default."""
    return describe(_array(tensor), min_exp=min_exp, max_exp=max_exp)


def stash_scalar_stats(tensor: Tensor) -> dict[str, float]:
    """Statistics alone."""
    found: dict[str, float] = describe(_array(tensor))["scalar_stats"]  # type: ignore[assignment]
    return found


def stash_hist(tensor: Tensor, min_exp: int = -16, max_exp: int = 16) -> dict[str, Any]:
    """Counts of exponents alone: `{"exp_hist": {"hist": [...], "bins": [...]}}`."""
    return {"exp_hist": describe(_array(tensor), min_exp=min_exp, max_exp=max_exp)["exp_hist"]}


def stash_full_tensor(tensor: Tensor) -> dict[str, Tensor]:
    """A copy of the tensor. It does not enter a LogFrame; `sonde.trace` keeps whole values."""
    return {"full_tensor": np.array(_array(tensor))}


BUILT_IN = (stash_all_stats_and_hist, stash_scalar_stats, stash_hist, stash_full_tensor)


def exponent_range(stash_value: object) -> tuple[int, int] | None:
    """The range of exponents that one of these functions counts; None of any other function."""
    given: dict[str, int] = {}
    while isinstance(stash_value, partial):
        given = {**stash_value.keywords, **given}
        stash_value = stash_value.func
    if stash_value is not None and stash_value not in BUILT_IN:
        return None
    return given.get("min_exp", -16), given.get("max_exp", 16)


def numbers(found: object) -> dict[str, object]:
    """The scalars in what a stash function of the user returns, by name."""
    if not isinstance(found, dict):
        return {"value": found}
    flat = {name: each for name, each in found.items() if name not in {"scalar_stats", "exp_hist"}}
    return {**flat, **found.get("scalar_stats", {})}


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    if hasattr(tensor, "detach"):
        return np.asarray(tensor.detach().cpu().double().numpy())
    return np.asarray(tensor, np.float64)
