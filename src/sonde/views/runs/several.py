"""Several runs for one question, opened when a view asks for them."""

from __future__ import annotations

from collections.abc import Callable

from sonde.views.runs.opened_run import OpenedRun


class SeveralRuns:
    """Runs by id. Made for one question."""

    def __init__(self, find: Callable[[str], OpenedRun]) -> None:
        self._find = find
        self._opened: dict[str, OpenedRun] = {}

    def run(self, id: str) -> OpenedRun:
        """The run with that id, opened."""
        if id not in self._opened:
            self._opened[id] = self._find(id)
        return self._opened[id]

    def examine(self) -> bool:
        """Whether files of any of them are at fault; they are left out from here on."""
        found = [run.examine() for run in self._opened.values()]
        return any(found)
