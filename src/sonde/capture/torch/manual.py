"""Tensors that user code hands over, and the weights at the end of a watch: what no hook sees.

`sonde.attach` names a tensor inside the forward of a watched module; it belongs to the call of that
module. `watch.record` names one anywhere in the loop; it belongs to the model itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sonde._torch_internals.tensors import current_backward
from sonde.capture.torch.names import NamedParameter
from sonde.capture.torch.passes import is_being_traced
from sonde.capture.window import Spot

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture

FINAL_PHASE: Final = "final"

_AT_ONCE: Final = 512
"""Parameters that have rows at the same time when the last ones are read."""

_WAIT_S: Final = 5.0


def attach(capture: Capture, x: Tensor, name: str) -> None:
    """Record the tensor where it was attached; note why, if it is not."""
    at = capture.current_pass()
    is_redone = current_backward() != -1
    stack = at.redone if is_redone else at.stack
    if not capture.steps.wants(at.phase):
        return
    if not stack or at.is_outside:
        if not is_redone and not is_being_traced():
            capture.silence.unheard(name, "no watched module was being called")
        return
    tap, call = stack[-1]
    try:
        with capture.lock:
            if not is_redone:
                capture.graph_taker.attach(name, x)
            if not capture.kinds & {"attach", "attach_grad"}:
                capture.silence.unheard(name, "`log` has neither `attach` nor `attach_grad`")
                return
            capture.silence.heard(name)
            if not tap.selected or capture.collector.too_many(tap, call):
                return
            if "attach" in capture.kinds and not is_redone:
                capture.collector.value(tap, at, "attach", call, name, x)
            if "attach_grad" in capture.kinds:
                capture.collector.watch_gradient(tap, at, "attach_grad", call, name, x)
    except Exception as error:
        capture.tap_failed(tap, error)


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
            if capture.is_closed or not capture.steps.wants(phase):
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
                        capture.recorder.hand_over(capture.phases.step_of)
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
