"""The pipeline: from full windows to where values are kept, with callbacks and ranks on the way.

Runs in a thread of its own wherever something has to be waited for (a device, other ranks, a file),
and in the training thread where nothing has to be: values in memory of one process.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from sonde._signals import Gate
from sonde.tracing import callbacks
from sonde.tracing.callbacks import OnWindow
from sonde.tracing.results import Result, Results
from sonde.tracing.troubles import TraceTroubles
from sonde.tracing.windows import ByteBudget, TracedVariable, TraceWindow

_LOG: Final = logging.getLogger("sonde")

Batch = dict[TracedVariable, Result]
"""What a window holds, by variable."""


class Destination(Protocol):
    """Where values are kept. Called from one thread."""

    is_memory: bool
    """Whether what is kept still counts as held."""
    is_shared: bool
    """Whether every rank keeps its own values there, so that none are sent."""

    def put(self, variable: TracedVariable, result: Result) -> None:
        """Keep the values of a window. May block, may raise."""

    def close(self) -> None: ...


class Ranks(Protocol):
    """How values come together on rank 0. Called from one thread; never waits for ever."""

    rank: int

    def exchange(self, number: int, batch: Batch) -> list[Batch]:
        """Give a window of this rank; the windows that are complete by now, or that had to go on
        without a rank that is late. Empty on all ranks but 0."""

    def finish(self) -> list[Batch]:
        """No more windows from this rank: what is left of all others."""


class Synchronization(Protocol):
    """What a framework does with values before they are looked at. May wait for devices."""

    def seal(self, window: TraceWindow) -> Callable[[], None]:
        """Note that the window is full; calling what is returned waits until it can be read.

        In the training thread, so it may not wait itself."""

    def is_settled(self, window: TraceWindow) -> bool:
        """Whether nothing has to be waited for."""

    def settle(self, window: TraceWindow) -> None:
        """Drop the entries that turn out to be unchanged; bring the others to the host."""

    def size_bytes(self, value: object) -> int: ...


class InMemory:
    """Keeps values in the process, for `results`."""

    is_memory = True
    is_shared = False

    def __init__(self) -> None:
        self.results = Results()

    def put(self, variable: TracedVariable, result: Result) -> None:
        self.results.put(variable.name, result)

    def take(self, window: TraceWindow, rank: int) -> None:
        """Keep the values of a window as they are."""
        for entry in window.entries:
            self.results.at(entry.variable.name).append(entry.value, rank, entry.moment, entry.line)

    def close(self) -> None:
        """Nothing to let go of."""


class Pipeline:
    """Takes windows in order. `put` never blocks and never raises."""

    def __init__(
        self,
        destination: Destination,
        ranks: Ranks | None,
        settling: Synchronization,
        budget: ByteBudget,
        troubles: TraceTroubles,
        *,
        before_gather: Sequence[OnWindow],
        after_gather: Sequence[OnWindow],
        rank: int,
    ) -> None:
        self._destination = destination
        self._ranks = ranks
        self._settling = settling
        self._budget = budget
        self._troubles = troubles
        self._before_gather = before_gather
        self._after_gather = after_gather
        self._rank = rank
        self._jobs: queue.SimpleQueue[tuple[TraceWindow, Callable[[], None]] | Gate | None]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = Gate()
        self._can_be_inline = destination.is_memory and ranks is None
        is_direct = ranks is None and not before_gather and not after_gather
        self._direct = destination if is_direct and isinstance(destination, InMemory) else None

    @property
    def is_patient(self) -> bool:
        """Whether windows may begin and end anywhere."""
        return self._direct is not None

    def put(self, window: TraceWindow) -> None:
        """Take a full window."""
        if self._thread is None and self._can_be_inline and self._settling.is_settled(window):
            self._guarded(window)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sonde-trace", daemon=True)
            self._thread.start()
        self._jobs.put((window, self._settling.seal(window)))

    def wait(self, timeout_s: float) -> bool:
        """Wait until all windows so far have arrived."""
        if self._thread is None:
            return True
        reached = Gate()
        self._jobs.put(reached)
        return reached.wait(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Pass on what is left, also of other ranks, and close the destination; false if late."""
        if self._thread is None and self._ranks is not None:
            self._thread = threading.Thread(target=self._run, name="sonde-trace", daemon=True)
            self._thread.start()
        if self._thread is not None:
            self._jobs.put(None)
            return self._ended.wait(timeout_s)
        self._close_destination()
        return True

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.open()

    def _work(self) -> None:
        self._troubles.background = threading.get_ident()
        while (job := self._jobs.get()) is not None:
            if isinstance(job, Gate):
                job.open()
                continue
            window, wait = job
            try:
                wait()
            except Exception as error:
                _LOG.warning("waiting for a device failed: %r", error)
            self._guarded(window)
        try:
            if self._ranks is not None:
                for batch in self._ranks.finish():
                    self._arrived(batch)
        except Exception as error:
            self._troubles.failed("gather", error, raises=False)
        self._close_destination()

    def _guarded(self, window: TraceWindow) -> None:
        held = window.size_bytes
        try:
            self._process(window)
        except Exception as error:
            self._troubles.failed("gather", error, raises=False)
        finally:
            self._budget.give_back(held)

    def _process(self, window: TraceWindow) -> None:
        self._settling.settle(window)
        if self._direct is not None:
            self._direct.take(window, self._rank)
            self._budget.take(sum(self._settling.size_bytes(e.value) for e in window.entries))
            return
        batch = window.results(self._rank)
        for variable, result in batch.items():
            self._call_back(self._before_gather, variable, result, with_ranks=False)
        if self._ranks is None:
            self._arrived(batch)
            return
        for complete in self._ranks.exchange(window.number, batch):
            self._arrived(complete)

    def _arrived(self, batch: Mapping[TracedVariable, Result]) -> None:
        for variable, result in batch.items():
            self._call_back(self._after_gather, variable, result, with_ranks=True)
            try:
                self._destination.put(variable, result)
            except Exception as error:
                self._troubles.failed(variable.name, error, raises=False)
                continue
            if self._destination.is_memory:
                self._budget.take(sum(self._settling.size_bytes(v) for v in result.values))

    def _call_back(
        self,
        chosen: Sequence[OnWindow],
        variable: TracedVariable,
        result: Result,
        *,
        with_ranks: bool,
    ) -> None:
        callbacks.run(chosen, variable.name, result, self._troubles, with_ranks=with_ranks)

    def _close_destination(self) -> None:
        try:
            self._destination.close()
        except Exception as error:
            self._troubles.failed("close", error, raises=False)
