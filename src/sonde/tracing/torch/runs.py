"""A run as the place where traced values are kept: whole, and as sketches of kind `local`."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor

from sonde._errors import SondeError
from sonde.capture.torch.rows.host import table_for
from sonde.kernels.torch import Unsupported, name_of
from sonde.record import Event, Site, SiteInfo, SketchBatch
from sonde.sketch import concatenate
from sonde.tracing.results import Result
from sonde.tracing.torch.distributed import to_arrays
from sonde.tracing.windows import TracedVariable

if TYPE_CHECKING:
    from sonde.capture.torch.rows.host import SketchTable
    from sonde.store.tensors import TracedValue
    from sonde.store.writing.writer import Writer

_FIRST_ID: Final = 1 << 24
"""Ids of sites that traces declare begin here; those of captures count from 0."""

_MAX_CALLS: Final = 16
"""Calls of a method in a step that have sketches of their own; values are kept of all."""

_WAIT_S: Final = 10.0

_IDS: weakref.WeakKeyDictionary[Writer, itertools.count[int]] = weakref.WeakKeyDictionary()
"""The next id of each writer: several traces may write one run."""


class RunDestination:
    """Keeps values in the run that a writer writes. See `sonde.tracing.pipeline.Destination`."""

    is_memory = False
    is_shared = True

    def __init__(
        self, writer: Writer, packing: ModuleType, traced_value: type[TracedValue]
    ) -> None:
        """The module and the class of the store are given by the owner."""
        self._writer = writer
        self._packing = packing
        self._traced_value = traced_value
        self._ids = _IDS.setdefault(writer, itertools.count(_FIRST_ID))
        self._sites: dict[tuple[Site, str], int] = {}
        self._table: SketchTable | None = None
        self._skipped: set[str] = set()

    def sources(self, sources: Sequence[tuple[str, int, str]]) -> None:
        """Keep the text of the methods that are traced."""
        if sources:
            self._writer.tensors(
                [
                    self._traced_value(name, "", name, -1, "", 0, first, "source", text)
                    for name, first, text in sources
                ]
            )

    def put(self, variable: TracedVariable, result: Result) -> None:
        kept = []
        for n, value in enumerate(result.values):
            step, phase, call, line = _when(result, n)
            arrays = to_arrays(value, self._packing.PackedArray)
            is_tensor = isinstance(arrays, self._packing.PackedArray)
            tree, parts = self._packing.flatten(arrays)
            kept.append(
                self._traced_value(
                    variable.name,
                    variable.module,
                    variable.slot,
                    step,
                    phase,
                    call,
                    line,
                    "tensor" if is_tensor else "value",
                    None if is_tensor else tree,
                    parts,
                )
            )
            if isinstance(value, Tensor):
                self._sketch(variable, value, step, phase, call)
        if kept and not self._writer.tensors(kept, wait_s=_WAIT_S):
            raise SondeError(
                f"the run takes no more values, {len(kept)} of step {kept[0].step} on are lost. "
                "Close a trace before the watch that it writes to; else the disk is too slow: "
                "trace less."
            )

    def close(self) -> None:
        """The writer belongs to the watch."""

    def _sketch(
        self, variable: TracedVariable, value: Tensor, step: int, phase: str, call: int
    ) -> None:
        if call >= _MAX_CALLS:
            self._skip(variable.name, f"more than {_MAX_CALLS} calls in a step")
            return
        if self._table is None:
            self._table = table_for(torch.device("cpu"))
            self._table.ensure(1)
        try:
            if value.numel():
                self._table.add(0, value)
        except Unsupported as reason:
            self._table.discard()
            self._skip(variable.name, str(reason))
            return
        sketches = concatenate([self._table.take().sketches(np.zeros(1, np.int64))])
        site = Site(variable.module, "local", call, variable.slot)
        key = (site, name_of(value.dtype))
        if key not in self._sites:
            self._sites[key] = next(self._ids)
            info = SiteInfo(
                self._sites[key], site, key[1], tuple(value.shape), variable.module_type
            )
            self._writer.sites([info])
        ids = np.array([self._sites[key]], np.int32)
        self._writer.sketches(SketchBatch(step, phase, ids, sketches))

    def _skip(self, name: str, reason: str) -> None:
        if name not in self._skipped:
            self._skipped.add(name)
            self._writer.event(Event("skipped", reason, where=name))


def _when(result: Result, n: int) -> tuple[int, str, int, int]:
    """Step, phase, call and line of a value; of one made of several, those of the last one."""
    at = n if len(result.values) == len(result.iterations) else -1
    return (
        result.iterations[at] if result.iterations else -1,
        result.phases[at] if len(result.phases) > at else "train",
        result.calls[at] if len(result.calls) > at else 0,
        result.lines[at] if len(result.lines) > at else -1,
    )
