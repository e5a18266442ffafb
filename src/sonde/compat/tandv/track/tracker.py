"""What both trackers share: a watch, and the LogFrame that is written at the end."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from sonde import _endings
from sonde._errors import SondeError, SondeWarning
from sonde._require import require
from sonde.compat.tandv.track.stash_values import exponent_range, numbers, stash_full_tensor
from sonde.logframe import of_run, to_wandb, write
from sonde.record import Kind
from sonde.sinks.sink import Sink
from sonde.store.reading.run import open_run
from sonde.watching import Watch

FOLDER: Final = "tandv"
"""Where runs and LogFrames go, below the working directory."""
METRIC: Final = "stash"
"""Under this name a run keeps the numbers of a stash function of the user."""

OffloadType = Literal[".pkl", ".parquet", ".csv"]
NamePattern = str | re.Pattern[str] | None
Frame = Any
_STATS: Final = ("mean", "std", "mean_abs", "max_abs", "min_abs", "rm2", "rm4", "rm8")


@dataclass(frozen=True)
class Stash:
    """A row of the LogFrame: `value` holds the statistics and the counts of exponents."""

    name: str
    type: str
    tensor_type: str
    dtype: str
    value: dict[str, dict[Any, float]]

    @property
    def first_value(self) -> dict[str, dict[Any, float]]:
        """The same as `value`."""
        return self.value


class Tracker:
    """A context manager around a watch, which `start` makes of the arguments that it shares.

    `start(**options)` calls `watch` with every step, the folder and patterns of Track & Visualize.
    """

    def __init__(
        self,
        start: Callable[..., Watch],
        kinds: Sequence[Kind],
        stash_value: Callable[..., Any] | None,
        *,
        include: NamePattern,
        exclude: NamePattern,
        offload_type: OffloadType,
        use_wandb: bool,
        init_step: int | None,
        phases: Sequence[str] = ("train",),
    ) -> None:
        self.out_path: Path | None = None
        self._exponents = exponent_range(stash_value)
        self._offload_type = offload_type
        self._use_wandb = use_wandb
        self._phases = phases
        self.watch = start(
            every=1,
            log=kinds,
            dir=FOLDER,
            include=re.compile(include) if isinstance(include, str) else include,
            exclude=re.compile(exclude) if isinstance(exclude, str) else exclude,
            phases=phases,
            step=init_step or 0,
            sinks=sinks_of(kinds) if use_wandb else [],
            hyperparameters=False,
        )
        if stash_value is stash_full_tensor:
            warnings.warn(
                "`stash_full_tensor` gives no numbers for a LogFrame. Statistics are recorded "
                "instead; `sonde.trace` keeps whole tensors.",
                SondeWarning,
                stacklevel=4,
            )
        elif self._exponents is None and stash_value is not None:
            for kind in kinds:
                self.watch.add_metric(METRIC, lambda x: numbers(stash_value(x)), kind=kind)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.watch.close(_endings.of_error(error))
        frame = self.logframe()
        if frame is None or self.watch.path is None:
            return
        path = Path(self.watch.path, f"final_logframe{self._offload_type}")
        if self._offload_type == ".pkl":
            frame.to_pickle(path)
        else:
            write(frame, path)
        self.out_path = path
        print(f"Wrote the LogFrame to {path}")
        if self._use_wandb:
            to_wandb(frame)

    def logframe(self) -> Frame:
        """The LogFrame of all steps that have ended; None before the first."""
        path = self.watch.path
        if path is None:
            return None
        self.watch.flush()
        low, high = self._exponents or (-16, 16)
        frames = []
        with open_run(path) as run:
            made = partial(of_run, run, min_exp=low, max_exp=high, metric=METRIC, short_names=True)
            for phase in self._phases:
                with suppress(SondeError):  # nothing was recorded in this phase
                    frames.append(made(phase=phase))
        if len(frames) < 2:
            return frames[0] if frames else None
        return require("pandas", extra="pandas").concat(frames, ignore_index=True)

    @property
    def stashes(self) -> list[Stash]:
        """The rows of the last step that ended."""
        frame = self.logframe()
        if frame is None:
            return []
        steps = frame["metadata", "step"]
        found = []
        for _, row in frame[steps == steps.max()].iterrows():
            name, kind, tensor_type, _, dtype = (str(each) for each in row["metadata"])
            stats, counts = row["scalar_stats"].to_dict(), row["exponent_counts"].to_dict()
            value = {"scalar_stats": stats, "exp_hist": counts}
            found.append(Stash(name, kind, tensor_type, dtype, value))
        return found

    def __iter__(self) -> Iterator[Stash]:
        return iter(self.stashes)

    def __getitem__(self, index: int) -> Stash:
        return self.stashes[index]

    def __len__(self) -> int:
        return len(self.stashes)


def sinks_of(kinds: Sequence[Kind]) -> list[Sink]:
    """The sink that logs `Numerics.Activation/rm2` and so on to the active W&B run."""
    from sonde.sinks.wandb import WandB

    return [WandB(numerics="only", stats=_STATS, kinds=kinds)]
