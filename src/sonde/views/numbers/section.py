"""The cross-section: one site at one step, with its histogram, exponents, statistics and what each
number format would lose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from sonde.sketch import STATISTICS, Sketch, concatenate, statistic
from sonde.sketch.formats import format_named
from sonde.store.reading.selection import Selection
from sonde.store.reading.stat_queries import source_of
from sonde.views.numbers import axes
from sonde.views.questions import SectionQuestion
from sonde.views.runs.opened_run import NotFoundError, OpenedRun, SiteEntry, site_ref
from sonde.views.specs import CrossSection, FormatLoss, Named

_FORMATS: Final = {
    "float8_e4m3fn": "fp8 e4m3",
    "float8_e5m2": "fp8 e5m2",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float4_e2m1fn": "fp4 e2m1",
}
"""Formats that are told when none are asked for, and how they are called for short."""

_QUANTILES: Final = ("p1", "p5", "p25", "p50", "p75", "p95", "p99")


def answer(subject: OpenedRun, question: SectionQuestion) -> CrossSection:
    """The recorded step at or before the one asked for, else the first after it."""
    entry = subject.site(question.site)
    chosen = Selection(["not replaced"]).equal("name", entry.site.name)
    chosen.equal("phase", question.phase).equal("rank", question.rank)
    table = source_of(question.rank)
    step, before, after = _nearest(subject, chosen, question.step, table)
    sketch = subject.run.sketch(
        entry.site.name, step=step, phase=question.phase, rank=question.rank
    )
    return _section(entry, question, sketch, (before, step, after), _statistics([sketch])[0])


def of_sketches(
    entry: SiteEntry, question: SectionQuestion, found: Mapping[int, Sketch]
) -> Iterator[CrossSection]:
    """The cross-sections of sketches that were read already, by their steps.

    `previous` and `next` lead to each other.
    """
    steps = sorted(found)
    listed = _statistics([found[step] for step in steps])
    for i, step in enumerate(steps):
        before = steps[i - 1] if i else None
        after = steps[i + 1] if i + 1 < len(steps) else None
        yield _section(entry, question, found[step], (before, step, after), listed[i])


def _section(
    entry: SiteEntry,
    question: SectionQuestion,
    sketch: Sketch,
    steps: tuple[int | None, int, int | None],
    statistics: tuple[Named, ...],
) -> CrossSection:
    before, step, after = steps
    low, high = question.low, question.high
    if low is None or high is None:
        low, high = axes.ends(sketch, question.scale, "all")
    edges = axes.edges(question.scale, low, high, question.cells)
    counts = axes.counts(sketch, question.scale, edges)
    below, above = axes.outside(sketch, question.scale, edges, float(counts.sum()))
    exponents = sketch.exponents()
    notes = ["quantiles within a bin: at most 25 %"]
    if question.step is not None and step != question.step:
        notes.append(f"step {question.step:,} was not recorded here: this is step {step:,}")
    if question.rank is not None:
        notes.append(f"rank {question.rank}")
    return CrossSection(
        site=site_ref(entry),
        asked=question.step,
        step=step,
        previous=before,
        next=after,
        scale=question.scale,
        edges=edges,
        counts=counts,
        below=below,
        above=above,
        exponents=exponents.exponents.astype(np.int32),
        exponent_counts=exponents.counts.astype(np.float64),
        zeros=float(sketch.zeros),
        nans=float(sketch.nans),
        pos_infs=float(sketch.pos_infs),
        neg_infs=float(sketch.neg_infs),
        total=float(sketch.count),
        statistics=statistics,
        formats=tuple(_loss(sketch, name) for name in question.format or _FORMATS),
        notes=tuple(notes),
    )


def _nearest(
    subject: OpenedRun, chosen: Selection, step: int | None, table: str
) -> tuple[int, int | None, int | None]:
    """The recorded step that is meant, and its neighbours."""
    at = (1 << 62) if step is None else step
    found = subject.ask(
        f"""
        with recorded as (select distinct step from {table} where {chosen.where}),
        here as (select coalesce(
            (select max(step) from recorded where step <= ?), (select min(step) from recorded)
        ) as step)
        select here.step as step,
            (select max(r.step) from recorded r where r.step < here.step) as before,
            (select min(r.step) from recorded r where r.step > here.step) as after
        from here
        """,
        [*chosen.parameters, at],
    ).to_pylist()[0]
    if found["step"] is None:
        raise NotFoundError("no_such_step", "Nothing was recorded here in this phase and rank.")
    return int(found["step"]), found["before"], found["after"]


def _statistics(sketches: Sequence[Sketch]) -> list[tuple[Named, ...]]:
    """The statistics of each, all sketches at once."""
    rows = concatenate([sketch.columns() for sketch in sketches])
    listed = [known for known in STATISTICS.values() if known.is_listed]
    listed += [statistic(name) for name in _QUANTILES]
    values = [known(rows) for known in listed]
    return [
        tuple(
            Named(known.name, _number(float(found[i])), known.title, known.format, known.is_main)
            for known, found in zip(listed, values, strict=True)
        )
        for i in range(len(sketches))
    ]


def _loss(sketch: Sketch, name: str) -> FormatLoss:
    found = format_named(name)
    loss = sketch.loss(found.name)
    return FormatLoss(
        name=found.name,
        title=_FORMATS.get(found.name, found.name),
        underflow=_number(loss.underflow),
        subnormal=_number(loss.subnormal),
        overflow=_number(loss.overflow),
        largest=found.largest,
        top_exponent=math.floor(math.log2(found.largest)),
        normal_exponent=math.floor(math.log2(found.smallest_normal)),
        smallest_exponent=math.floor(math.log2(found.smallest)),
    )


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
