"""Which site each harvested row belongs to.

Calls of a module are numbered in the order in which the function makes them. A `scan` over stacked
layers is taken apart: turn 3 of a scan inside `layers` is `layers.3`. Turns that share their
parameters (microbatches, steps of a recurrent network) merge into one site.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sonde.capture.jax.groups import MOST_TURNS, Cut, Group, Loop, MetricGroup
from sonde.capture.jax.taps import Call, JaxTap
from sonde.record import Kind, Site


@dataclass(frozen=True)
class Harvested:
    """A site and the rows, counted per device, that make up its sketch."""

    site: Site
    cut: Cut
    rows: tuple[int, ...]


def sites_of(groups: Sequence[Group]) -> list[Harvested]:
    """The sites of all rows, in the order of the rows."""
    numbers = _Numbers()
    found: list[Harvested] = []
    first = 0
    for group in groups:
        if isinstance(group, MetricGroup):
            continue
        for i, cut in enumerate(group.cuts):
            call = numbers.of(cut.tap)
            rows: dict[Site, list[int]] = {}
            turns = itertools.product(*(range(loop.length) for loop in group.loops))
            for k, turn in enumerate(turns):
                site = site_of(cut.tap, call, group.loops, turn)
                rows.setdefault(site, []).append(first + k * len(group.cuts) + i)
            found += [Harvested(site, cut, tuple(of)) for site, of in rows.items()]
        first += group.n_rows
    return found


class _Numbers:
    """Numbers the calls of each module. What several taps of one call show has one number.

    A function that JAX has traced once may be used several times, with the same taps: each time is
    another call, and their gradients come in reverse.
    """

    def __init__(self) -> None:
        self._next: dict[str, int] = {}
        self._calls: dict[Call, list[int]] = {}
        self._seen: dict[tuple[Call | None, Kind, str], int] = {}

    def of(self, tap: JaxTap) -> int:
        if tap.call is None:
            return 0
        key = (tap.call, tap.kind, tap.slot)
        time = self._seen.get(key, 0)
        self._seen[key] = time + 1
        known = self._calls.setdefault(tap.call, [])
        is_gradient = tap.kind.endswith("_grad")
        if is_gradient and time < len(known):
            return known[-1 - time]
        if time >= len(known):
            number = self._next.get(tap.path, 0)
            self._next[tap.path] = number + 1
            known.append(number)
        return known[time]


def site_of(tap: JaxTap, call: int, loops: Sequence[Loop], turn: Sequence[int]) -> Site:
    """The site of an array in one turn of the loops around it."""
    path, slot = tap.path, tap.slot
    cuts: list[tuple[int, int]] = []  # after how many characters of the path, which turn
    for loop, i in zip(loops, turn, strict=True):
        inner = next(_calls_inside(tap, loop), None)
        if loop.path is not None:
            cuts.append((len(loop.path), i))
        elif inner is not None:
            if loop.runs_over_layers(inner):
                cuts.append((len(inner.path), i))
        elif loop.length <= MOST_TURNS:
            slot = f"{slot}.{i}"
    for at, i in sorted(cuts, reverse=True):
        path = f"{path[:at]}.{i}{path[at:]}" if at else f"{i}.{path}".rstrip(".")
    return Site(path, tap.kind, call, slot)


def _calls_inside(tap: JaxTap, loop: Loop) -> Iterator[Call]:
    """The calls around a tap that a loop repeats, the outermost first."""
    around: list[Call] = []
    call = tap.call
    while call is not None:
        if call in loop.calls:
            around.append(call)
        call = call.parent
    yield from reversed(around)
