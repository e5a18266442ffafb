"""One site of two runs at one step: both histograms on one axis, and how far apart they are."""

from __future__ import annotations

import math

from sonde.comparison.distance import between
from sonde.sketch import Sketch
from sonde.views import ids
from sonde.views.numbers import axes, section
from sonde.views.pairs.matched import matched
from sonde.views.questions import PairedSectionQuestion, SectionQuestion
from sonde.views.runs.opened_run import NotFoundError, OpenedRun, shown
from sonde.views.runs.several import SeveralRuns
from sonde.views.specs import CrossSection, PairedSection


def answer(runs: SeveralRuns, question: PairedSectionQuestion) -> PairedSection:
    """The recorded step at or before the one asked for, in each run."""
    a, b, found = matched(runs, question)
    site = a.site(question.site).site
    other = next((p.b for p in found.sites.pairs if p.a == site), None)
    if other is None:
        raise NotFoundError(
            "no_such_site", f"The second run has no match of {shown(site.name, 200)}."
        )
    whole = [_section(run, ids.of_name(s.name), question) for run, s in ((a, site), (b, other))]
    sketches = [_sketch(run, found, question) for run, found in zip((a, b), whole, strict=True)]
    low, high = _ends(sketches, question)
    one, two = (
        _section(run, found.site.id, question, low, high)
        for run, found in zip((a, b), whole, strict=True)
    )
    distance = between(*(s.columns() for s in sketches))
    return PairedSection(
        a=one,
        b=two,
        w1=_number(float(distance.w1[0])),
        shift=_number(float(distance.shift[0])),
        zeros=float(distance.zeros[0]),
        nonfinite=float(distance.nonfinite[0]),
    )


def _section(
    run: OpenedRun,
    site: str,
    question: PairedSectionQuestion,
    low: float | None = None,
    high: float | None = None,
) -> CrossSection:
    asked = SectionQuestion(
        run=run.id,
        site=site,
        step=question.step,
        phase=question.phase,
        cells=question.cells,
        scale=question.scale,
        low=low,
        high=high,
    )
    return section.answer(run, asked)


def _sketch(run: OpenedRun, found: CrossSection, question: PairedSectionQuestion) -> Sketch:
    name = run.site(found.site.id).site.name
    return run.run.sketch(name, step=found.step, phase=question.phase)


def _ends(sketches: list[Sketch], question: PairedSectionQuestion) -> tuple[float, float]:
    """An axis for both: what lies far outside in either is counted beside it."""
    known = [s for s in sketches if s.finite] or sketches
    found = [axes.ends(s, question.scale, "robust") for s in known]
    return min(low for low, _ in found), max(high for _, high in found)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
