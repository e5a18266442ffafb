"""A metric as data: which function, of which tensors, reduced how. Knows no framework.

@sonde.metric(kind="output", reduce="max")
def largest(x):
    return x.abs().max()

watch.add_metric(largest)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast, get_args

from sonde._errors import SondeError
from sonde.record import KINDS, Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Simple = Literal["mean", "sum", "min", "max"]
Against = Literal["reference"]
F = TypeVar("F", bound=Callable[..., object])

MODULE_KINDS: Final = ("input", "output", "input_grad", "output_grad")
UPDATE_KINDS: Final = ("param", "param_grad", "update")
COMPARED_KINDS: Final = ("output", "param")
_DECLARED: Final = "__sonde_metric__"


@dataclass(frozen=True, slots=True)
class Merge:
    """How values that a function returns become one, for what no simple reduction can do.

    `merge(a, b)` joins the values of two calls, `finish(a)` turns the last one into a number, a
    tensor of one number, or a dict of these. Both run where the tensors are.

    `Any`: a tensor of whichever framework, or what `merge` makes of two.
    """

    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class OnHost:
    """A number that can only be worked out on the host: a tensor to bring there, and a function of
    it as a numpy array. It runs in the background, and nothing waits for it."""

    tensor: Any  # of whichever framework
    finish: Callable[[NDArray[np.float64]], float]


Reduce = Simple | Callable[[Any], object] | Merge


@dataclass(frozen=True, slots=True)
class Metric:
    """A function of the tensors of one kind, or of several kinds that belong together.

    `where` and `every` are None for everywhere and always. `passes_module` says whether the
    function takes the module too, as `module=`.
    """

    name: str
    fn: Callable[..., Any]
    kinds: tuple[Kind, ...] = ("output",)
    reduce: Reduce = "mean"
    where: Callable[[str, object], bool] | None = None
    every: Callable[[int], bool] | None = None
    against: Against | None = None
    passes_module: bool = field(default=False)


def checked(
    name: object,
    fn: object,
    *,
    kind: object = "output",
    reduce: object = "mean",
    against: object = None,
) -> Metric:
    """A metric, or an error about what is wrong with it."""
    if not isinstance(name, str) or not name.strip():
        raise SondeError(f"A metric needs a name, got {name!r}.")
    if not callable(fn):
        raise SondeError(f"The metric `{name}` needs a function of a tensor, got {fn!r}.")
    if isinstance(reduce, str) and reduce not in get_args(Simple):
        raise SondeError(
            f"`reduce` of the metric `{name}` must be one of {', '.join(get_args(Simple))}, or a "
            f"function of all values, got {reduce!r}."
        )
    if not isinstance(reduce, str | Merge) and not callable(reduce):
        raise SondeError(f"`reduce` of the metric `{name}` cannot be {reduce!r}.")
    kinds = _kinds(name, kind)
    if against not in (None, "reference"):
        raise SondeError(f"`against` must be None or 'reference', got {against!r}.")
    if against and (len(kinds) > 1 or kinds[0] not in COMPARED_KINDS):
        raise SondeError(
            f"The metric `{name}` cannot compare {', '.join(kinds)} with a reference: that is "
            f"there for {' and '.join(COMPARED_KINDS)}."
        )
    return Metric(
        name,
        fn,
        kinds,
        cast("Reduce", reduce),
        against=against,
        passes_module=_takes_module(fn),
    )


def metric(
    name: str | None = None,
    *,
    kind: str | tuple[str, ...] = "output",
    where: object = ".*",
    reduce: Reduce = "mean",
    against: Against | None = None,
) -> Callable[[F], F]:
    """Declare how a function is used as a metric; `watch.add_metric(function)` then adds it.

    The function itself stays as it is. Its own name is the metric's unless `name` is given. A
    package offers such functions to others as entry points in the group `sonde.metrics`.
    """

    def declare(fn: F) -> F:
        found = checked(name or fn.__name__, fn, kind=kind, reduce=reduce, against=against)
        setattr(fn, _DECLARED, (found, where))
        return fn

    return declare


def declared(fn: object) -> tuple[Metric, object] | None:
    """What `metric` said of the function, with its `where`."""
    found: tuple[Metric, object] | None = getattr(fn, _DECLARED, None)
    return found


def renamed(given: Metric, name: str) -> Metric:
    """The same metric under another name."""
    return replace(given, name=name)


def _kinds(name: str, kind: object) -> tuple[Kind, ...]:
    several = (kind,) if isinstance(kind, str) else _several(kind)
    unknown = [k for k in several if k not in KINDS or k == "local"]
    if not several or unknown:
        known = ", ".join(k for k in KINDS if k != "local")
        wrong = unknown[0] if unknown else kind
        raise SondeError(f"The metric `{name}` has no kind {wrong!r}. Kinds are: {known}.")
    if len(several) > 1 and not (
        set(several) <= set(MODULE_KINDS) or set(several) <= set(UPDATE_KINDS)
    ):
        raise SondeError(
            f"The metric `{name}` cannot have {', '.join(several)} at once: kinds that go together "
            f"are some of {', '.join(MODULE_KINDS)}; or some of {', '.join(UPDATE_KINDS)}."
        )
    return cast("tuple[Kind, ...]", several)


def _several(kind: object) -> tuple[str, ...]:
    if isinstance(kind, tuple | list) and all(isinstance(k, str) for k in kind):
        return tuple(kind)
    return ()


def _takes_module(fn: Callable[..., object]) -> bool:
    try:
        return "module" in inspect.signature(fn).parameters
    except (TypeError, ValueError):  # builtins have no signature
        return False
