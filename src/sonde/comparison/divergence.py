"""Where two runs part first, and what is behind it.

Runs that begin bit for bit alike part at the first record that differs: exact. Of several sites
that differ in that step, the first in the order of a training step counts: parameters are used,
outputs follow in the order of calls, then gradients backwards, then updates.

Runs that differ from their beginning (other seeds) are compared by distances. A site has parted
when its distance stays far above what neighbouring steps of the same run, the number of its values
and its distance at the start let expect. Where that cannot be told there is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from sonde.comparison.distance import Distances, between, same, sampling_noise
from sonde.comparison.matching import SitePair
from sonde.comparison.records import PairedRecords
from sonde.record import Sketches
from sonde.sketch.columns import take

Verdict = Literal["identical", "different", "alike", "no verdict"]

_ORDER: Final = {
    "param": 0,
    "input": 1,
    "output": 2,
    "attach": 2,
    "local": 2,
    "output_grad": 3,
    "input_grad": 3,
    "attach_grad": 3,
    "param_grad": 4,
    "update": 5,
    "optim": 6,
}
_BACKWARD: Final = 3
_LONG: Final = 3
"""Records in a row that have to be far apart."""
_FAR: Final = 6.0
"""Times the noise that a distance has to be."""
_LEAST: Final = 0.5
"""Octaves below which runs with other seeds have not parted, whatever the noise."""
_LEAST_ALONE: Final = 4.0
"""The same without a twin: seeds alone can change the scale of a loss, and so of all gradients."""
_TWIN_FAR: Final = 3.0
"""Times the distance between twins."""
_GROWN: Final = 2.0
"""Times the distance at the start: what differs from there on is the seed's, or a setting's."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step and site where two runs part."""

    step: int
    pair: SitePair
    others: int
    """Sites that differ in the same step, besides this one."""
    cause: str
    """One sentence for people."""


def exact(
    windows: Iterable[PairedRecords],
    pairs: Sequence[SitePair],
    scalars_at: Callable[[int], Mapping[str, tuple[float, float]]],
) -> Divergence | None:
    """The first record that differs at all. `scalars_at` gives scalars that differ at a step."""
    for records in windows:
        differs = ~same(records.a, records.b)
        if not differs.any():
            continue
        step = int(records.steps[differs].min())
        here = records.pairs[differs & (records.steps == step)]
        first = min(here.tolist(), key=lambda i: _causal(i, pairs))
        cause = _cause(step, first, here, pairs, scalars_at(step))
        return Divergence(step, pairs[first], len(here) - 1, cause)
    return None


def begins_alike(records: PairedRecords, pairs: Sequence[SitePair]) -> bool:
    """Whether most parameters (or most sites) are the same in the first step."""
    at_first = records.steps == records.steps.min()
    is_parameter = np.array([pairs[i].a.kind == "param" for i in records.pairs])
    chosen = at_first & is_parameter if (at_first & is_parameter).any() else at_first
    varied = chosen & (records.a.extrema[:, 0] != records.a.extrema[:, 1])  # not all one number
    some = varied if varied.any() else chosen
    return bool(same(records.a, records.b)[some].mean() > 0.5)


def statistical(
    records: PairedRecords, pairs: Sequence[SitePair], twin: PairedRecords | None
) -> tuple[Verdict, Divergence | None]:
    """The first site that parts from the other run by more than noise."""
    if len(np.unique(records.steps)) < _LONG:
        return "no verdict", None
    found = between(records.a, records.b)
    distance = np.nan_to_num(found.w1)
    noise = np.maximum(sampling_noise(records.a, records.b), _neighbours(records))
    limit = np.maximum(_FAR * noise, _LEAST_ALONE)
    if twin is not None:
        few = _TWIN_FAR * sampling_noise(records.a, records.b)
        limit = np.maximum(np.maximum(_LEAST, few), _TWIN_FAR * _of_twin(records, twin))
    limit = np.maximum(limit, _GROWN * _at_start(records, distance))
    bad = np.abs(found.nonfinite) > 0
    starts = [(step, i) for i, step in _first_lasting(records, (distance > limit) | bad).items()]
    if not starts:
        is_near = twin is not None or bool((distance <= np.maximum(_FAR * noise, _LEAST)).all())
        return ("alike" if is_near else "no verdict"), None
    step = min(starts)[0]
    here = [i for s, i in starts if s == step]
    first = min(here, key=lambda i: _causal(i, pairs))
    at = np.flatnonzero((records.steps == step) & (records.pairs == first))[0]
    cause = f"`{pairs[first].a.name}` is {_shift(found, int(at))} from step {step} on"
    return "different", Divergence(step, pairs[first], len(here) - 1, cause)


