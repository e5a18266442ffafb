"""Metrics by step in memory, and as HDF5: a group for each name, with `keys` and `values`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from numbers import Number
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde._require import require

Metrics = dict[str, object]


class StorageManager:
    """Numbers by step and name: `{step: {name: value}}`."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self.log_dict: dict[int, Metrics] = {}
        self.aggregation_fns: dict[str, Callable[..., object]] = {}
        self.logger = logger

    def create_step_entry(self, step: int) -> None:
        """Know the step. What it has already is kept."""
        self.log_dict.setdefault(step, {})

    def has_step(self, step: int) -> bool:
        """Whether the step is known."""
        return step in self.log_dict

    def get_step_metrics(self, step: int) -> Metrics:
        """The metrics of a step, by name."""
        return self.log_dict.get(step, {})

    def get_all_metrics(self) -> dict[int, Metrics]:
        """The metrics of all steps."""
        return self.log_dict

    def load_metrics(self, log_dict: dict[int, Metrics]) -> None:
        """Begin with these.

        Raises:
            ValueError: There are some already.
        """
        if self.log_dict:
            raise ValueError("There are metrics already. Call `clear()` before loading others.")
        self.log_dict = log_dict

    def clear(self) -> None:
        """Forget all metrics."""
        self.log_dict = {}

    def log_scalar(
        self,
        step: int,
        key: str,
        value: object,
        aggregation_fn: Callable[..., object] | None = None,
    ) -> None:
        """Keep a number; several of one name are aggregated at the end of the step."""
        number = as_number(key, value)
        metrics = self.log_dict.setdefault(step, {})
        before = metrics.get(key, [])
        several = [*before, number] if isinstance(before, list) else [before, number]
        metrics[key] = several if key in metrics else number
        if aggregation_fn is not None:
            self.aggregation_fns[key] = aggregation_fn

    def log_tensor(
        self,
        step: int,
        key: str,
        tensor: Tensor,
        aggregation_fn: Callable[..., object] | None = None,
    ) -> None:
        """Keep the elements of a tensor, which are aggregated at the end of the step."""
        metrics = self.log_dict.setdefault(step, {})
        cast("list[Tensor]", metrics.setdefault(key, [])).append(tensor.detach().flatten())
        if aggregation_fn is not None:
            self.aggregation_fns[key] = aggregation_fn

    def aggregate_step(self, step: int) -> None:
        """Make one number of all values of a name: their mean, or what its function says.

        A function that returns a dict makes a number for each suffix.
        """
        metrics = self.log_dict.get(step)
        if metrics is None:
            return
        for key, values in list(metrics.items()):
            if isinstance(values, list) and values:
                del metrics[key]
                given = torch.cat(values) if isinstance(values[0], Tensor) else values
                made = self.aggregation_fns.get(key, _mean)(given)
                several = made if isinstance(made, Mapping) else {"": made}
                metrics.update({key + suffix: as_number(key, v) for suffix, v in several.items()})
        self.tell(step)

    def tell(self, step: int) -> None:
        """Say at level INFO how many names a step has, and how large all numbers are."""
        if self.logger is not None:
            size = sum(8 * len(metrics) for metrics in self.log_dict.values())
            names = len(self.log_dict[step])
            self.logger.info("Logged %d keys at step %d. Values take %d bytes.", names, step, size)

    def condensed_log_dict(self) -> dict[str, dict[int, object]]:
        """The metrics by name, then by step."""
        found: dict[str, dict[int, object]] = {}
        for step, metrics in self.log_dict.items():
            for key, value in metrics.items():
                found.setdefault(key, {})[step] = value
        return found

    def save_hdf5(self, filename: str | os.PathLike[str], condensed: bool = True) -> None:
        """Write all metrics: a group for each name, or for each step if not `condensed`."""
        h5py = require("h5py", extra="hdf5")
        groups: Mapping[object, Mapping[object, object]]
        groups = self.condensed_log_dict() if condensed else self.log_dict  # type: ignore[assignment]  # keys of either type
        with h5py.File(os.fspath(filename), "w") as file:
            for name, entries in groups.items():
                group = file.create_group(str(name))
                if condensed:
                    group["keys"] = np.array(list(entries), dtype=np.float64)
                else:
                    group.create_dataset("keys", data=list(entries), dtype=h5py.string_dtype())
                group["values"] = np.array(list(entries.values()), dtype=np.float64)

    @staticmethod
    def read_hdf5_entry_keys(filename: str | os.PathLike[str]) -> list[str]:
        """The names in a file, whole: `activation/0/norm`."""
        h5py = require("h5py", extra="hdf5")
        found: list[str] = []
        with h5py.File(os.fspath(filename), "r") as file:
            file.visit(found.append)
        return [name.removesuffix("/keys") for name in found if name.endswith("/keys")]

    @staticmethod
    def read_hdf5_entry(
        filename: str | os.PathLike[str], entry_key: object
    ) -> tuple[NDArray[np.generic], NDArray[np.float64]] | None:
        """The keys and values of a name; None if it is not there."""
        h5py = require("h5py", extra="hdf5")
        with h5py.File(os.fspath(filename), "r") as file:
            group = file.get(str(entry_key))
            if group is None or "keys" not in group:
                return None
            is_text = h5py.check_string_dtype(group["keys"].dtype) is not None
            keys = group["keys"].asstr()[:] if is_text else group["keys"][:]
            return keys, group["values"][:]

    @staticmethod
    def load_hdf5(filename: str | os.PathLike[str]) -> dict[str, dict[object, float]]:
        """What `save_hdf5` wrote: by name, then by step."""
        found: dict[str, dict[object, float]] = {}
        for name in StorageManager.read_hdf5_entry_keys(filename):
            entry = StorageManager.read_hdf5_entry(filename, name)
            assert entry is not None
            found[name] = dict(zip(entry[0].tolist(), entry[1].tolist(), strict=True))
        return found


def as_number(key: str, value: object) -> Number:
    """A number, also of a tensor that holds one.

    Raises:
        ValueError: It is none.
    """
    if isinstance(value, Tensor | np.generic) and np.prod(value.shape) == 1:
        value = value.item()
    if not isinstance(value, Number):
        raise ValueError(f"`{key}` must be a number, got {value!r}.")  # noqa: TRY004  # as the original
    return value


def _mean(values: list[float] | Tensor) -> object:
    return values.double().mean() if isinstance(values, Tensor) else np.mean(values)
