"""Matching: which site of one run is which site of another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sonde._errors import SondeError
from sonde.record import PARAMETER_KINDS, Site
from sonde.store.reading.catalogue import SiteRow
from sonde.store.reading.run import Run

_PYTORCH: Final = {
    "kernel": "weight",
    "scale": "weight",
    "embedding": "weight",
    "mean": "running_mean",
    "var": "running_var",
    "mu": "exp_avg",
    "nu": "exp_avg_sq",
    "trace": "momentum_buffer",
}
"""What Flax and optax call parameters and state, and what PyTorch does."""


@dataclass(frozen=True, slots=True)
class SitePair:
    """A site of the first run and the same site of the second."""

    a: Site
    b: Site

    @property
    def is_renamed(self) -> bool:
        return self.a != self.b


@dataclass(frozen=True, slots=True)
class SiteMatch:
    """The sites of two runs: those in both, in the order of the first run, and the others."""

    pairs: tuple[SitePair, ...]
    removed: tuple[Site, ...]
    added: tuple[Site, ...]

    @property
    def is_translated(self) -> bool:
        """Whether parameters have other names: the runs are of different frameworks."""
        return any(p.a.slot != p.b.slot for p in self.pairs)

    @property
    def renamed(self) -> dict[str, str]:
        """Modules that have another path in the second run."""
        return {p.a.module: p.b.module for p in self.pairs if p.a.module != p.b.module}


@dataclass(frozen=True, slots=True)
class _Described:
    site: Site
    module_type: str
    shape: tuple[int, ...]


_Likeness = tuple[str, str, int, str, tuple[int, ...]]
"""Kind, slot, call, type of the module and shape."""


def match(a: Run, b: Run, names: Mapping[str, str] | None = None) -> SiteMatch:
    """Match by `names` (paths of modules in `a` to those in `b`), then by path, then by what the
    parameters of another framework are called, then by kind, type, shape and order."""
    left, right = _described(a), _described(b)
    _check(names or {}, left, right)
    there = {one.site: one for one in right}
    found: dict[Site, Site] = {}
    for one in left:
        wanted = _renamed(one.site, names or {})
        if wanted in there:
            found[one.site] = wanted
    taken = set(found.values())
    found |= _by_meaning(
        [_renamed(one.site, names or {}) for one in left],
        [one.site for one in left],
        [one.site for one in right if one.site not in taken],
        found,
    )
    taken = set(found.values())
    rest = _by_likeness(
        [one for one in left if one.site not in found],
        [one for one in right if one.site not in taken],
    )
    found |= rest
    taken |= set(rest.values())
    return SiteMatch(
        tuple(SitePair(one.site, found[one.site]) for one in left if one.site in found),
        tuple(one.site for one in left if one.site not in found),
        tuple(one.site for one in right if one.site not in taken),
    )


def _described(run: Run) -> list[_Described]:
    rows: list[SiteRow] = run.sql("select * from sites", frame="arrow").to_pylist()
    found: dict[Site, _Described] = {}
    for row in rows:
        site = Site(str(row["module"]), row["kind"], int(row["call"] or 0), str(row["slot"]))
        shape = tuple(int(n) for n in row["shape"] or ())
        found.setdefault(site, _Described(site, str(row["module_type"] or ""), shape))
    return list(found.values())


def _check(
    names: Mapping[str, str], left: Sequence[_Described], right: Sequence[_Described]
) -> None:
    for which, paths, sites in (
        ("first", names.keys(), left),
        ("second", names.values(), right),
    ):
        known = {one.site.module for one in sites}
        for path in paths:
            if not any(module == path or module.startswith(f"{path}.") for module in known):
                raise SondeError(f"The {which} run has no module `{path}`. See `run.sites`.")


def _renamed(site: Site, names: Mapping[str, str]) -> Site:
    """The site under its new path: that of the longest prefix in `names`."""
    for old in sorted(names, key=len, reverse=True):
        if site.module == old or site.module.startswith(f"{old}."):
            return replace(site, module=names[old] + site.module[len(old) :])
    return site


def _by_meaning(
    wanted: Sequence[Site],
    left: Sequence[Site],
    right: Sequence[Site],
    known: Mapping[Site, Site],
) -> dict[Site, Site]:
    """Parameters that PyTorch and Flax call differently: `weight` and `kernel`. One to one only."""
    free: dict[Site, list[Site]] = defaultdict(list)
    for site in right:
        if site.kind in PARAMETER_KINDS:
            free[_common(site)].append(site)
    found: dict[Site, Site] = {}
    for site, own in zip(wanted, left, strict=True):
        others = free.get(_common(site), []) if site.kind in PARAMETER_KINDS else []
        if own not in known and len(others) == 1:
            found[own] = others.pop()
    return found


def _common(site: Site) -> Site:
    """The site with the words of PyTorch for parameters and for the state of optimizers."""
    words = site.slot.split("/")
    return replace(site, slot="/".join(_PYTORCH.get(word, word) for word in words))


def _by_likeness(left: Sequence[_Described], right: Sequence[_Described]) -> dict[Site, Site]:
    """Pairs of the same kind, slot, type and shape, in order, where there are equally many."""
    groups = (_grouped(left), _grouped(right))
    return {
        one.site: other.site
        for key, some in groups[0].items()
        if len(some) == len(groups[1].get(key, ()))
        for one, other in zip(some, groups[1][key], strict=True)
    }


def _grouped(sites: Iterable[_Described]) -> dict[_Likeness, list[_Described]]:
    found: dict[_Likeness, list[_Described]] = defaultdict(list)
    for one in sites:
        site = one.site
        found[site.kind, site.slot, site.call, one.module_type, one.shape].append(one)
    return found
