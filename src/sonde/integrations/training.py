"""The watch of a trainer: begun with its training, continued from its checkpoints.

A trainer knows its model, its optimizers and its step when training begins, not before. So the
options of `sonde.watch` are checked when a callback is made, and used when training begins. The
checkpoint keeps the name of the run: a training that is resumed continues it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Final, TypedDict

from sonde._errors import SondeError
from sonde.capture.plan import Every, Phases
from sonde.capture.voice import say
from sonde.record import RecordSink
from sonde.sinks.sink import Sink
from sonde.store.writing.placement import new_name
from sonde.watching import Watch, watch

_OF_THE_TRAINER: Final = {"model", "optimizer", "resume", "step", "rank", "world_size"}
_EVALUATIONS: Final[Phases] = {"train": None, "eval": 1}
"""Training at the steps that `every` says, and all evaluations."""


class WatchOptions(TypedDict, total=False):
    """Options of `sonde.watch` that a callback takes: all but those that its trainer sets."""

    every: Every
    log: str | Iterable[str]
    dir: str | os.PathLike[str]
    name: str | None
    include: object
    exclude: object
    phases: Phases
    config: dict[str, object] | None
    sinks: Sequence[Sink | RecordSink | str]
    max_calls: int
    strict: bool
    flush_s: float
    reference: object
    overhead_budget: float | None
    hyperparameters: bool
    final_parameters: bool


class _Ranks(TypedDict, total=False):
    rank: int
    world_size: int


class TrainerWatch:
    """A watch that a trainer begins, continues and ends."""

    def __init__(self, user: object, options: WatchOptions) -> None:
        """Take the options of `sonde.watch` for `user`, the callback that is being made.

        Raises:
            SondeError: If there is no such option, or the trainer sets it.
        """
        unknown = sorted(options.keys() - WatchOptions.__annotations__.keys())
        if unknown:
            given = ", ".join(f"`{name}`" for name in unknown)
            why = "the trainer sets it" if unknown[0] in _OF_THE_TRAINER else "see `sonde.watch`"
            raise SondeError(f"{type(user).__name__} takes no option {given}: {why}.")
        self.watch: Watch | None = None
        self._options = options
        self._saved: dict[str, object] = {}  # of a checkpoint that was loaded
        self._last: dict[str, object] = {}  # of the watch that ended
        self._watched: tuple[object, object] = (None, None)

    # -- begin and end -------------------------------------------------------------------------

    def begin(
        self,
        model: object,
        optimizer: object,
        *,
        step: int | None = None,
        config: dict[str, object] | None = None,
        name: str | None = None,
    ) -> Watch:
        """Watch from the next update on, whose number is `step`; by default that of the checkpoint.

        Continues the run of the checkpoint. Without one, a run called `name` is continued if
        `step` is not 0.
        """
        self.end("begun again")
        if step is None:
            saved = self._saved.get("step", 0)
            step = saved if isinstance(saved, int) else 0
        options: WatchOptions = {"phases": _EVALUATIONS, "config": config, **self._options}
        name = options.get("name") or name
        ranks = _ranks()
        continued = self._continued(Path(options.get("dir", "runs")), name, step)
        if continued is None and name is None and ranks.get("world_size", 1) > 1:
            name = _of_rank_0(new_name())
        options["name"] = continued or name
        self._watched = (model, optimizer)
        self._saved = {}
        resume = continued is not None
        self.watch = watch(model, optimizer, step=step, resume=resume, **options, **ranks)
        return self.watch

    def end(self, reason: str = "finished") -> None:
        """Close the watch, if there is one."""
        if self.watch is not None:
            self._last = self.watch.state_dict()
            self.watch.close(reason)
            self.watch = None

    def _continued(self, folder: Path, name: str | None, step: int) -> str | None:
        """The name of the run to continue, None if there is none."""
        saved = self._saved.get("run")
        for run in (saved, name if step else None):
            if isinstance(run, str) and (folder / run).is_dir():
                return run
        if saved is not None:
            say(
                f"The checkpoint belongs to the run {saved!r}, which is not in {str(folder)!r}. "
                f"A new run begins at step {step}."
            )
        return None

    # -- steps and numbers ---------------------------------------------------------------------

    def at(self, step: int) -> None:
        """The trainer is about to make this update: number it so, if it is ahead."""
        current = None if self.watch is None else self.watch.current_step
        if self.watch is not None and current is not None and step > current:
            self.watch.current_step = step

    def log(
        self, values: Mapping[str, object], *, step: int | None = None, mean: bool = False
    ) -> None:
        """Record those of the values that are numbers; the mean of those of one step."""
        if self.watch is not None:
            numbers = {str(name): value for name, value in values.items() if _is_number(value)}
            self.watch.log(numbers, step=step, reduce="mean" if mean else "last")

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, object]:
        """What a checkpoint keeps: the run and its next step."""
        return self.watch.state_dict() if self.watch is not None else self._saved or self._last

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Continue the run of this checkpoint, now or when training begins."""
        self._saved = dict(state)
        if self.watch is None:
            return
        path = self.watch.path
        if path is None or path.name == state.get("run"):
            self.watch.load_state_dict(self._saved)
        else:
            self.begin(*self._watched)


def _is_number(value: object) -> bool:
    if isinstance(value, Real):
        return True
    numel = getattr(value, "numel", None)  # a tensor: nothing waits for it
    return callable(numel) and numel() == 1


def _ranks() -> _Ranks:
    """Rank and number of processes as torch knows them; empty if it trains in one process."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    return {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}


def _of_rank_0(name: str) -> str:
    """The name that rank 0 has chosen, on every rank."""
    from torch import distributed

    box = [name]
    distributed.broadcast_object_list(box, src=0)
    return box[0]
