"""Taps: markers in a traced function that name an array. An array passes through unchanged.

A tap is a primitive that survives every transformation of JAX's: `vmap` shows all of a batch, and
under `grad` a second, linear primitive goes along with the tangent, whose transpose is a tap on the
cotangent: the gradient of that array over all its uses. Nothing is computed here. `harvest` walks
the traced function and puts sketches where taps are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeVar

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from sonde.record import Kind

T = TypeVar("T")

_Arrays = Sequence[Array]

GRADIENT: Final[dict[Kind, Kind]] = {
    "input": "input_grad",
    "output": "output_grad",
    "attach": "attach_grad",
}
"""Kinds whose arrays have gradients, with the kinds of these."""


@dataclass(eq=False)
class Call:
    """A call of a module while a function was traced. `parent` is the call around it, if any.

    `size` is how many parameters the module had there, `whole` how many the model keeps for it:
    more, where a `scan` runs over its layers.
    """

    path: str
    type: str
    module: object
    parent: Call | None
    size: int = 0
    whole: int = 0


@dataclass(frozen=True, eq=False)
class JaxTap:
    """What an array is. `call` is the call it belongs to, None outside modules. A `scalar` is one
    number of the optimizer with that name, and no tensor."""

    kind: Kind
    path: str
    slot: str
    call: Call | None = None
    type: str = ""
    module: object = None
    requires_grad: bool | None = None
    scalar: str = ""

    def gradient(self) -> JaxTap | None:
        """The tap of its gradient, None if it has none."""
        kind = GRADIENT.get(self.kind)
        if kind is None:
            return None
        return JaxTap(kind, self.path, self.slot, self.call, self.type, self.module)


@dataclass
class Tracing:
    """A function being traced for recording: which kinds are wanted, and the calls under way.

    `sizes` are how many parameters the model keeps for each module; `seen` the parameters that
    have been tapped.
    """

    kinds: frozenset[Kind]
    stack: list[Call] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    modules: dict[str, object] = field(default_factory=dict)
    has_parameters: bool = False
    has_update: bool = False

    @property
    def call(self) -> Call | None:
        return self.stack[-1] if self.stack else None


_CURRENT: Final[ContextVar[Tracing | None]] = ContextVar("sonde_tracing", default=None)


def current() -> Tracing | None:
    """The function being traced for recording, if one is."""
    return _CURRENT.get()


@contextmanager
def during(tracing: Tracing) -> Iterator[None]:
    """Trace for recording inside the block."""
    token = _CURRENT.set(tracing)
    try:
        yield
    finally:
        _CURRENT.reset(token)


tap_p: Final = Primitive("sonde_tap")
cotap_p: Final = Primitive("sonde_cotap")


def tap(x: Array, what: JaxTap) -> Array:
    """The array itself, marked."""
    return tap_p.bind(x, tap=what)


def _itself(x: T, **_: object) -> T:
    return x


def _jvp(primals: _Arrays, tangents: _Arrays, *, tap: JaxTap) -> tuple[Array, Array]:
    (x,), (t,) = primals, tangents
    out = tap_p.bind(x, tap=tap)
    gradient = tap.gradient()
    if type(t) is ad.Zero or gradient is None or t.dtype == jax.dtypes.float0:
        return out, t
    return out, cotap_p.bind(t, tap=gradient)


def _transpose(cotangent: Array, _x: object, *, tap: JaxTap) -> list[Array]:
    return [cotangent if type(cotangent) is ad.Zero else tap_p.bind(cotangent, tap=tap)]


def _cotap_jvp(primals: _Arrays, tangents: _Arrays, *, tap: JaxTap) -> tuple[Array, Array]:
    (x,), (t,) = primals, tangents
    return cotap_p.bind(x, tap=tap), t


def _install() -> None:
    for primitive in (tap_p, cotap_p):
        primitive.def_impl(_itself)
        primitive.def_abstract_eval(_itself)
        mlir.register_lowering(primitive, lambda _ctx, x, **_: [x])

        def batch(
            args: _Arrays, dims: Sequence[object], *, tap: JaxTap, primitive: Primitive = primitive
        ) -> tuple[Array, object]:
            return primitive.bind(args[0], tap=tap), dims[0]

        batching.primitive_batchers[primitive] = batch
    ad.primitive_jvps[tap_p] = _jvp
    ad.primitive_jvps[cotap_p] = _cotap_jvp
    ad.primitive_transposes[cotap_p] = _transpose


_install()
