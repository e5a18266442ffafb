"""The watch of a trainer: begun with its training, continued from its checkpoints.

A trainer knows its model, its optimizers and its step when training begins, not before. So the
options of `sonde.watch` are checked when a callback is made, and used when training begins. The
checkpoint keeps the name of the run: a training that is resumed continues it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, Final

from sonde._errors import SondeError
from sonde.capture.voice import say
from sonde.store.writing.placement import new_name
from sonde.watching import Watch, watch

_OF_THE_TRAINER: Final = {"model", "optimizer", "resume", "step", "rank", "world_size"}
_OPTIONS: Final = inspect.signature(watch).parameters.keys() - _OF_THE_TRAINER
_EVALUATIONS: Final = {"train": None, "eval": 1}
"""Training at the steps that `every` says, and all evaluations."""


class TrainerWatch:
    """A watch that a trainer begins, continues and ends. `Any`: options, models and numbers of
    libraries without types."""

    def __init__(self, user: object, options: Mapping[str, Any]) -> None:
        """Take the options of `sonde.watch` for `user`, the callback that is being made.

        Raises:
            SondeError: If there is no such option, or the trainer sets it.
        """
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            given = ", ".join(f"`{name}`" for name in unknown)
            why = "the trainer sets it" if unknown[0] in _OF_THE_TRAINER else "see `sonde.watch`"
            raise SondeError(f"{type(user).__name__} takes no option {given}: {why}.")
        self.watch: Watch | None = None
        self._options = dict(options)
        self._saved: dict[str, Any] = {}  # of a checkpoint that was loaded
        self._last: dict[str, Any] = {}  # of the watch that ended
        self._watched: tuple[Any, Any] = (None, None)

    # -- begin and end -------------------------------------------------------------------------

    def begin(
        self,
        model: Any,
        optimizer: Any,
        *,
        step: int | None = None,
        config: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Watch:
        """Watch from the next update on, whose number is `step`; by default that of the checkpoint.

        Continues the run of the checkpoint. Without one, a run called `name` is continued if
        `step` is not 0.
        """
        self.end("begun again")
        step = self._saved.get("step", 0) if step is None else step
        options = {"phases": _EVALUATIONS, "config": config} | self._options | _ranks()
        options["name"] = options.get("name") or name
        options |= self._continued(Path(options.get("dir", "runs")), options["name"], step)
        if options["name"] is None and options.get("world_size", 1) > 1:
            options["name"] = _of_rank_0(new_name())
        self._watched = (model, optimizer)
        self._saved = {}
        self.watch = watch(model, optimizer, step=step, **options)
        return self.watch

    def end(self, reason: str = "finished") -> None:
        """Close the watch, if there is one."""
        if self.watch is not None:
            self._last = self.watch.state_dict()
            self.watch.close(reason)
            self.watch = None

    def _continued(self, folder: Path, name: str | None, step: int) -> dict[str, Any]:
        """Options that continue a run, empty if there is none to continue."""
        saved = self._saved.get("run")
        for run in (saved, name if step else None):
            if run is not None and (folder / run).is_dir():
                return {"name": run, "resume": True}
        if saved is not None:
            say(
                f"The checkpoint belongs to the run {saved!r}, which is not in {str(folder)!r}. "
                f"A new run begins at step {step}."
            )
        return {}

    # -- steps and numbers ---------------------------------------------------------------------

    def at(self, step: int) -> None:
        """The trainer is about to make this update: number it so, if it is ahead."""
        current = None if self.watch is None else self.watch.current_step
        if self.watch is not None and current is not None and step > current:
            self.watch.current_step = step

    def log(
        self, values: Mapping[str, Any], *, step: int | None = None, mean: bool = False
    ) -> None:
        """Record those of the values that are numbers; the mean of those of one step."""
        if self.watch is not None:
            numbers = {str(name): value for name, value in values.items() if _is_number(value)}
            self.watch.log(numbers, step=step, reduce="mean" if mean else "last")

    # -- checkpoints ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: the run and its next step."""
        return self.watch.state_dict() if self.watch is not None else self._saved or self._last

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue the run of this checkpoint, now or when training begins."""
        self._saved = dict(state)
        if self.watch is None:
            return
        path = self.watch.path
        if path is None or path.name == state.get("run"):
            self.watch.load_state_dict(self._saved)
        else:
            self.begin(*self._watched)


def _is_number(value: Any) -> bool:
    if isinstance(value, Real):
        return True
    numel = getattr(value, "numel", None)  # a tensor: nothing waits for it
    return callable(numel) and numel() == 1


def _ranks() -> dict[str, int]:
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
