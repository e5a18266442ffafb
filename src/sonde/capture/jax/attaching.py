"""`sonde.jax.attach`: arrays that a user names inside a function."""

from __future__ import annotations

from typing import TypeVar, cast

from sonde._errors import SondeError
from sonde.capture.jax import trees
from sonde.capture.jax.taps import JaxTap, current, tap

T = TypeVar("T")


def attach(x: T, name: str) -> T:
    """The array, tapped where a function is traced for recording."""
    if not isinstance(name, str) or not name:
        raise SondeError(f"`name` must be a str that is not empty, got {name!r}.")
    tracing = current()
    if tracing is None or not trees.is_array(x):
        return x
    call = tracing.call
    if call is None:
        return cast("T", tap(x, JaxTap("attach", "", name)))
    return cast("T", tap(x, JaxTap("attach", call.path, name, call, call.type, call.module)))
