"""Movers: which sites went non-finite, and which changed most in a window."""

from __future__ import annotations

from typing import Final, TypedDict

from sonde._errors import SondeError
from sonde.record import FINAL
from sonde.sketch import statistic
from sonde.store.reading.selection import Selection
from sonde.store.sql import counting
from sonde.views.numbers.pooling import check_stat
from sonde.views.questions import MoversQuestion
from sonde.views.runs.opened_run import OpenedRun, site_ref
from sonde.views.specs import Mover, Movers

_QUARTER: Final = 4
_TINY: Final = 2.0**-126
"""The smallest normal number of float32. What moves below it is noise, and counts as no larger."""


class NonFiniteSteps(TypedDict, total=False):
    """At how many steps a site is not finite, and the first of them."""

    name: str
    first: int
    steps: int


class SiteChange(TypedDict, total=False):
    """How far a statistic of a site has moved, in powers of two."""

    name: str
    before: float
    after: float
    change: float


def answer(subject: OpenedRun, question: MoversQuestion) -> Movers:
    """Not finite first, earliest first; then by how much the statistic moved, either way."""
    known = statistic(check_stat(question.stat))
    if known.needs_bins:
        raise SondeError(f"`{question.stat}` needs bins: choose a statistic such as `rms`.")
    chosen = Selection().equal("phase", question.phase).equal("kind", question.kind)
    chosen.steps((question.first, question.last)).equal(f"({counting.STAGE})", FINAL)
    window = subject.ask(
        f"select min(step) as first, max(step) as last, count(distinct name) as sites "
        f"from counted where {chosen.where}",
        chosen.parameters,
    ).to_pylist()[0]
    first, last = window["first"], window["last"]
    if first is None:
        shown = (question.kind, question.stat, known.title, known.format)
        return Movers(*shown, None, None, (), 0, 0, ())
    bad, bad_sites = nonfinite(subject, chosen, question.limit)
    moved = changes(subject, chosen, question.stat, (first, last), question.limit)
    structure = subject.structure
    rows: list[Mover] = []
    for name in dict.fromkeys((*bad, *moved)):
        entry = structure.by_name.get(name)
        if entry is None or len(rows) >= question.limit:
            continue
        change: SiteChange = moved.get(name, {})
        wrong: NonFiniteSteps = bad.get(name, {})
        rows.append(
            Mover(
                site=site_ref(entry),
                node=structure.node_of(entry.site.module, entry.site.call),
                before=change.get("before"),
                after=change.get("after"),
                change=change.get("change"),
                nonfinite_steps=int(wrong.get("steps") or 0),
                first_nonfinite_step=wrong.get("first"),
            )
        )
    quarter = max((last - first) // _QUARTER, 0)
    notes = [
        f"median of steps {first:,}–{first + quarter:,} to that of {last - quarter:,}–{last:,}"
    ]
    return Movers(
        kind=question.kind,
        stat=question.stat,
        label=known.title,
        format=known.format,
        first_step=first,
        last_step=last,
        rows=tuple(rows),
        nonfinite_sites=bad_sites,
        sites=int(window["sites"]),
        notes=tuple(notes),
    )


def nonfinite(
    subject: OpenedRun, chosen: Selection, limit: int
) -> tuple[dict[str, NonFiniteSteps], int]:
    """`first` and `steps` of sites that are not finite somewhere, and how many there are."""
    rows = subject.ask(
        f"""
        select name, min(step) as first, count(distinct step) as steps from counted
        where {chosen.where} and nans + pos_infs + neg_infs > 0
        group by name
        """,
        chosen.parameters,
    ).to_pylist()
    # Of those that begin at the same step, the one that training met first is likely the cause.
    met = {name: i for i, name in enumerate(subject.structure.by_name)}
    rows.sort(key=lambda row: (row["first"], met.get(row["name"], len(met)), row["name"]))
    return {row["name"]: row for row in rows[:limit]}, len(rows)


def changes(
    subject: OpenedRun, chosen: Selection, stat: str, window: tuple[int, int], limit: int
) -> dict[str, SiteChange]:
    """`before`, `after` and `change` of sites, those first that changed most."""
    first, last = window
    quarter = max((last - first) // _QUARTER, 0)
    rows = subject.ask(
        f"""
        select name, before, after,
            log2(greatest(after, {_TINY}) / greatest(before, {_TINY})) as change from (
            select name,
                median(v) filter (step <= {first + quarter}) as before,
                median(v) filter (step >= {last - quarter}) as after
            from (select name, step, abs("{stat}") as v from stats where {chosen.where}
                and (step <= {first + quarter} or step >= {last - quarter}))
            group by name
        )
        where before > 0 and after > 0 and isfinite(before) and isfinite(after)
        order by abs(change) desc, greatest(before, after) desc, name limit {int(limit)}
        """,
        chosen.parameters,
    ).to_pylist()
    return {row["name"]: row for row in rows}
