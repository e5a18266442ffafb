"""What is recorded outside of passes: tensors that a loop hands over, the weights at the end."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from sonde.capture.torch.capture import Capture
from sonde.capture.torch.names import NamedParameter
from sonde.capture.window import Spot

FINAL_PHASE: Final = "final"

_AT_ONCE: Final = 512
"""Parameters that have rows at the same time when the last ones are read."""

_WAIT_S: Final = 5.0


class ManualRecords:
    """Records tensors of no module, at spots of the model itself."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._spots: dict[tuple[str, str], Spot] = {}

    def record(self, name: str, x: Tensor) -> None:
        """Sketch a tensor in the current step, if that is recorded."""
        capture = self._capture
        if torch.compiler.is_compiling():
            return
        with capture.lock:
            phase = capture.phases.forced or "train"
            if capture.is_closed or not capture.wants(phase):
                return
            spot = self._spots.get((name, phase))
            if spot is None:
                kind = type(capture.root).__name__
                spot = self._spots[name, phase] = Spot("attach", "", 0, name, kind, phase)
            try:
                with torch.no_grad():
                    capture.recorder.add(spot, x.detach())
                if capture.observer is not None and "attach" in capture.observer.kinds:
                    capture.observer.see(spot, x)
            except Exception as error:
                capture.troubles.failed(name, error)

    def record_final(self) -> None:
        """Sketch all selected parameters under the phase `final`, after the last step that ended.

        The watch is about to close, so this may wait for the drain.
        """
        capture = self._capture
        step = capture.phases.ended
        if step is None or "param" not in capture.plan.kinds or capture.is_closed:
            return
        try:
            with capture.lock, torch.no_grad():
                capture.phases.place(FINAL_PHASE, step)
                capture.structure.refresh()
                named = [n for n in capture.structure.parameters if self._wants(n)]
                for first in range(0, len(named), _AT_ONCE):
                    if first:
                        capture.recorder.hand_over(capture.step_of)
                        capture.drain.wait(_WAIT_S)
                    for one in named[first : first + _AT_ONCE]:
                        self._record_parameter(one)
        except Exception as error:
            capture.troubles.failed("final parameters", error)

    def _wants(self, named: NamedParameter) -> bool:
        return self._capture.plan.wants_parameter(named.path, named.full, named.module())

    def _record_parameter(self, named: NamedParameter) -> None:
        parameter = named.ref()
        if parameter is not None:
            kind = type(named.module()).__name__
            spot = Spot("param", named.path, 0, named.name, kind, FINAL_PHASE)
            self._capture.recorder.add(spot, parameter.detach())
