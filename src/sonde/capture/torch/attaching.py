"""Tensors that are given a name inside the forward of a watched module: `sonde.attach`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from sonde.capture.torch.passes import current_backward, is_being_traced

if TYPE_CHECKING:
    from sonde.capture.torch.capture import Capture


def attach(capture: Capture, x: Tensor, name: str) -> None:
    """Record the tensor where it was attached; note why, if it is not."""
    at = capture.current_pass()
    is_redone = current_backward() != -1
    stack = at.redone if is_redone else at.stack
    if not capture.wants(at.phase):
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
