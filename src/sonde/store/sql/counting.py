"""Which rows count in merged answers: no replaced attempts, replicas and incomplete tensors.

Rows of one site and step with the same `part` hold the same values, recorded by several ranks: the
lowest rank's count. A tensor of which not all `parts` were recorded at a step (a rank was late, or
died, or records at other steps) has no merged row there: half a tensor would look like a whole one.
`rank=` reads what each rank has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sonde.record import FINAL, STAGES
from sonde.store.attempts import AttemptRecord
from sonde.store.segments import Attempt, Segment
from sonde.store.snapshots import Snapshot

SITE_COLUMNS: Final = ("module", "kind", "call", "slot")
KEY: Final = ("step", "phase", "name")

STAGE: Final = (
    "case when kind <> 'param_grad' then 'final' "
    + " ".join(f"when suffix(slot, '/{s}') then '{s}'" for s in STAGES if s != FINAL)
    + " else 'final' end"
)
"""`Site.stage` as an expression over the columns of a site."""


def is_spread(segments: Iterable[Segment]) -> bool:
    """Whether tensors are cut into parts that lie on several ranks."""
    return any(s.parts > 1 for s in segments)


def counted(segments: Iterable[Segment], *, by_attempt: bool = False) -> str:
    """The rows of `records` that merged answers are made of; `by_attempt` with replaced ones."""
    found = list(segments)
    rows = "select * from records" if by_attempt else "select * from records where not replaced"
    several = len({s.name.attempt.rank for s in found}) > 1
    if not any(s.parts for s in found) or not (several or is_spread(found)):
        return rows
    where = "" if by_attempt else "not replaced and "
    # All columns of a site, so that a filter on any of them is applied before the window.
    key = ", ".join((*KEY, *SITE_COLUMNS, *(["attempt"] if by_attempt else [])))
    return f"""
        select * from records where {where}coalesce(part, -1) < 0
        union all by name
        select * exclude (holder, held) from (
            select *,
                rank() over (partition by {key}, part order by "rank") as holder,
                count(distinct part) filter (count > 0) over (partition by {key}) as held
            from records where {where}part >= 0
        ) where holder = 1 and held >= parts
    """


def norms(others: str) -> str:
    """The norm of all gradients where they lie on several ranks, as rows of scalars.

    `others` are the scalars that were recorded: a name that is there is not computed. Nor is the
    norm of a step at which a gradient is incomplete, or of a run that had to skip one.
    """
    return f"""
        with gradients as (
            select *, {STAGE} as stage from records
            where not replaced and kind = 'param_grad' and phase = 'train'
        ), recorded as (
            select step, stage, count(distinct name) as n from gradients group by step, stage
        ), known as (
            select step, stage, count(distinct name) as n,
                sum(nans) as nans, sum(pos_infs + neg_infs) as infs, sum(sum_sq) as sum_sq
            from (select *, {STAGE} as stage from counted
                where kind = 'param_grad' and phase = 'train')
            group by step, stage
        )
        select step, 'train' as phase,
            'grad_norm' || case when stage = '{FINAL}' then '' else '/' || stage end as name,
            case when nans > 0 then 'nan'::double when infs > 0 then 'inf'::double
                else sqrt(sum_sq) end as value
        from known join recorded using (step, stage)
        where known.n = recorded.n
            and name not in (select distinct name from ({others}))
            and not exists (
                select 1 from events where code = 'skipped' and contains(place, '/param_grad/')
            )
    """


def replaced_from(snapshot: Snapshot) -> dict[Attempt, int]:
    """For each attempt that was resumed: the step from which on later ones replace its rows.

    Later ones are those of the same rank; and, where the start files say which attempts were
    launched together, those of any rank in a later launch: it may have fewer ranks.
    """
    resumes: dict[Attempt, int | None] = {
        s.name.attempt: s.resume_from_step for table in snapshot.segments.values() for s in table
    }
    # What an attempt says of itself counts more: one segment must not hide the rows of others.
    for attempt, record in snapshot.attempts.items():
        if record.resume_from_step is not None or attempt not in resumes:
            resumes[attempt] = record.resume_from_step
    ends: dict[Attempt, int] = {}
    lowest: dict[int, int] = {}
    for attempt in sorted(resumes, reverse=True):
        if attempt.rank in lowest:
            ends[attempt] = lowest[attempt.rank]
        step = resumes[attempt]
        if step is not None:
            lowest[attempt.rank] = min(step, lowest.get(attempt.rank, step))
    for attempt, step in _relaunched(snapshot.attempts).items():
        if attempt in resumes:
            ends[attempt] = min(step, ends.get(attempt, step))
    return ends


def _relaunched(records: Mapping[Attempt, AttemptRecord]) -> dict[Attempt, int]:
    """The step from which on later launches replace the rows of an attempt."""
    launches: dict[str, list[AttemptRecord]] = {}
    for record in records.values():
        launch = record.start.get("launch")
        if isinstance(launch, str) and launch:
            launches.setdefault(launch, []).append(record)
    if len(launches) < 2:
        return {}
    found: dict[Attempt, int] = {}
    for launch, members in launches.items():
        later = [
            step
            for other, several in launches.items()
            if other != launch and _is_later(several, members)
            for record in several
            if (step := record.resume_from_step) is not None
        ]
        if later:
            found.update(dict.fromkeys((m.attempt for m in members), min(later)))
    return found


def _is_later(some: list[AttemptRecord], others: list[AttemptRecord]) -> bool:
    """Whether a launch came after another: by a rank that both have, else by the clock."""
    numbers = {record.attempt.rank: record.attempt.number for record in others}
    for record in some:
        if record.attempt.rank in numbers:
            return record.attempt.number > numbers[record.attempt.rank]
    return _began_ns(some) > _began_ns(others)


def _began_ns(records: list[AttemptRecord]) -> int:
    found = [record.start.get("wall_ns") for record in records]
    return min((n for n in found if isinstance(n, int)), default=0)
