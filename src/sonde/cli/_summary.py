"""A summary of a run: what `sonde show` prints, as plain values."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final, TypedDict

from sonde.record import KINDS

if TYPE_CHECKING:
    from sonde.store import Run
    from sonde.store.reading.info import RunInfo

_NON_FINITE_SHOWN: Final = 10
_POINTS: Final = 200


class NonFiniteSite(TypedDict):
    """A site that had a NaN or an infinity, and when it first had one."""

    name: str
    first_step: int
    nans: int
    infs: int
    steps: int


class NonFiniteSites(TypedDict):
    """How many sites ever had a NaN or an infinity, and those that had one first."""

    sites: int
    first: list[NonFiniteSite]


class ScalarSummary(TypedDict):
    """A scalar over all its steps."""

    name: str
    phase: str
    n: int
    first_step: int
    last_step: int
    first: float | None
    last: float | None
    min: float | None
    min_step: int | None
    max: float | None
    line: list[float]


class SiteSummary(TypedDict):
    """A site with its statistics at its last step. From `step` on, all are None if it has none."""

    name: str
    module: str
    kind: str
    call: int
    slot: str
    dtype: str
    shape: list[int] | None
    module_type: str
    step: int
    phase: str
    mean: float
    std: float
    rms: float
    max_abs: float
    sparsity: float
    nans: int
    infs: int


class KindSummary(TypedDict):
    """All sites of one kind together."""

    kind: str
    sites: int
    step: int | None
    rms: list[float | None]
    rms_median: float | None
    rms_min: float | None
    rms_min_site: str | None
    rms_max: float | None
    rms_max_site: str | None
    max_abs: float | None
    sparsity: float | None
    non_finite: int


class RunSummary(TypedDict):
    """What `sonde show` prints."""

    info: RunInfo
    non_finite: NonFiniteSites
    scalars: list[ScalarSummary]
    kinds: list[KindSummary]
    sites: list[SiteSummary]


def summarise(run: Run) -> RunSummary:
    """`info`, `non_finite`, `scalars`, `kinds` and `sites`; everything ready for JSON."""
    sites = _sites(run)
    return {
        "info": run.info,
        "non_finite": _non_finite(run),
        "scalars": _scalars(run),
        "kinds": _kinds(sites),
        "sites": sites,
    }


def _non_finite(run: Run) -> NonFiniteSites:
    """How many sites ever had a NaN or an infinity, and those that had one first.

    Of the same step, the site that comes first in the model comes first: that is where to look.
    """
    rows = run.sql(
        """
        select name, min(step) as first_step, arg_min(nans, step)::bigint as nans,
               arg_min(infs, step)::bigint as infs, count(*) as steps
        from stats where nans + infs > 0 group by name
        """,
        frame="arrow",
    )
    order = run.catalogue().order
    found = rows.to_pylist()
    found.sort(key=lambda row: (row["first_step"], order.get(row["name"], len(order))))
    return {"sites": len(found), "first": found[:_NON_FINITE_SHOWN]}


def _scalars(run: Run) -> list[ScalarSummary]:
    """Each scalar: first, last, smallest, largest, and a thinned line of it."""
    rows = run.sql(
        """
        select name, phase, count(*) as n, min(step) as first_step, max(step) as last_step,
               arg_min(value, step) as first, arg_max(value, step) as last,
               min(value) filter (isfinite(value)) as min,
               arg_min(step, value) filter (isfinite(value)) as min_step,
               max(value) filter (isfinite(value)) as max
        from scalars group by name, phase order by phase <> 'train', name <> 'loss', name limit 40
        """,
        frame="arrow",
    )
    found: list[ScalarSummary] = rows.to_pylist()
    for scalar in found:
        scalar["line"] = _line(run, scalar["name"], scalar["phase"])
    return found


def _line(run: Run, name: str, phase: str) -> list[float]:
    values: list[float] = run.sql(
        """
        select avg(value) filter (isfinite(value)) as value
        from (select value, ntile(?) over (order by step) as part from scalars
              where name = ? and phase = ?) group by part order by part
        """,
        [_POINTS, name, phase],
        frame="arrow",
    )["value"].to_pylist()
    return [float("nan") if v is None else v for v in values]


def _sites(run: Run) -> list[SiteSummary]:
    """Every site with key statistics at its last step, in the order of the model."""
    rows = run.sql(
        """
        select s.name, s.module, s.kind, s.call, s.slot, s.dtype, s.shape, s.module_type,
               t.step, t.phase, t.mean, t.std, t.rms, t.max_abs, t.sparsity, t.nans, t.infs
        from sites s left join (
            select * from stats qualify row_number() over (
                partition by name order by phase <> 'train', step desc) = 1
        ) t on s.name = t.name
        where s.stage = 'final'
        """,
        frame="arrow",
    )
    order = run.catalogue().order
    found: list[SiteSummary] = rows.to_pylist()
    return sorted(found, key=lambda site: (_kind_place(site["kind"]), order.get(site["name"], 0)))


def _kinds(sites: list[SiteSummary]) -> list[KindSummary]:
    """Sites of each kind together: how many, how large, and where the extremes are."""
    by_kind: dict[str, list[SiteSummary]] = {}
    for site in sites:
        by_kind.setdefault(site["kind"], []).append(site)
    return [_kind(kind, group) for kind, group in by_kind.items()]


def _kind(kind: str, group: list[SiteSummary]) -> KindSummary:
    seen = [site for site in group if site["step"] is not None and _is_known(site)]
    rms = [site["rms"] for site in seen]
    smallest = min(seen, key=lambda site: site["rms"], default=None)
    largest = max(seen, key=lambda site: site["rms"], default=None)
    return {
        "kind": kind,
        "sites": len(group),
        "step": max((site["step"] for site in seen), default=None),
        "rms": [site["rms"] for site in group],
        "rms_median": statistics.median(rms) if rms else None,
        "rms_min": smallest["rms"] if smallest else None,
        "rms_min_site": smallest["name"] if smallest else None,
        "rms_max": largest["rms"] if largest else None,
        "rms_max_site": largest["name"] if largest else None,
        "max_abs": max((site["max_abs"] for site in seen), default=None),
        "sparsity": statistics.fmean([site["sparsity"] for site in seen]) if seen else None,
        "non_finite": sum(bool(site["nans"] or site["infs"]) for site in group),
    }


def _is_known(site: SiteSummary) -> bool:
    """Whether its row holds numbers, which a damaged one may not."""
    values: tuple[object, ...] = (site["rms"], site["max_abs"], site["sparsity"])
    return all(value is not None for value in values)


def _kind_place(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)
