"""What `watch.add_metric` was asked for, as a `Metric`. Knows no framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Final

from sonde._errors import SondeError
from sonde._signals import pass_on
from sonde.capture.plan import Selector, selector_of
from sonde.metrics.model import Metric, checked, declared, renamed

GROUP: Final = "sonde.metrics"
"""Entry points of this group are functions that packages offer as metrics."""

EVERYWHERE: Final = ".*"

BuiltIn = Mapping[str, Callable[..., object]]
"""The metrics of a framework that come with Sonde, by name."""


def requested(
    name: str | Callable[..., object],
    fn: Callable[..., object] | None,
    *,
    kind: str | tuple[str, ...] | None,
    reduce: object,
    against: str | None,
    built_in: BuiltIn,
    others: Iterable[str] = (),
) -> tuple[Metric, object]:
    """The metric, and where it is evaluated if `where` is not given.

    Raises:
        SondeError: There is no such metric (`others` are names to list then), or it is wrong.
    """
    if fn is None:
        fn = name if callable(name) else _found(name, built_in, others)
    known = declared(fn)
    if known is not None:
        metric, usual = known
        if isinstance(name, str):
            metric = renamed(metric, name)
        if kind is None and reduce is None and against is None:
            return metric, usual
        kind = metric.kinds if kind is None else kind
        reduce = metric.reduce if reduce is None else reduce
        name = metric.name
    called = name if isinstance(name, str) else getattr(name, "__name__", "")
    return (
        checked(
            called,
            fn,
            kind="output" if kind is None else kind,
            reduce="mean" if reduce is None else reduce,
            against=against,
        ),
        EVERYWHERE,
    )


def place_selector(where: object) -> Selector | None:
    """Which paths are meant: a glob or a regular expression that matches all of a path, or whatever
    `include` takes. None means everywhere."""
    if where is None or where == EVERYWHERE:
        return None
    if not isinstance(where, str) or where.startswith("re:"):
        return selector_of(where, "where")
    by_glob = selector_of(where, "where")
    assert by_glob is not None
    try:
        regex = re.compile(where)
    except re.error:
        return by_glob
    return lambda path, module: regex.fullmatch(path) is not None or by_glob(path, module)


def _found(name: str, built_in: BuiltIn, others: Iterable[str]) -> Callable[..., object]:
    """A function by name: one of ours, or one that a package offers."""
    if name in built_in:
        return built_in[name]
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name in offered:
        try:
            theirs: Callable[..., object] = offered[name].load()
        except Exception as error:
            pass_on(error)
            raise SondeError(f"The metric `{name}` cannot be loaded: {error!r}.") from error
        return theirs
    known = ", ".join(sorted({*built_in, *others, *offered}))
    raise SondeError(f"There is no metric `{name}`. Give a function with it, or one of: {known}.")
