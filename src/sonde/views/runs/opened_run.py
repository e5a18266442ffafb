"""The subject of a question: a run with its sites, modules and graph looked up by id.

One `OpenedRun` belongs to one opened run and is used by one thread. What it knows of the run is
looked up again only when the run has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import pyarrow as pa

from sonde._errors import SondeError
from sonde.graph.folding import Folder, ModuleTree
from sonde.graph.model import ROOT, Graph, Node, node_id, tree_nodes
from sonde.record import FINAL, PARAMETER_KINDS, CallPort, GraphModule, GraphPart, Site
from sonde.store.reading.catalogue import SiteRow
from sonde.store.reading.progress import Progress
from sonde.store.reading.run import Run
from sonde.views import ids
from sonde.views.specs import Fact, Port, RunState, SiteRef

MAX_LABEL: Final = 200
MAX_PATH: Final = 1000
_NO_CALLS: Final = "The flow of data was not recorded in this run: these are its modules."
_TABLES: Final = ("sites", "graph")

T = TypeVar("T")


class NotFoundError(SondeError):
    """What was asked about is not there. `code` says what kind of thing it was."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SiteEntry:
    """A site with what is known of its tensor."""

    site: Site
    dtype: str
    shape: tuple[int, ...]
    module_type: str


class RunStructure:
    """Sites, modules and graph of a run at a moment, each by id."""

    def __init__(self, entries: Sequence[SiteEntry], graph: Graph) -> None:
        self.every_stage = entries
        self.entries = [e for e in entries if e.site.stage == FINAL]
        self.graph = graph if graph.nodes else _tree_graph(entries, graph)
        self.has_calls = bool(graph.nodes)

    @cached_property
    def by_name(self) -> Mapping[str, SiteEntry]:
        return {e.site.name: e for e in self.every_stage}

    @cached_property
    def by_id(self) -> Mapping[str, SiteEntry]:
        return _by_id((name, e) for name, e in self.by_name.items())

    @cached_property
    def tree(self) -> ModuleTree:
        """Modules of the graph in the model's order; then modules that only sites tell of."""
        modules = {m.path: m for m in self.graph.modules}
        for node in self.graph.nodes:
            modules.setdefault(node.module, GraphModule(node.module, node.type))
        for e in self.entries:
            modules.setdefault(e.site.module, GraphModule(e.site.module, e.module_type))
        return ModuleTree(modules.values())

    @cached_property
    def parameters_below(self) -> Mapping[str, int]:
        """Parameters of each module and all below it."""
        totals = [b.module.parameters for b in self.tree.branches]
        for i in range(len(totals) - 1, 0, -1):  # children come after their parents
            totals[self.tree.branches[i].parent] += totals[i]
        return {b.module.path: n for b, n in zip(self.tree.branches, totals, strict=True)}

    @cached_property
    def folder(self) -> Folder:
        return Folder(self.graph)

    @cached_property
    def paths_by_id(self) -> Mapping[str, str]:
        return _by_id((path, path) for path in self.tree.index)

    @cached_property
    def nodes_by_id(self) -> Mapping[str, Node]:
        return _by_id((node.id, node) for node in self.graph.nodes)

    @cached_property
    def sites_of_module(self) -> Mapping[str, tuple[SiteEntry, ...]]:
        """The sites of each module, in order of call and slot."""
        found: dict[str, list[SiteEntry]] = {}
        for e in sorted(self.entries, key=lambda e: self.order[e.site.name]):
            found.setdefault(e.site.module, []).append(e)
        return {path: tuple(some) for path, some in found.items()}

    @cached_property
    def order(self) -> Mapping[str, tuple[int, int, int, str]]:
        """Where each site stands among all, by name: by module, call, and when its slot was first
        met; `weight` comes before what belongs to it (`weight/exp_avg`)."""
        met: dict[tuple[str, str], int] = {}
        for i, e in enumerate(self.entries):
            met.setdefault((e.site.module, e.site.slot.partition("/")[0]), i)
        return {
            s.name: (
                self.tree.index[s.module],
                s.call,
                met[s.module, s.slot.partition("/")[0]],
                s.slot,
            )
            for s in (e.site for e in self.entries)
        }

    def sites_of_kind(self, kind: str | None) -> Sequence[tuple[str, SiteEntry]]:
        """The sites of a kind, each with the path of its module."""
        return self._by_kind.get(kind or "", ())

    @cached_property
    def _by_kind(self) -> Mapping[str, Sequence[tuple[str, SiteEntry]]]:
        found: dict[str, list[tuple[str, SiteEntry]]] = {}
        for e in self.entries:
            found.setdefault(e.site.kind, []).append((e.site.module, e))
        return found

    def kinds_of(self, path: str) -> tuple[str, ...]:
        """The kinds that are recorded at a module."""
        return tuple(dict.fromkeys(e.site.kind for e in self.sites_of_module.get(path, ())))

    def node_of(self, path: str, call: int = 0) -> str | None:
        """The id of the call of a module, if the graph has it; else of its first call."""
        found = self.graph.by_id.get(node_id(path, call))
        if found is None:
            calls = self.graph.calls.get(path)
            found = calls[0] if calls else None
        return None if found is None else ids.of_name(found.id)


