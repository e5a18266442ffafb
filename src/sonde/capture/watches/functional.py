"""What a watch offers where training is a function: JAX. Elsewhere it says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, ParamSpec, Protocol, TypeVar, runtime_checkable

from sonde._display import Displayed
from sonde._errors import SondeError
from sonde.capture.backend import Refuse, Session

_TREES: Final = 3
"""Parameters, state, gradients."""

F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")
T = TypeVar("T")


@runtime_checkable
class FunctionalSession(Protocol):
    """What a session has beyond `Session` where training is a function."""

    def wrap(self, function: F) -> F:
        """The function as a training step, every call of which ends a step."""
        ...

    def intercept(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the function returns; the call is recorded if the current step is."""
        ...

    def recorded_optimizer(self, tx: T) -> T:
        """The optimizer with what it takes and returns recorded."""
        ...

    def end_with(self, params: object, state: object, grads: object, refuse: Refuse) -> None:
        """Record these trees and end the step."""


class FunctionalWatch(Displayed):
    """The part of `Watch` for training that is a function."""

    _session: Session | None

    def wrap(self, function: F) -> F:
        """The training step `function` (of `jax.jit`, of `nnx.jit`, or plain), recorded in steps
        that are due. Every call ends a step. Steps that are not recorded call `function` itself.
        """
        session = self._functional("wrap")
        return function if session is None else session.wrap(function)

    def intercept(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function(*args, **kwargs)`, recorded if the current step is. `watch.step` ends the
        step."""
        session = self._functional("intercept")
        if session is None:
            return function(*args, **kwargs)
        return session.intercept(function, *args, **kwargs)

    def optimizer(self, tx: T) -> T:
        """The optax optimizer `tx` with its gradients, updates and state recorded. It computes what
        `tx` does, and has the same state."""
        session = self._functional("optimizer")
        return tx if session is None else session.recorded_optimizer(tx)

    def _functional(self, name: str) -> FunctionalSession | None:
        session = self._session
        if session is None or session.is_closed:
            return None
        if not isinstance(session, FunctionalSession):
            raise SondeError(
                f"`watch.{name}` is for JAX, where training is a function. This model is watched "
                "where it is: call it as before."
            )
        return session


def end_step(
    session: Session,
    trees: tuple[object, ...],
    scalars: Mapping[str, object],
    log: Callable[..., None],
    warn: Callable[[str], None],
    refuse: Refuse,
) -> None:
    """End a step by hand: `watch.step(...)`."""
    if trees and not isinstance(session, FunctionalSession):
        refuse("watch.step() takes trees of arrays in JAX only. The step has not ended.")
    elif len(trees) > _TREES:
        refuse(
            f"watch.step() takes parameters, optimizer state and gradients, got {len(trees)}. "
            "The step has not ended."
        )
    elif session.has_optimizer:
        warn("watch.step() only logs here: the optimizer given to watch() ends each step.")
        log(scalars)
    else:
        if scalars:
            log(scalars, step=session.step)
        if isinstance(session, FunctionalSession):
            params, state, grads = (*trees, None, None, None)[:_TREES]
            session.end_with(params, state, grads, refuse)
        else:
            session.end_by_hand()
