"""A LogFrame as specs of figures: the numbers of the frame, as the figures of runs draw them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sonde.logframe.schema import Frame, exponent, frexp_shift
from sonde.logframe.to_run import site_of, sketches_of
from sonde.sketch.columns import merge_groups
from sonde.sketch.model import row
from sonde.views import ids
from sonde.views.numbers import section
from sonde.views.numbers.notes import bounds
from sonde.views.questions import SectionQuestion
from sonde.views.runs.opened_run import SiteEntry
from sonde.views.specs import NONFINITE, NUMBER, Columns, CrossSection, Heat, HeatRow


def cross_section(rows: Frame, formats: bool | str | Sequence[str] = ()) -> CrossSection:
    """The exponents of one tensor at one step, from its rows; several rows are merged.

    Values that the frame counts as -inf and +inf are one power of two beyond its columns. `formats`
    are number formats to compare with; True is that of the tensor.
    """
    meta = rows["metadata"].iloc[0]
    if isinstance(formats, bool):
        formats = str(meta["dtype"]) if formats else ()
    names = (formats,) if isinstance(formats, str) else tuple(formats)
    site = site_of(str(meta["name"]), str(meta["tensor_type"]))
    merged = merge_groups(sketches_of(rows, frexp_shift(rows)), np.zeros(len(rows), np.int64), 1)
    entry = SiteEntry(site, str(meta["dtype"]), (), str(meta["type"]))
    question = SectionQuestion(run="", site=ids.of_name(site.name), format=names)
    (found,) = section.of_sketches(entry, question, {int(meta["step"]): row(merged, 0)})
    return found


def ends(rows: Frame) -> list[tuple[int, str]]:
    """The powers of two that stand for -inf and +inf in a cross-section, where any value does."""
    counts = rows["exponent_counts"].sum()
    places = {exponent(column): column for column in counts.index}
    finite = [int(e) for e in places if math.isfinite(e)]
    shift = frexp_shift(rows)
    found = [(min(finite) - 1 - shift, -math.inf), (max(finite) + 1 - shift, math.inf)]
    return [(at, f"{end:+}") for at, end in found if counts[places[end]] > 0]


def series(rows: Frame, metrics: Sequence[str], title: str) -> Heat:
    """Statistics of one tensor over steps, one row each; several rows of a step are averaged."""
    steps = rows["metadata", "step"].to_numpy()
    grouped = rows["scalar_stats"][list(metrics)].astype(float).groupby(steps)
    return _heat(grouped.mean().T, grouped.size().notna().to_numpy(), title, ", ".join(metrics))


def heat(rows: Frame, metric: str) -> Heat:
    """One statistic of all tensors in the rows over steps; several rows of a step are averaged."""
    meta = rows["metadata"]
    names = list(dict.fromkeys(meta["name"].astype(str)))
    values = rows["scalar_stats", metric].astype(float)
    grouped = values.groupby([meta["name"].astype(str), meta["step"]])
    table, held = grouped.mean().unstack().reindex(names), grouped.size().unstack().reindex(names)
    return _heat(table, held.notna().to_numpy(), str(meta["tensor_type"].iloc[0]), metric)


def _heat(table: Frame, is_held: NDArray[np.bool_], title: str, label: str) -> Heat:
    """Labels by steps; a cell that is not held is empty, one without a number is not finite."""
    steps = table.columns.to_numpy(np.float64)
    values = table.to_numpy(np.float64)
    flags = np.where(np.isfinite(values), NUMBER, np.where(is_held, NONFINITE, 0))
    finite = values[np.isfinite(values)]
    return Heat(
        title=title,
        label=label,
        format="number",
        kind=None,
        stat=None,
        metric=None,
        aggregate="mean",
        norm="none",
        columns=Columns(1, steps, steps, np.ones(len(steps), np.int32), None, ""),
        rows=tuple(
            HeatRow(None, str(name), None, str(name), str(name), "", 0, 0, 1)
            for name in table.index
        ),
        groups=(),
        values=values.astype(np.float32).ravel(),
        flags=flags.astype(np.uint8).ravel(),
        limits=bounds(finite),
        is_signed=bool((finite < 0).any()),
        notes=(),
    )
