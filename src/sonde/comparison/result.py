"""The comparison of two runs: `sonde.compare(a, b)`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Final, TypedDict

import numpy as np
import pyarrow as pa

from sonde._errors import SondeError
from sonde.comparison import divergence
from sonde.comparison.distance import Distances, between
from sonde.comparison.divergence import Divergence, Verdict
from sonde.comparison.matching import SiteMatch, match
from sonde.comparison.records import PairedRecords, paired, step_lists, windows
from sonde.record import Kind
from sonde.store.reading.frames import Frame, default_kind, to_frame
from sonde.store.reading.run import Run, open_run

RunLike = Run | str | os.PathLike[str]

_MAX_STEPS: Final = 256
_ROWS: Final = 10


def compare(
    a: RunLike,
    b: RunLike,
    *,
    names: Mapping[str, str] | None = None,
    twin: RunLike | None = None,
    phase: str = "train",
    max_steps: int = _MAX_STEPS,
) -> Comparison:
    """Compare two runs: sites, settings, distances, and where they part first.

    Args:
        a: A run or its path.
        b: The run to compare it with.
        names: Paths of modules in `a` with their paths in `b`, where those differ and cannot be
            matched by type, shape and order.
        twin: A run that is `a` but for its seed. Differences no larger than those between twins
            count as noise.
        phase: Only records of this phase.
        max_steps: Steps at which distances are computed, evenly chosen. Where runs part is found in
            all steps.
    """
    first, second = _opened(a), _opened(b)
    found = match(first, second, names)
    steps = _common_steps(first, second, phase)
    return Comparison(
        first, second, found, steps, phase, max_steps, None if twin is None else _opened(twin)
    )


class SiteDistance(TypedDict):
    """How far apart a site of two runs is at a step: a row of `Comparison.distances`."""

    step: int
    site: str
    other: str
    kind: Kind
    w1: float | None
    shift: float
    zeros: float
    nonfinite: float


@dataclass(frozen=True)
class Comparison:
    """What two runs have in common, and where they part. Made by `sonde.compare`."""

    a: Run
    b: Run
    sites: SiteMatch
    steps: tuple[int, ...]
    """Steps that both have recorded."""
    phase: str
    max_steps: int
    twin: Run | None

    @property
    def verdict(self) -> Verdict:
        """`identical`, `different`, `alike` (differences are noise) or `no verdict`."""
        return self._judged[0]

    @property
    def first(self) -> Divergence | None:
        """Where the runs part, if they do."""
        return self._judged[1]

    @cached_property
    def settings(self) -> dict[str, tuple[object, object]]:
        """Entries of the configuration that differ: (in `a`, in `b`)."""
        one, two = (_flat(_config(run)) for run in (self.a, self.b))
        keys = dict.fromkeys((*one, *two))
        return {k: (one.get(k), two.get(k)) for k in keys if one.get(k) != two.get(k)}

    @cached_property
    def environment(self) -> dict[str, tuple[object, object]]:
        """Versions of packages and of the code that differ: (in `a`, in `b`)."""
        one, two = (
            _flat({name: run.info.get(name) or {} for name in ("versions", "git")})
            for run in (self.a, self.b)
        )
        keys = dict.fromkeys((*one, *two))
        return {k: (one.get(k), two.get(k)) for k in keys if one.get(k) != two.get(k)}

    def at_most(self, max_steps: int) -> Comparison:
        """The same comparison, with distances at no more steps than that."""
        return replace(self, max_steps=min(max_steps, self.max_steps))

    def distances(self, *, frame: str | None = None) -> Frame:
        """A row per step and pair: `step, site, other, kind, w1, shift, zeros, nonfinite`.

        `w1` is in octaves; see `sonde.comparison.distance`.
        """
        records, found = self._measured
        pairs = [self.sites.pairs[i] for i in records.pairs]
        table = pa.table(
            {
                "step": records.steps,
                "site": [pair.a.name for pair in pairs],
                "other": [pair.b.name for pair in pairs],
                "kind": [pair.a.kind for pair in pairs],
                "w1": found.w1,
                "shift": found.shift,
                "zeros": found.zeros,
                "nonfinite": found.nonfinite,
            }
        )
        return to_frame(table, default_kind() if frame is None else frame)  # type: ignore[arg-type]

    def farthest(self, n: int = _ROWS) -> list[SiteDistance]:
        """The sites that are farthest apart, each at its worst step."""
        rows: list[SiteDistance] = self.distances(frame="arrow").to_pylist()
        worst: dict[str, SiteDistance] = {}
        for row in rows:
            before = worst.get(row["site"])
            if before is None or _size(row) > _size(before):
                worst[row["site"]] = row
        return sorted(worst.values(), key=_size, reverse=True)[:n]

    def to_dict(self) -> dict[str, object]:
        """All of it as plain values, for JSON."""
        first = self.first
        return {
            "a": self.a.path,
            "b": self.b.path,
            "verdict": self.verdict,
            "first": None
            if first is None
            else {
                "step": first.step,
                "site": first.pair.a.name,
                "other": first.pair.b.name,
                "others": first.others,
                "cause": first.cause,
            },
            "steps": len(self.steps),
            "sites": len(self.sites.pairs),
            "added": [site.name for site in self.sites.added],
            "removed": [site.name for site in self.sites.removed],
            "renamed": self.sites.renamed,
            "settings": {k: [repr(v) for v in both] for k, both in self.settings.items()},
            "farthest": [] if self.verdict == "identical" else self.farthest(),
        }

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The comparison for people: the cause first, then what differs most."""
        found = [f"{self.a.name} and {self.b.name}: {self.headline}"]
        found += _listed("only in the first", [s.name for s in self.sites.removed])
        found += _listed("only in the second", [s.name for s in self.sites.added])
        found += _listed("renamed", [f"{a} → {b}" for a, b in self.sites.renamed.items()])
        found += [f"setting {k}: {x!r} → {y!r}" for k, (x, y) in list(self.settings.items())[:8]]
        if self.verdict != "identical":
            found += [_row(row) for row in self.farthest()]
        return found

    @cached_property
    def _judged(self) -> tuple[Verdict, Divergence | None]:
        if not self.steps or not self.sites.pairs:
            return "no verdict", None
        parts = windows(self.a, self.b, self.sites.pairs, self.steps, phase=self.phase)
        begin = next((part for part in parts if len(part)), None)
        if begin is None:
            return "no verdict", None
        is_exact = not self.sites.is_translated  # frameworks round differently
        if not is_exact or not divergence.begins_alike(begin, self.sites.pairs):
            twins = None
            if self.twin is not None:
                both = match(self.a, self.twin)
                place = {pair.a: i for i, pair in enumerate(self.sites.pairs)}
                common = tuple(pair for pair in both.pairs if pair.a in place)
                found = paired(self.a, self.twin, common, steps=self.chosen, phase=self.phase)
                index = np.array([place[pair.a] for pair in common], np.int64)
                twins = PairedRecords(index[found.pairs], found.steps, found.a, found.b)
            return divergence.statistical(self._measured[0], self.sites.pairs, twins)
        first = divergence.exact(chain([begin], parts), self.sites.pairs, self._scalars_at)
        if first is None:
            has_other_sites = bool(self.sites.added or self.sites.removed)
            return ("different" if has_other_sites else "identical"), None
        return "different", first

    @property
    def chosen(self) -> list[int]:
        """The steps at which distances are computed."""
        n = min(len(self.steps), self.max_steps)
        places = np.unique(np.linspace(0, len(self.steps) - 1, max(n, 1)).astype(int))
        return [self.steps[i] for i in places]

    @cached_property
    def _measured(self) -> tuple[PairedRecords, Distances]:
        records = paired(self.a, self.b, self.sites.pairs, steps=self.chosen, phase=self.phase)
        return records, between(records.a, records.b)

    def _scalars_at(self, step: int) -> dict[str, tuple[float, float]]:
        """Settings of optimizers that differ at a step."""
        one, two = (
            {
                row["name"]: row["value"]
                for row in run.scalars(steps=step, frame="arrow").to_pylist()
                if row["name"].split("/")[0] in _SETTINGS
            }
            for run in (self.a, self.b)
        )
        return {n: (one[n], two[n]) for n in one if n in two and one[n] != two[n]}

    @property
    def headline(self) -> str:
        """The verdict in one sentence, with the cause where there is one."""
        first = self.first
        match self.verdict:
            case "identical":
                n, steps = len(self.sites.pairs), len(self.steps)
                return f"no difference ({n} sites, {steps} steps)."
            case "alike":
                return "they differ from the beginning, and by no more than noise."
            case "no verdict":
                return (
                    "no verdict. They differ from the beginning, or have too little in common to "
                    "tell. A `twin` (the first run with another seed) measures the noise."
                )
        return first.cause if first is not None else "they do not have the same sites."


