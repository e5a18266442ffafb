"""The comparison of two runs as a whole: verdict, what is in one of them only, settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from sonde.comparison.divergence import Divergence
from sonde.comparison.result import SiteDistance
from sonde.record import Site
from sonde.views.pairs.matched import matched
from sonde.views.questions import CompareQuestion
from sonde.views.runs.opened_run import (
    MAX_LABEL,
    MAX_PATH,
    OpenedRun,
    SiteEntry,
    shown,
    site_ref,
)
from sonde.views.runs.several import SeveralRuns
from sonde.views.specs import ComparedRuns, FarSite, FirstDifference, SiteRef, TwoValues

_MAX_LISTED: Final = 200
_MAX_TEXT: Final = 300
_ROWS: Final = 40
_SKETCHES: Final = 40_000
"""Sketches of each run whose bins are read for distances: about a second of work."""


def answer(runs: SeveralRuns, question: CompareQuestion) -> ComparedRuns:
    """Where the runs part, what only one of them has, and what is farthest apart."""
    a, b, found = matched(runs, question, question.twin)
    found = found.at_most(max(_SKETCHES // max(len(found.sites.pairs), 1), 8))
    is_same = found.verdict == "identical"
    rows = [] if is_same or not found.steps else found.farthest(_ROWS)
    rows = [row for row in rows if _number(row["w1"]) or row["zeros"] or row["nonfinite"]]
    sites = found.sites
    notes = []
    if not is_same and len(found.chosen) < len(found.steps):
        notes.append(f"distances at {len(found.chosen):,} of {len(found.steps):,} common steps")
    return ComparedRuns(
        a=shown(a.run.name, MAX_LABEL),
        b=shown(b.run.name, MAX_LABEL),
        verdict=found.verdict,
        headline=shown(found.headline, 1000),
        first=_first(a, found.first),
        sites=len(sites.pairs),
        steps=len(found.steps),
        removed=_names(sites.removed),
        added=_names(sites.added),
        renamed=tuple(
            TwoValues("", shown(old, MAX_PATH), shown(new, MAX_PATH))
            for old, new in list(sites.renamed.items())[:_MAX_LISTED]
        ),
        removed_count=len(sites.removed),
        added_count=len(sites.added),
        settings=_values(found.settings),
        environment=_values(found.environment),
        farthest=tuple(_far(a, row) for row in rows),
        notes=tuple(notes),
    )


def _first(a: OpenedRun, first: Divergence | None) -> FirstDifference | None:
    if first is None:
        return None
    return FirstDifference(first.step, _ref(a, first.pair.a), first.others)


def _far(a: OpenedRun, row: SiteDistance) -> FarSite:
    entry = a.structure.by_name.get(row["site"])
    site = site_ref(entry) if entry is not None else _ref(a, Site("", row["kind"]))
    return FarSite(
        site=site,
        other=shown(row["other"], MAX_PATH),
        step=int(row["step"]),
        w1=_number(row["w1"]),
        shift=_number(row["shift"]),
        zeros=float(row["zeros"]),
        nonfinite=float(row["nonfinite"]),
    )


def _ref(a: OpenedRun, site: Site) -> SiteRef:
    return site_ref(a.structure.by_name.get(site.name) or SiteEntry(site, "", (), ""))


def _names(sites: tuple[Site, ...]) -> tuple[str, ...]:
    return tuple(shown(site.name, MAX_PATH) for site in sites[:_MAX_LISTED])


def _values(found: Mapping[str, tuple[object, object]]) -> tuple[TwoValues, ...]:
    return tuple(
        TwoValues(shown(str(name), MAX_LABEL), _text(one), _text(two))
        for name, (one, two) in list(found.items())[:_MAX_LISTED]
    )


def _text(value: object) -> str | None:
    return None if value is None else shown(str(value), _MAX_TEXT)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
