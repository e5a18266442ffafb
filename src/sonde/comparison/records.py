"""Records of two runs in one order: the same pairs of sites at the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sonde.comparison.matching import SitePair
from sonde.record import Sketches
from sonde.sketch.columns import take
from sonde.store.reading.run import Run
from sonde.store.reading.sketch_rows import merge_rows

_WITHOUT_BINS: Final = "[]::smallint[] as bin_ids, []::bigint[] as bin_counts"
_AT_ONCE: Final = 200_000
"""Records of each run that are held at once."""


@dataclass(frozen=True, slots=True)
class PairedRecords:
    """Row `i` of both is pair `pairs[i]` at `steps[i]`. Ordered by step, then by pair."""

    pairs: NDArray[np.int64]
    steps: NDArray[np.int64]
    a: Sketches
    b: Sketches

    def __len__(self) -> int:
        return len(self.pairs)


def paired(
    a: Run,
    b: Run,
    pairs: Sequence[SitePair],
    *,
    steps: Sequence[int] | None = None,
    phase: str = "train",
    with_bins: bool = True,
) -> PairedRecords:
    """All records that both runs have of these pairs, at these steps or at all."""
    sides = []
    for run, names in (
        (a, [pair.a.name for pair in pairs]),
        (b, [pair.b.name for pair in pairs]),
    ):
        place = {name: i for i, name in enumerate(names)}
        rows, sketches = _rows(run, steps, phase, with_bins)
        found = np.array([place.get(name, -1) for name in rows["name"].to_pylist()], np.int64)
        sides.append((found, rows["step"].to_numpy().astype(np.int64), sketches))
    return _joined(sides, len(pairs))


def windows(
    a: Run, b: Run, pairs: Sequence[SitePair], steps: Sequence[int], *, phase: str = "train"
) -> Iterator[PairedRecords]:
    """The records at these steps, without bins, some steps at a time: a long run fits in memory."""
    size = max(_AT_ONCE // max(len(pairs), 1), 1)
    for at in range(0, len(steps), size):
        some = steps[at : at + size]
        yield paired(a, b, pairs, steps=some, phase=phase, with_bins=False)


def step_lists(a: Run, b: Run, phase: str) -> tuple[list[int], list[int]]:
    """The steps with sketches of each run, ascending."""
    query = "select distinct step from counted where phase = ? order by step"
    first, second = (run.sql(query, [phase], frame="arrow")["step"].to_pylist() for run in (a, b))
    return first, second


def _rows(
    run: Run, steps: Sequence[int] | None, phase: str, with_bins: bool
) -> tuple[pa.Table, Sketches]:
    columns = "bin_ids, bin_counts" if with_bins else _WITHOUT_BINS
    chosen = "" if steps is None else " and list_contains(?, step)"
    values: list[object] = [phase] if steps is None else [phase, list(steps)]
    rows = run.sql(
        f"select * exclude (bin_ids, bin_counts), {columns} from counted "
        f"where phase = ?{chosen} order by step, name",
        values,
        frame="arrow",
    )
    return merge_rows(rows, ("step", "name"))


def _joined(
    sides: Sequence[tuple[NDArray[np.int64], NDArray[np.int64], Sketches]], n: int
) -> PairedRecords:
    keys = [np.where(pair >= 0, step * max(n, 1) + pair, -1) for pair, step, _ in sides]
    common = np.intersect1d(keys[0][keys[0] >= 0], keys[1][keys[1] >= 0])
    chosen = []
    for key, (_, _, sketches) in zip(keys, sides, strict=True):
        order = np.argsort(key, kind="stable")
        chosen.append(take(sketches, order[np.searchsorted(key[order], common)]))
    return PairedRecords(common % max(n, 1), common // max(n, 1), *chosen)
