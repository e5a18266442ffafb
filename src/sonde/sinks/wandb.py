"""Weights & Biases: rows of the active run, without a step of their own.

A row of a W&B run belongs to one step of that run, and only the user's code moves that step. So a
row of Sonde's waits until the step has moved since the row before, and joins the row that the user
logs next. The step that it was recorded in is in the row, as `sonde/step`, and is the x axis.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Literal, Unpack

from sonde._errors import SondeError
from sonde._require import require
from sonde.record import Kind
from sonde.sinks.keys import shared_key
from sonde.sinks.numerics import numerics
from sonde.sinks.sink import DEFAULTS, HISTOGRAM, Reading, Series, Sink, SinkOptions, WatchedRun

if TYPE_CHECKING:
    import wandb

_STEP: Final = "sonde/step"
_MOST_WAITING: Final = 1000
_PATIENCE_S: Final = 0.05
_LOOK_S: Final = 0.005


class WandB(Sink):
    """Logs to a W&B run, the active one by default.

    With `steps="yours"` the step of the run never moves: rows join those that you log. Of several
    recorded steps between two logs of yours, the rows that find no place are left out and counted;
    scalars are those of the steps whose tensors are recorded.
    A run to which nothing else is logged has the steps of the training. With `steps="own"` each row
    is a step of the W&B run.

    With `numerics=True`, means over all selected tensors of a type are logged too, with their
    underflow and overflow rates: `Numerics.Activation/rms`. With "only", series of single tensors
    are left out.
    """

    defaults: ClassVar[SinkOptions] = {"batch_s": 0.1}

    def __init__(
        self,
        run: wandb.Run | None = None,
        *,
        steps: Literal["yours", "own"] = "yours",
        numerics: bool | Literal["only"] = False,
        **options: Unpack[SinkOptions],
    ) -> None:
        self._is_drawn = not numerics or "histograms" in options
        if numerics:
            options.setdefault("histograms", "*")
        if numerics == "only":
            options.setdefault("max_series", sys.maxsize)  # they are summed up, not sent
        super().__init__(**options)
        self._wandb = require("wandb", extra="wandb")
        self._run = self._wandb.run if run is None else run
        if self._run is None:
            raise SondeError(
                "There is no active W&B run. Call `wandb.init()` first, or give one: `WandB(run)`."
            )
        if steps not in {"yours", "own"}:
            raise SondeError(f"`steps` must be 'yours' or 'own', got {steps!r}.")
        self._is_own = steps == "own"
        self._has_numerics = bool(numerics)
        self._has_series = numerics != "only"
        self._is_started = False
        self._groups: set[str] = set()
        self._scalars: set[str] = set()
        self._has_tensors = False
        self._kinds: dict[str, Kind] = {}
        self._waiting: dict[int, dict[str, object]] = {}
        self._placed_at: int | None = None
        self._lost = 0

    def start(self, run: WatchedRun) -> None:
        self._run.define_metric(_STEP, hidden=True)
        self._run.config.update({"sonde": {"run": str(run.path)}}, allow_val_change=True)
        self._is_started = True

    def key(self, series: Series) -> str:
        key = shared_key(series)
        prefix = self.options.get("prefix", "")
        full = f"{prefix}/{key}" if prefix else key
        self._define(full, series)
        if series.module is None:
            self._scalars.add(full)
        else:
            self._has_tensors = True
        if series.kind is not None and series.name == HISTOGRAM and series.phase == "train":
            self._kinds[full] = series.kind
        return key

    def _define(self, key: str, series: Series) -> None:
        """Make the recorded step the x axis of the group of a key: `gradients/*`."""
        depth = 1 + (series.phase != "train") + bool(self.options.get("prefix"))
        group = "/".join(key.split("/")[:depth])
        if group not in self._groups:
            self._groups.add(group)
            self._run.define_metric(f"{group}/*", step_metric=_STEP)

    def write(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            self._waiting.setdefault(reading.step, {}).update(self._row(reading))
        if self._is_own:
            self._commit()
        else:
            self._place()

    def close(self, reason: str) -> None:
        if not self._is_started:  # such as a finished run: nothing of it can be asked
            return
        if self._is_own or self._is_unused:
            self._commit()
        elif self._leave_out_scalars(list(self._waiting)):
            if self._is_free:  # no log is to come: one row joins the open step
                last = max(self._waiting)
                self._run.log({**self._waiting.pop(last), _STEP: last}, commit=False)
            self._lost += len(self._waiting)
        if self._lost:
            self.note(
                f"{self._lost} recorded steps are not in the W&B run, because fewer steps were "
                "logged to it than recorded. Log to W&B at least as often as Sonde records, or use "
                '`WandB(steps="own")`. The run of Sonde has them.'
            )

    @property
    def _is_unused(self) -> bool:
        """Whether nothing was ever logged to the run: it has no steps to be kept."""
        return self._placed_at is None and self._run.step == 0

    @property
    def _is_free(self) -> bool:
        """Whether the open step of the run has no row of ours."""
        return self._placed_at is None or bool(self._run.step > self._placed_at)

    def _row(self, reading: Reading) -> dict[str, object]:
        row: dict[str, object] = {
            key: value
            for key, value in reading.numbers.items()
            if self._has_series or key in self._scalars
        }
        for key, histogram in reading.histograms.items():
            if self._is_drawn and reading.sketches[key].finite:
                counted = (histogram.counts, histogram.edges)
                row[key] = self._wandb.Histogram(np_histogram=counted)
        if self._has_numerics and reading.sketches:
            stats = self.options.get("stats", DEFAULTS["stats"])
            kinds = [(self._kinds[k], s) for k, s in reading.sketches.items() if k in self._kinds]
            row |= numerics(kinds, [stats] if isinstance(stats, str) else stats)
        return row

    def _place(self) -> None:
        """Log rows while the user's step moves, one for each.

        The newest one waits: more of that step may come.
        """
        self._leave_out_scalars(sorted(self._waiting)[:-1])
        looked_s = time.monotonic()
        while len(self._waiting) > 1 and time.monotonic() - looked_s < _PATIENCE_S:
            if self._run.step == 0 and self._placed_at is None:
                break  # nothing has been logged to the run so far: the first log says how
            if self._is_free:
                step = min(self._waiting)
                self._run.log({**self._waiting.pop(step), _STEP: step}, commit=False)
                time.sleep(_LOOK_S)  # a log that is under way has moved the step by then
                self._placed_at = self._run.step
                looked_s = time.monotonic()
            else:
                time.sleep(_LOOK_S)
        while len(self._waiting) > _MOST_WAITING:
            if self._is_unused:
                self._commit()
                self._is_own = True
            else:
                del self._waiting[min(self._waiting)]
                self._lost += 1

    def _leave_out_scalars(self, steps: Sequence[int]) -> bool:
        """Drop rows that have nothing but scalars, unless all have. Returns whether any is left."""
        for step in steps:
            if self._has_tensors and self._waiting[step].keys() <= self._scalars:
                del self._waiting[step]
        return bool(self._waiting)

    def _commit(self) -> None:
        for step in sorted(self._waiting):
            row = {**self._waiting.pop(step), _STEP: step}
            if step >= self._run.step:
                self._run.log(row, step=step, commit=True)
            else:
                self._run.log(row, commit=True)
