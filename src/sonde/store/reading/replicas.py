"""Replicas: whether ranks that should hold the same values do, and those that should not do not.

    run.drift()     # [] when all is well

Two replicas of a tensor are compared by their sketches: counts, extrema and bins to the bit, sums
up to the order of additions. A difference that changes no bin, no extreme value and no sum is not
found.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypedDict

from sonde.record import COUNTS, EXTREMA, SUMS
from sonde.store.reading.stat_queries import QueryRunner, ask

_SAME: Final = 1e-11
"""Sums that differ by less, relative to that of magnitudes, differ by the order of additions."""

_MOST: Final = 1000


class DriftInfo(TypedDict):
    """What ranks hold that they should not, as plain values: see `RankDrift`."""

    what: str
    name: str
    ranks: list[int]
    step: int
    steps: int
    message: str


@dataclass(frozen=True, slots=True)
class RankDrift:
    """What ranks hold that they should not: `replica`, different values of one tensor; `batch`, the
    same batch. `step` is the first one, `steps` how many there are."""

    what: Literal["replica", "batch"]
    name: str
    ranks: tuple[int, ...]
    step: int
    steps: int

    @property
    def message(self) -> str:
        ranks = ", ".join(str(r) for r in self.ranks)
        if self.what == "batch":
            return (
                f"Ranks {ranks} train on the same batch since step {self.step}: the data loader "
                "needs a sampler that splits the data, such as `DistributedSampler`."
            )
        plural = "s" if len(self.ranks) > 1 else ""
        return (
            f"`{self.name}` on rank{plural} {ranks} differs from the other replicas since step "
            f"{self.step}."
        )


def find(run: QueryRunner, *, with_bins: bool = True) -> list[RankDrift]:
    """All drift of a run, that of replicas first, in the order in which it began."""
    return [*_replicas(run, with_bins=with_bins), *_batches(run)]


def _replicas(run: QueryRunner, *, with_bins: bool) -> list[RankDrift]:
    exact = [*COUNTS, *EXTREMA, *(["bin_ids", "bin_counts"] if with_bins else [])]
    columns = ", ".join(exact)
    sums = ["sum_abs" if name == "sum" else name for name in SUMS]
    apart = " or ".join(
        f"abs({name} - first({name}) over same) > {_SAME} * abs(first({scale}) over same)"
        for name, scale in zip(SUMS, sums, strict=True)
    )
    rows = ask(
        run,
        f"""
        with compared as (
            select step, name, "rank",
                hash({columns}) <> first(hash({columns})) over same or {apart} as differs
            from records where not replaced and part >= 0
            window same as (partition by step, phase, name, part, attempt order by "rank"
                rows between unbounded preceding and unbounded following)
        )
        select name, list(distinct "rank") as ranks, min(step) as step,
            count(distinct step)::bigint as steps
        from compared where differs group by name order by step, name limit {_MOST}
        """,
    )
    return [_drift("replica", row) for row in rows.to_pylist()]


def _batches(run: QueryRunner) -> list[RankDrift]:
    """Ranks whose models were given the same, where that is not one value throughout."""
    values = ", ".join(("name", *COUNTS, *EXTREMA, *SUMS, "bin_ids", "bin_counts"))
    rows = ask(
        run,
        f"""
        with given as (
            select step, "rank", list(hash({values}) order by name) as batch,
                bool_or(max > min) as varies
            from counted where kind = 'input' and module = '' and phase = 'train'
            group by step, "rank"
        ), same as (
            select step, list("rank" order by "rank") as ranks from given where varies
            group by step, batch having count(*) > 1
        )
        select './input' as name, ranks, min(step) as step, count(*)::bigint as steps
        from same group by ranks order by step, ranks limit {_MOST}
        """,
    )
    return [_drift("batch", row) for row in rows.to_pylist()]


def _drift(what: Literal["replica", "batch"], row: dict[str, object]) -> RankDrift:
    ranks = row["ranks"]
    assert isinstance(ranks, Iterable)
    return RankDrift(
        what,
        str(row["name"]),
        tuple(sorted(int(r) for r in ranks)),
        int(str(row["step"])),
        int(str(row["steps"])),
    )
