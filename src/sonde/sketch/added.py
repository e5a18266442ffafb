"""Statistics that users and installed packages add."""

from __future__ import annotations

import logging
import os
import runpy
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Final

from sonde._errors import SondeError
from sonde.sketch.statistics import Compute, NumberFormat, Statistic, register

_LOG: Final = logging.getLogger("sonde")

GROUP: Final = "sonde.statistics"
"""Entry points of this group are modules or functions that define statistics when loaded."""

LOAD: Final = "SONDE_LOAD"
"""Files that define statistics, in this environment variable, separated as in PATH."""

_LOADED: Final[set[str]] = set()


def define(
    *,
    sql: str | None = None,
    label: str = "",
    format: NumberFormat = "number",
    is_signed: bool = False,
    is_main: bool = True,
) -> Callable[[Compute], Statistic]:
    """Make a function of sketches a statistic: in `run.stats`, in sinks and on the page.

        @sonde.statistic(sql="{max_abs} / nullif({rms}, 0)", label="crest factor")
        def crest(sketches):
            return statistic("max_abs")(sketches) / statistic("rms")(sketches)

    The function takes the columns of many sketches (`sonde.record.Sketches`) and returns a float64
    array with one number for each, NaN where there is nothing to say. Its name is the statistic's.

    Args:
        sql: The same in SQL, over the columns of a sketch; `{rms}` stands for the SQL of another
            statistic. Without it, answers over many steps take longer, because whole sketches are
            read.
        label: What the page calls it; the name by default.
        format: `number`, `share` (in per cent) or `count` (a whole number).
        is_signed: Whether the sign means something: then the page has a colour for each.
        is_main: Whether the page shows it with every tensor.

    Raises:
        SondeError: If the name is taken or is none, or the SQL refers to what has none.
    """

    def defined(compute: Compute) -> Statistic:
        name = getattr(compute, "__name__", "")
        try:
            return register(
                Statistic(name, compute, sql, label, format, is_signed=is_signed, is_main=is_main)
            )
        except ValueError as error:
            raise SondeError(str(error)) from None

    return defined


def load() -> None:
    """Load what installed packages and the files of `SONDE_LOAD` define, once in a process.

    What fails is logged and left out.
    """
    for path in filter(None, os.environ.get(LOAD, "").split(os.pathsep)):
        _once(path, partial(runpy.run_path, path, run_name="sonde_load"))
    if GROUP not in _LOADED:
        _LOADED.add(GROUP)
        for point in entry_points(group=GROUP):
            _once(f"{GROUP}:{point.name}", point.load)


def _once(what: str, act: Callable[[], object]) -> None:
    if what in _LOADED:
        return
    _LOADED.add(what)
    try:
        act()
    except Exception as error:
        _LOG.warning("Statistics of `%s` are left out: %r", what, error)
