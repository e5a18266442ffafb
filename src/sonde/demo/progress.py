"""How far a training has come: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINES = 10
"""How many lines a whole training prints where there is no terminal."""


class Steps:
    """Shows the step, the loss and the speed while a training runs."""

    def __init__(self, console: Console, total: int) -> None:
        self._total = total
        self._began_s = 0.0
        self._unseen = ""
        self._console = console
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[speed]} steps/s", style="dim"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("training", total=total, loss="–", speed="–")

    def __enter__(self) -> Self:
        self._began_s = time.perf_counter()
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def tell(self, step: int, loss: float, unseen: float | None) -> None:
        """A step is done. `unseen` is the loss on unseen text, where it was taken."""
        done = step + 1
        speed = done / max(time.perf_counter() - self._began_s, 1e-9)
        if unseen is not None:
            self._unseen = f", unseen text {unseen:.3f}"
        losses = f"{loss:.3f}{self._unseen}"
        self._bar.update(self._task, completed=done, loss=losses, speed=f"{speed:.1f}")
        is_due = done % max(self._total // _LINES, 1) == 0 or done == self._total
        if is_due and not self._console.is_terminal:
            self._console.print(f"step {done}/{self._total}  loss {losses}  {speed:.1f} steps/s")
