"""A budget: due steps are left out so that recording stays below a share of the time.

The first step that is recorded pays for what is done once (finding the modules, taking the graph)
and is free. After that a due step is recorded if what recording has cost so far, and is likely to
cost once more, lies within the share of the time that has passed. So a schedule that is too dense
becomes sparser by itself, evenly, and denser again when there is time: what is not spent on steps
that were left out is there for later ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sonde._errors import SondeError
from sonde.capture.plan import Schedule


class Budget:
    """A schedule within a schedule. `spent_s` tells what recording has cost so far."""

    def __init__(
        self,
        schedule: Schedule,
        share: float,
        *,
        spent_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
            raise SondeError(
                f"`overhead_budget` must be a share of the time between 0 and 1, such as 0.02 for "
                f"2 %, got {share!r}."
            )
        self.schedule = schedule
        self.share = float(share)
        self.spent_s = spent_s
        self.left_out = 0
        self._clock = clock
        self._begun: tuple[float, float] | None = None
        self._was_recorded = False
        self._before_s = 0.0
        self._likely_s = 0.0

    def __call__(self, step: int) -> bool:
        now_s, spent_s = self._clock(), self.spent_s()
        if self._was_recorded:
            cost_s = spent_s - self._before_s
            if self._begun is None:
                self._begun = now_s, spent_s
                self._likely_s = 0.0
            else:
                # The dearer of the last one and the usual: an estimate that is late errs upwards.
                usual_s = self._likely_s or cost_s
                self._likely_s = max(cost_s, 0.8 * usual_s + 0.2 * cost_s)
        self._was_recorded = False
        if not self.schedule(step):
            return False
        if self._begun is not None:
            passed_s, used_s = now_s - self._begun[0], spent_s - self._begun[1]
            if used_s + self._likely_s > self.share * passed_s:
                self.left_out += 1
                return False
        self._was_recorded = True
        self._before_s = spent_s
        return True
