"""Specs of two runs side by side."""

from __future__ import annotations

from dataclasses import dataclass

from sonde.views.specs.numbers import CrossSection, Heat
from sonde.views.specs.parts import Measure, SiteRef, VerdictWord


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two runs part: the site in the first run, and `others` more in the same step."""

    step: int
    site: SiteRef
    others: int


@dataclass(frozen=True, slots=True)
class TwoValues:
    """Something by name in the first and in the second run; null where it is not there."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class FarSite:
    """A site at the step where it is farthest apart. `w1` and `shift` are in octaves, null where
    one of the runs has nothing but zeros; `zeros` and `nonfinite` are differences of shares."""

    site: SiteRef
    other: str
    step: int
    w1: float | None
    shift: float | None
    zeros: float
    nonfinite: float


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """What two runs have in common, and where they part.

    `headline` is the verdict in one sentence. `removed` is only in the first run, `added` only in
    the second one, `renamed` in both under two paths; the lists are cut, the counts are not.
    `settings` is what the user configured, `environment` versions of packages and code.
    """

    a: str
    b: str
    verdict: VerdictWord
    headline: str
    first: FirstDifference | None
    sites: int
    steps: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    renamed: tuple[TwoValues, ...]
    removed_count: int
    added_count: int
    settings: tuple[TwoValues, ...]
    environment: tuple[TwoValues, ...]
    farthest: tuple[FarSite, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairedHeat:
    """One statistic of the sites that two runs share. All three heatmaps have the same rows and
    columns; `a` and `b` have the same limits, those of `difference` are symmetric for a ratio.

    `others` is the path in the second run for each row, empty where it is the same.
    """

    measure: Measure
    a: Heat
    b: Heat
    difference: Heat
    others: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PairedSection:
    """One site of two runs at a step, with the same edges, and how far apart they are."""

    a: CrossSection
    b: CrossSection
    w1: float | None
    shift: float | None
    zeros: float
    nonfinite: float