def _at_start(records: PairedRecords, distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each record the largest distance of its site in the first steps, where seeds show."""
    noise = np.zeros(int(records.pairs.max()) + 1)
    early = records.steps <= np.unique(records.steps)[_LONG - 1]
    np.maximum.at(noise, records.pairs[early], distance[early])
    return noise[records.pairs]


def _shift(found: Distances, at: int) -> str:
    if abs(found.nonfinite[at]) > 0:
        return "not finite in one run"
    return f"shifted by {found.shift[at]:+.1f} octaves (distance {found.w1[at]:.1f})"


def _causal(i: int, pairs: Sequence[SitePair]) -> tuple[int, int]:
    rank = _ORDER.get(pairs[i].a.kind, 7)
    return rank, -i if rank == _BACKWARD else i


def _cause(
    step: int,
    first: int,
    here: NDArray[np.int64],
    pairs: Sequence[SitePair],
    scalars: Mapping[str, tuple[float, float]],
) -> str:
    site = pairs[first].a
    kinds = {pairs[i].a.kind for i in here}
    more = f" and {len(here) - 1} more" if len(here) > 1 else ""
    setting = "".join(
        f" `{name}` is {a:g} and {b:g} there." for name, (a, b) in sorted(scalars.items())[:3]
    )
    if site.kind == "param":
        same_kind = sum(pairs[i].a.kind == "param" for i in here)
        what = f"The weights of `{site.path}`{_more(same_kind)} differ at step {step}"
        return f"{what}, before anything is computed with them.{setting}"
    if kinds <= {"update", "optim"}:
        return (
            f"The updates of step {step} differ, and nothing before them: first `{site.name}`"
            f"{more}.{setting or ' The optimizer or its settings differ.'}"
        )
    if site.kind == "input" and not site.module:
        return f"The input of the model differs at step {step}, with equal weights: other data."
    if site.kind in {"input", "output", "attach", "local"}:
        return (
            f"`{site.name}` differs at step {step}{more}, with equal weights: its input or its "
            f"code differs.{setting}"
        )
    return f"`{site.name}` differs at step {step}{more}; the forward pass is equal.{setting}"


def _more(n: int) -> str:
    return f" and {n - 1} more parameters" if n > 1 else ""


def _neighbours(records: PairedRecords) -> NDArray[np.float64]:
    """For each record the largest distance between neighbouring steps of its site."""
    noise = np.zeros(int(records.pairs.max()) + 1)
    order = np.lexsort((records.steps, records.pairs))
    follows = np.diff(records.pairs[order]) == 0
    before, after = order[:-1][follows], order[1:][follows]
    for side in (records.a, records.b):
        moved = np.nan_to_num(between(_taken(side, before), _taken(side, after)).w1)
        np.maximum.at(noise, records.pairs[before], moved)
    return noise[records.pairs]


def _of_twin(records: PairedRecords, twin: PairedRecords) -> NDArray[np.float64]:
    """For each record the largest distance between the twins at its site."""
    noise = np.zeros(int(max(records.pairs.max(), twin.pairs.max(initial=0))) + 1)
    np.maximum.at(noise, twin.pairs, np.nan_to_num(between(twin.a, twin.b).w1))
    return noise[records.pairs]


def _first_lasting(records: PairedRecords, is_far: NDArray[np.bool_]) -> dict[int, int]:
    """For each pair the first step from which on it is far for some records in a row."""
    found: dict[int, int] = {}
    order = np.lexsort((records.steps, records.pairs))
    streak, last = 0, -1
    for at in order:
        pair = int(records.pairs[at])
        streak = (streak + 1 if pair == last else 1) if is_far[at] else 0
        last = pair
        if streak == _LONG and pair not in found:
            steps = records.steps[order][records.pairs[order] == pair]
            here = int(np.searchsorted(steps, records.steps[at]))
            found[pair] = int(steps[here - _LONG + 1])
    return found


def _taken(s: Sketches, rows: NDArray[np.int64]) -> Sketches:
    return take(s, rows)
