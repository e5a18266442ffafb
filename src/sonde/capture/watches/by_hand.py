"""What a loop may record by hand: parameters and gradients at a moment that it chooses, and numbers
of tensors that no module returns."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from sonde._errors import SondeError
from sonde.capture.watches.functional import FunctionalWatch
from sonde.record import Kind

_KINDS = ("param", "param_grad")
_STAGES = ("final", "before_clip")


@runtime_checkable
class ByHandSession(Protocol):
    """What a session has beyond `Session` where a loop can record by hand."""

    def record_parameters(self, kind: Kind, stage: str) -> None:
        """Record parameters or their gradients as they are now."""

    def measure(
        self, name: str, value: object, tensors: tuple[object, ...], reduce: object
    ) -> None:
        """Add numbers to a metric of the current step."""


class ByHandWatch(FunctionalWatch):
    """The part of `Watch` for loops that record by hand."""

    def record_parameters(self, kind: str = "param", *, stage: str = "final") -> None:
        """Record parameters (`param`) or their gradients (`param_grad`) as they are now, if the
        current step is recorded. For loops without an optimizer, which end steps by hand.

        From the first call on, that kind is recorded only by such calls. `stage="before_clip"`
        keeps gradients apart that are going to be clipped.
        """
        if kind not in _KINDS or stage not in _STAGES or (kind, stage) == ("param", "before_clip"):
            raise SondeError(
                "`record_parameters` takes `param` or `param_grad`, and for gradients the stage "
                f"`final` or `before_clip`, got {kind!r} and {stage!r}."
            )
        if (session := self._by_hand()) is not None:
            session.record_parameters("param" if kind == "param" else "param_grad", stage)

    def measure(self, name: str, value: object, *tensors: object, reduce: object = "mean") -> None:
        """Add numbers to the metric `name` of the current step, if that is recorded.

        `value` is a number, a tensor, a dict of these, or a function of `tensors` that returns one.
        Each element of a tensor counts the same over the whole step, and nothing waits for it:
        as `sonde.log`, but for this watch alone, and of no module.
        """
        if (session := self._by_hand()) is not None:
            session.measure(name, value, tensors, reduce)

    def _by_hand(self) -> ByHandSession | None:
        session = self._session
        if session is None or session.is_closed:
            return None
        if not isinstance(session, ByHandSession):
            raise SondeError("Models of this framework are not recorded by hand.")
        return session
