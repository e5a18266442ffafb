"""The header of a run: all that a page needs to know before it draws anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.record import KINDS
from sonde.sketch import STATISTICS, statistic
from sonde.store.reading import rank_states
from sonde.store.reading.info import RunInfo
from sonde.views.numbers import heat, lines
from sonde.views.questions import RunQuestion
from sonde.views.runs.opened_run import MAX_LABEL, NotFoundError, OpenedRun, shown
from sonde.views.specs import (
    Fact,
    KindCount,
    Notice,
    NoticeLevel,
    NumberName,
    RunHeader,
    StatisticName,
    StepNote,
    StepRange,
)

_MAX_NAMES: Final = 2000
_MAX_RANGES: Final = 2000
_MAX_FACTS: Final = 200
_MAX_NOTICES: Final = 200
_LEVELS: Final[Mapping[str, NoticeLevel]] = {"warning": "warning", "error": "error"}
_QUANTILES: Final = ("p1", "p50", "p99")


def answer(subject: OpenedRun, _question: RunQuestion) -> RunHeader:
    """What there is in the run, and what happened to its recording."""
    info = subject.run.info
    progress = subject.progress
    structure = subject.structure
    numbers = _numbers(subject)
    scalars = [n for n in numbers if n.modules == 0]
    try:
        kind: str | None = heat.default_kind(structure)
    except NotFoundError:
        kind = None
    watch = _mapping(_mapping(info.get("config")).get("watch"))
    steps = info["steps"]
    counts: dict[str, int] = {}
    for e in structure.entries:
        counts[e.site.kind] = counts.get(e.site.kind, 0) + 1
    order = {kind: i for i, kind in enumerate(KINDS)}
    kinds = sorted(counts.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))  # type: ignore[call-overload]  # a stranger's kind is any text
    return RunHeader(
        name=shown(subject.run.name, MAX_LABEL),
        model=_text(watch.get("model")),
        status=progress.status,
        reason=_text(info.get("reason")),
        created_ms=_created_ms(info.get("created")),
        last_seen_ms=None if progress.last_seen_ns is None else progress.last_seen_ns / 1e6,
        first_step=steps["first"],
        last_step=steps["last"],
        recorded_steps=steps["recorded"],
        recorded=_recorded(subject),
        known_steps=steps["known"],
        records=int(info["records"]),
        size_bytes=int(info["size_bytes"]),
        phases=_phases(subject),
        ranks=tuple(sorted({int(a["rank"]) for a in info["attempts"]})),
        kinds=tuple(KindCount(kind, n) for kind, n in kinds),
        statistics=_statistics(),
        scalars=tuple(scalars),
        metrics=tuple(n for n in numbers if n.modules > 0),
        timeline=lines.loss_name([n.name for n in scalars]),
        kind=kind,
        stat="rms",
        modules=len(structure.tree.branches),
        graph=structure.graph.has_flow,
        graph_note=shown(structure.graph.note, 2000),
        facts=_facts(info),
        notices=_notices(info),
        step_notes=_step_notes(subject),
    )


def _statistics() -> tuple[StatisticName, ...]:
    listed = [known for known in STATISTICS.values() if known.is_listed]
    return tuple(
        StatisticName(known.name, known.title, known.format, known.needs_bins)
        for known in (*listed, *(statistic(name) for name in _QUANTILES))
    )


def _recorded(subject: OpenedRun) -> tuple[StepRange, ...]:
    """The steps that have sketches (those that have numbers where none has), as ranges."""
    for table in ("records", "numbers"):
        rows = subject.ask(f"select distinct step from {table} where not replaced order by step")
        if len(rows):
            found = step_ranges(rows["step"].to_numpy())
            return found if len(found) <= _MAX_RANGES else ()
    return ()


def step_ranges(steps: NDArray[np.int64]) -> tuple[StepRange, ...]:
    """Rising steps as ranges of equal distance, as long as they go."""
    found: list[StepRange] = []
    at = 0
    gaps = np.diff(steps)
    while at < len(steps):
        if at == len(steps) - 1:
            found.append(StepRange(int(steps[at]), int(steps[at]), 1))
            break
        other = np.flatnonzero(gaps[at:] != gaps[at])
        end = at + int(other[0]) if len(other) else len(steps) - 1
        found.append(StepRange(int(steps[at]), int(steps[end]), int(gaps[at])))
        at = end + 1
    return tuple(found)


def _numbers(subject: OpenedRun) -> list[NumberName]:
    rows = subject.ask(
        f"""
        select name, list(distinct phase) as phases, count(distinct module) as modules,
            count(*) as numbers, min(ordinal) as place
        from numbers where not replaced
        group by name, module is null order by place, name limit {_MAX_NAMES}
        """
    )
    return [
        NumberName(
            shown(row["name"], MAX_LABEL),
            tuple(sorted(shown(p, MAX_LABEL) for p in row["phases"])),
            int(row["modules"]),
            int(row["numbers"]),
        )
        for row in rows.to_pylist()
    ]


def _phases(subject: OpenedRun) -> tuple[str, ...]:
    rows = subject.ask(
        "select distinct phase from (select distinct phase from records "
        "union all select distinct phase from numbers) limit 100"
    )
    found = sorted(str(p) for p in rows["phase"].to_pylist())
    return tuple(sorted((shown(p, MAX_LABEL) for p in found), key=lambda p: (p != "train", p)))


def _facts(info: RunInfo) -> tuple[Fact, ...]:
    """What was run, where and with what, as lines to show."""
    found: list[Fact] = []
    command = info.get("command")
    if isinstance(command, list):
        found.append(Fact("command", shown(" ".join(str(c) for c in command), 1000)))
    for title in ("git", "host", "versions", "overhead", "config"):
        _flatten(title, info.get(title), found)
    found.append(Fact("run id", shown(str(info.get("run_id")), 60)))
    found.append(Fact("format", shown(str(info.get("format_version")), 60)))
    return tuple(found[:_MAX_FACTS])


def _flatten(label: str, value: object, found: list[Fact], depth: int = 0) -> None:
    if value is None or len(found) >= _MAX_FACTS:
        return
    if isinstance(value, Mapping) and depth < 4:
        for key, inner in value.items():
            _flatten(f"{label}.{key}", inner, found, depth + 1)
        return
    text = value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
    found.append(Fact(shown(label, MAX_LABEL), shown(text, 1000)))


def _notices(info: RunInfo) -> tuple[Notice, ...]:
    found = [
        Notice("error", "damaged", shown(d["file"], 300), shown(d["problem"], 300), None, 1)
        for d in info["damaged"]
    ]
    found += [
        Notice("warning", "ranks", "", shown(told, 500), None, 1)
        for told in rank_states.problems(info["ranks"])
    ]
    found += [
        Notice(
            *("warning", "drift", shown(d["name"], 300), shown(d["message"], 500)),
            *(d["step"], d["steps"]),
        )
        for d in info["drift"]
    ]
    found += [
        Notice("warning", "dropped", shown(cause, 60), "records were dropped", None, int(n))
        for cause, n in info["dropped"].items()
        if n
    ]
    for e in (*info["warnings"], *info["skipped"]):
        level: NoticeLevel = _LEVELS.get(e["level"], "info")
        found.append(
            Notice(
                level,
                shown(str(e["code"]), 60),
                shown(str(e["place"] or ""), 300),
                shown(str(e["message"]), 500),
                e["step"],
                int(e["count"] or 0),
            )
        )
    return tuple(found[:_MAX_NOTICES])


def _step_notes(subject: OpenedRun) -> tuple[StepNote, ...]:
    rows = subject.ask(
        "select distinct step, message from events where code = 'note' and step >= 0 "
        f"order by step, message limit {_MAX_NOTICES}"
    )
    return tuple(StepNote(r["step"], shown(str(r["message"]), 500)) for r in rows.to_pylist())


def _created_ms(created: object) -> float | None:
    try:
        return datetime.fromisoformat(str(created)).timestamp() * 1e3
    except (ValueError, OverflowError):
        return None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return shown(value, MAX_LABEL) if isinstance(value, str) else None
