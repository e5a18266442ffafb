"""The catalogue: which sites a run has, and which of them a pattern or a name means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict

import pyarrow as pa

from sonde._errors import SondeError
from sonde.record import FINAL, KINDS, PARAMETER_KINDS, STAGES, Kind, Site
from sonde.store import patterns

Kinds = str | Sequence[str] | None


class SiteRow(TypedDict):
    """A row of the view `sites`."""

    name: str
    module: str
    kind: Kind
    call: int
    slot: str
    dtype: str | None
    shape: list[int] | None
    module_type: str | None
    stage: str


@dataclass(frozen=True)
class Catalogue:
    """All sites of a run in the order in which they were first met."""

    sites: tuple[Site, ...]

    @staticmethod
    def from_rows(rows: pa.Table) -> Catalogue:
        columns = [rows[c].to_pylist() for c in ("module", "kind", "call", "slot")]
        found = (Site(str(m), k, int(c), str(s)) for m, k, c, s in zip(*columns, strict=True))
        return Catalogue(tuple(dict.fromkeys(found)))

    @cached_property
    def by_name(self) -> dict[str, Site]:
        return {site.name: site for site in self.sites}

    @cached_property
    def order(self) -> dict[str, int]:
        """Position of each site by name."""
        return {site.name: i for i, site in enumerate(self.sites)}

    def select(
        self,
        pattern: str = "*",
        kind: Kinds = None,
        stage: str | None = FINAL,
        missing: str = "error",
    ) -> list[Site]:
        """Sites whose path matches a glob (`*` also spans dots) or `re:...`, of the given kinds.

        The path of a parameter, and of all that belongs to it, is its full name (`fc.weight`), of
        all others the module's path. If no path matches, modules are tried: `fc` with kind `param`
        finds what `fc` owns. A pattern that matches no site of any kind is an error unless
        `missing` is "ok", or the run has no site yet.
        """
        kinds = self.kinds(kind)
        check_stage(stage)
        check_missing(missing)
        of_kind = [
            site
            for site in self.sites
            if (kinds is None or site.kind in kinds)
            and (stage in {None, site.stage} or _is_asked_for(site, stage, pattern))
        ]
        found = _meant(pattern, of_kind)
        if not found and self.sites and missing == "error" and not _meant(pattern, self.sites):
            raise SondeError(
                f"There is no site `{pattern}` in this run.{self._nearest(pattern)} "
                '`missing="ok"` gives an empty answer instead.'
            )
        return found

    def kinds(self, kind: Kinds) -> frozenset[str] | None:
        """The kinds asked for; None for all. Raises on a kind that does not exist."""
        if kind is None:
            return None
        asked = [kind] if isinstance(kind, str) else list(kind)
        known = {*KINDS, *(site.kind for site in self.sites)}
        for one in asked:
            if one not in known:
                raise SondeError(f"Unknown kind `{one}`. Known are: {', '.join(KINDS)}.")
        return frozenset(asked)

    def resolve(
        self,
        site: str,
        kind: str | None = None,
        *,
        call: int | None = None,
        slot: str | None = None,
        stage: str = FINAL,
    ) -> Site:
        """The one site meant by a printable name, or by a path with a kind (and call, and slot)."""
        kinds = self.kinds(kind)
        check_stage(stage)
        exact = self.by_name.get(site)
        if exact is not None and (kinds is None or exact.kind in kinds):
            return exact
        here = [s for s in self.sites if site in {s.path, s.module, _owner(s)}]
        found = [
            s
            for s in here
            if (kinds is None or s.kind in kinds)
            and (call is None or s.call == call)
            and (slot is None or s.slot == slot)
            and (s.stage == stage or _is_asked_for(s, stage, site) or slot == s.slot)
        ]
        if len(found) == 1:
            return found[0]
        if found:
            raise SondeError(
                f"`{site}` means {len(found)} sites: {_listed(s.name for s in found)}. "
                "Give one of these names, or `kind=`, `call=` and `slot=`."
            )
        if here:
            have = _listed(s.name for s in here)
            raise SondeError(f"`{site}` has no {_asked(kind, call, slot)}. It has: {have}.")
        raise SondeError(f"There is no site `{site}` in this run.{self._nearest(site)}")

    def _nearest(self, site: str) -> str:
        known = dict.fromkeys(n for s in self.sites for n in (s.name, s.path, s.module) if n)
        near = patterns.nearest(site, known)
        if near:
            return f" The nearest are: {_listed(near)}."
        return f" It has {len(self.sites)} sites: see `run.sites`."


def check_stage(stage: str | None) -> None:
    """Raise if there is no such stage."""
    if stage is not None and stage not in STAGES:
        raise SondeError(f"Unknown stage `{stage}`. Known are: {_listed(STAGES)}.")


def _is_asked_for(site: Site, stage: str | None, name: str) -> bool:
    """Whether an earlier stage is meant by its own name, and no stage was given."""
    return stage == FINAL and site.stage != FINAL and site.path == name


def check_missing(missing: str) -> None:
    """Raise if it is not a way to treat a pattern that matches nothing."""
    if missing not in {"error", "ok"}:
        raise SondeError(f"`missing` must be 'error' or 'ok', got {missing!r}.")


def names_meant(pattern: str, known: Sequence[str], what: str, missing: str) -> list[str]:
    """The names that a pattern stands for; metrics also by what follows a `/` in their name.

    None of several is an error unless `missing` is "ok".
    """
    check_missing(missing)
    found = patterns.select(pattern, known)
    if what == "metric" and not any(found):
        found = [any(patterns.select(pattern, _endings(name))) for name in known]
    meant = [name for name, is_meant in zip(known, found, strict=True) if is_meant]
    if not meant and known and missing == "error":
        near = patterns.nearest(pattern, known) or list(known)
        raise SondeError(
            f"There is no {what} `{pattern}` in this run. It has: {_listed(near)}. "
            '`missing="ok"` gives an empty answer instead.'
        )
    return meant


def _endings(name: str) -> list[str]:
    parts = name.split("/")[-8:]
    return ["/".join(parts[i:]) for i in range(1, len(parts))]


def _meant(pattern: str, sites: Sequence[Site]) -> list[Site]:
    """The sites whose path a pattern stands for; if there is none, those of such modules."""
    paths = patterns.select(pattern, [site.path for site in sites])
    owners = patterns.select(pattern, [_owner(site) for site in sites])
    found = [site for site, *is_meant in zip(sites, paths, owners, strict=True) if any(is_meant)]
    if found:
        return found
    modules = patterns.select(pattern, [site.module for site in sites])
    return [site for site, is_meant in zip(sites, modules, strict=True) if is_meant]


def _owner(site: Site) -> str:
    """The full name of the parameter that a site belongs to, whatever the state or the stage: that
    of `fc.weight/exp_avg` is `fc.weight`. Of all other kinds the path."""
    return site.path.partition("/")[0] if site.kind in PARAMETER_KINDS else site.path


def _listed(names: Iterable[str], limit: int = 8) -> str:
    all_names = list(names)
    shown = ", ".join(f"`{n}`" for n in all_names[:limit])
    more = len(all_names) - limit
    return f"{shown} and {more} more" if more > 0 else shown


def _asked(kind: str | None, call: int | None, slot: str | None) -> str:
    parts = [f"`{kind}`" if kind else "site"]
    if call is not None:
        parts.append(f"call {call}")
    if slot is not None:
        parts.append(f"slot `{slot}`")
    return " ".join(parts)