_SETTINGS: Final = frozenset(
    {"lr", "eps", "weight_decay", "momentum", "betas.0", "betas.1", "scaler_scale", "scale"}
)


def _opened(run: RunLike) -> Run:
    return run if isinstance(run, Run) else open_run(run)


def _common_steps(a: Run, b: Run, phase: str) -> tuple[int, ...]:
    first, second = step_lists(a, b, phase)
    if not first or not second:
        which = a if not first else b
        raise SondeError(f"The run `{which.name}` has no sketch in phase `{phase}`.")
    there = set(second)
    return tuple(step for step in first if step in there)


def _config(run: Run) -> Mapping[str, object]:
    """What the user gave as `config=`, else what is known of the watch."""
    config = run.info.get("config") or {}
    return config["user"] if isinstance(config.get("user"), Mapping) else config


def _flat(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _size(row: SiteDistance) -> float:
    w1 = row["w1"]
    return math.inf if row["nonfinite"] else 0.0 if w1 is None or math.isnan(w1) else w1


def _row(row: SiteDistance) -> str:
    if row["nonfinite"]:
        what = f"{row['nonfinite']:+.1%} not finite"
    elif row["w1"] is None or math.isnan(row["w1"]):
        what = f"{row['zeros']:+.1%} zeros"
    else:
        what = f"{row['shift']:+.2f} octaves, distance {row['w1']:.2f}"
    return f"  step {row['step']:>6}  {row['site']}  {what}"


def _listed(title: str, names: Sequence[str], limit: int = 8) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return [f"{title}: {', '.join(names[:limit])}{more}"]
