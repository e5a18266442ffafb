"""`sonde.jax.attach`: arrays that a user names inside a function."""

from __future__ import annotations

from typing import Any

from sonde._errors import SondeError
from sonde.capture.jax import trees
from sonde.capture.jax.taps import JaxTap, current, tap


def attach(x: Any, name: str) -> Any:
    """The array, tapped where a function is traced for recording. `Any`: what a user gave."""
    if not isinstance(name, str) or not name:
        raise SondeError(f"`name` must be a str that is not empty, got {name!r}.")
    tracing = current()
    if tracing is None or not trees.is_array(x):
        return x
    call = tracing.call
    if call is None:
        return tap(x, JaxTap("attach", "", name))
    return tap(x, JaxTap("attach", call.path, name, call, call.type, call.module))