class OpenedRun:
    """A run that is asked about."""

    def __init__(self, run: Run, id: str) -> None:
        self.run = run
        self.id = id
        self._structure: tuple[tuple[str, ...], RunStructure] | None = None

    def ask(self, query: str, parameters: Sequence[object] = ()) -> pa.Table:
        """Rows of a query over the views of the run."""
        return self.run.sql(query, list(parameters) or None, frame="arrow")

    def examine(self) -> bool:
        """Whether files are at fault that were not known to be; they are left out from here on."""
        self._structure = None
        return self.run.examine()

    @property
    def progress(self) -> Progress:
        return self.run.progress

    def state(self, progress: Progress | None = None) -> RunState:
        found = progress or self.progress
        return RunState(self.id, found.status, found.last_step, found.version)

    @property
    def structure(self) -> RunStructure:
        paths = tuple(s.path for s in self.progress.segments if s.table in _TABLES)
        if self._structure is None or self._structure[0] != paths:
            self._structure = (paths, RunStructure(self._entries(), self.run.graph))
        return self._structure[1]

    def site(self, id: str) -> SiteEntry:
        """The site with that id."""
        found = self.structure.by_id.get(id)
        if found is None:
            raise NotFoundError("no_such_site", f"This run has no site `{shown(id, 80)}`.")
        return found

    def path(self, id: str) -> str:
        """The path of the module with that id."""
        found = self.structure.paths_by_id.get(id)
        if found is None:
            raise NotFoundError("no_such_module", f"This run has no module `{shown(id, 80)}`.")
        return found

    def node(self, id: str | None) -> Node | None:
        """The node with that id; for None the first call of the model, None if it is unknown."""
        structure = self.structure
        if id is None or id == ids.ROOT:
            return structure.graph.by_id.get(ROOT)
        found = structure.nodes_by_id.get(id)
        if found is None:
            raise NotFoundError("no_such_module", f"This run has no call `{shown(id, 80)}`.")
        return found

    def _entries(self) -> list[SiteEntry]:
        rows = self.ask("select module, kind, call, slot, dtype, shape, module_type from sites")
        known = [_entry(row) for row in rows.to_pylist()]
        found = {e.site: e for e in known}
        for site in self.run.catalogue().sites:  # also those whose declaration was lost
            found.setdefault(site, SiteEntry(site, "", (), ""))
        return list(found.values())


def _by_id(named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Things by the ids of their names. Whatever a stranger calls a module, the first one keeps its
    id: that of the model itself cannot be taken."""
    found: dict[str, T] = {}
    for name, thing in named:
        found.setdefault(ids.of_name(name), thing)
    return found


def _tree_graph(entries: Sequence[SiteEntry], graph: Graph) -> Graph:
    """The modules that the sites tell of, when nothing is known of calls."""
    modules = {m.path: m for m in graph.modules}
    for e in entries:
        modules.setdefault(e.site.module, GraphModule(e.site.module, e.module_type))
    paths = [b.module.path for b in ModuleTree(modules.values()).branches]
    part = GraphPart(
        0, list(modules.values()), tree_nodes(paths), notes=[("none", graph.note or _NO_CALLS)]
    )
    return Graph.of([part])


def site_ref(e: SiteEntry) -> SiteRef:
    """How a site is named to whoever draws it."""
    return SiteRef(
        id=ids.of_name(e.site.name),
        name=shown(e.site.name, MAX_PATH),
        label=shown(site_label(e.site), MAX_LABEL),
        module=ids.of_name(e.site.module),
        kind=e.site.kind,
        call=e.site.call,
        slot=shown(e.site.slot, MAX_LABEL),
        dtype=e.dtype,
        shape=e.shape,
    )


def site_label(site: Site) -> str:
    """What a site is called beside its module: `output`, `output 1`, `weight`, call and all."""
    call = f" #{site.call}" if site.call else ""
    if site.kind in PARAMETER_KINDS or site.kind.startswith("attach") or site.kind == "local":
        return f"{site.slot}{call}"
    return f"{site.kind.removesuffix('_grad')} {site.slot}{call}"


def facts_of(extra: str) -> tuple[Fact, ...]:
    """What a module says of itself, cut at the commas that are not inside brackets."""
    facts, depth, start = [], 0, 0
    for i, c in enumerate(f"{extra},"):
        depth += (c in "([{") - (c in ")]}")
        if c in ",\n" and depth <= 0:
            part, start = extra[start:i].strip(), i + 1
            if part:
                key, equals, value = part.partition("=")
                has_key = equals and key.strip().isidentifier()
                label, text = (key.strip(), value.strip()) if has_key else ("", part)
                facts.append(Fact(shown(label, 60), shown(text, MAX_LABEL)))
    return tuple(facts[:20])


def ports(found: Sequence[CallPort]) -> tuple[Port, ...]:
    return tuple(Port(shown(p.slot, MAX_LABEL), shown(p.dtype, 60), tuple(p.shape)) for p in found)


def shape_text(shape: Sequence[int]) -> str:
    """`8×1024×768`; a dimension that varied is a dash."""
    return "×".join("–" if n < 0 else str(n) for n in shape) or "scalar"


def shown(text: str, limit: int) -> str:
    """The text, cut to a length that can be shown; what is no Unicode is escaped."""
    text = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _entry(row: SiteRow) -> SiteEntry:
    site = Site(str(row["module"]), row["kind"], int(row["call"] or 0), str(row["slot"]))
    shape = tuple(int(n) for n in (row["shape"] or ())[:32])
    return SiteEntry(site, shown(str(row["dtype"] or ""), 60), shape, str(row["module_type"] or ""))
