"""The panel: what a pinned module, input, output or attached tensor has to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sonde.graph.model import Node
from sonde.record import GraphModule
from sonde.views import ids
from sonde.views.questions import PanelQuestion, QuestionError
from sonde.views.runs.opened_run import (
    MAX_LABEL,
    MAX_PATH,
    OpenedRun,
    RunStructure,
    SiteEntry,
    facts_of,
    ports,
    shown,
    site_ref,
)
from sonde.views.specs import MissingKind, Panel, PanelSection
from sonde.views.structure.level import label_of
from sonde.views.traced import variable

TITLES: Final = {
    "input": "Inputs",
    "input_grad": "Gradients of inputs",
    "output": "Outputs",
    "output_grad": "Gradients of outputs",
    "param": "Parameters",
    "param_grad": "Gradients of parameters",
    "update": "Updates",
    "optim": "Optimizer state",
    "attach": "Attached tensors",
    "attach_grad": "Gradients of attached tensors",
    "local": "Local variables",
}
"""Sections in the order in which they are shown."""

_OF_PARAMETERS: Final = ("param", "param_grad", "update", "optim")


def answer(subject: OpenedRun, question: PanelQuestion) -> Panel:
    """The sections of a call, of a tensor in the graph, or of all calls of a module."""
    structure = subject.structure
    if question.node is not None:
        node = subject.node(question.node)
        path = node.module if node is not None else ""
    elif question.module is not None:
        path = subject.path(question.module)
        calls = structure.graph.calls.get(path)
        node = calls[0] if calls else None
    else:
        raise QuestionError("Give `node` or `module`.")
    all_calls = question.node is None
    own = structure.sites_of_module.get(path, ())
    entries = _entries(structure, own, node, all_calls=all_calls)
    plain = _entries(structure, variable.plain(subject, path), node, all_calls=all_calls)
    module = _module(structure, path)
    is_call = node is None or node.kind == "module"
    parent = structure.graph.by_id.get(node.parent) if node is not None else None
    return Panel(
        node=None if node is None else ids.of_name(node.id),
        module=ids.of_name(path),
        parent=None if parent is None else ids.of_name(parent.id),
        label=shown(path if node is None else label_of(node), MAX_LABEL),
        path=shown(path, MAX_PATH),
        type=shown(module.type if is_call else "", MAX_LABEL),
        call=0 if node is None else node.call,
        inputs=ports(node.inputs) if node is not None else (),
        outputs=ports(node.outputs) if node is not None else (),
        facts=facts_of(module.extra) if is_call else (),
        parameters=structure.parameters_below.get(path, 0) if is_call else 0,
        sections=_sections(entries, plain),
        metrics=_metrics(subject, path) if is_call else (),
        missing=_missing(structure, path, node, entries),
    )


def _entries(
    structure: RunStructure, entries: Sequence[SiteEntry], node: Node | None, *, all_calls: bool
) -> list[SiteEntry]:
    """Of what was recorded of a module: that of one call of it, of one tensor, or all."""
    if node is None:
        return list(entries)
    if node.kind != "module":
        slot = node.id.rpartition(f"/{node.kind}/")[2]
        own = {node.kind, f"{node.kind}_grad"}
        return [
            e
            for e in entries
            if e.site.kind in own and e.site.call == node.call and e.site.slot == slot
        ]
    known = {other.call for other in structure.graph.calls.get(node.module, ())}
    return [
        e
        for e in entries
        if all_calls
        or e.site.call == node.call
        or e.site.kind in _OF_PARAMETERS
        # A method may be called more often than its module: what has no box goes with the first.
        or (e.site.kind == "local" and e.site.call not in known and node.call == min(known))
    ]


def _sections(entries: Sequence[SiteEntry], plain: Sequence[SiteEntry]) -> tuple[PanelSection, ...]:
    kinds = [*TITLES, *sorted({e.site.kind for e in entries} - set(TITLES))]
    found = []
    for kind in kinds:
        sites = tuple(site_ref(e) for e in entries if e.site.kind == kind)
        others = tuple(site_ref(e) for e in plain if e.site.kind == kind)
        if sites or others:
            found.append(PanelSection(kind, TITLES.get(kind, shown(kind, 60)), sites, others))
    return tuple(found)


def _missing(
    structure: RunStructure, path: str, node: Node | None, entries: Sequence[SiteEntry]
) -> tuple[MissingKind, ...]:
    """Kinds that could have been recorded here and were not, with the code that does it."""
    if node is not None and node.kind != "module":
        wanted = [node.kind, f"{node.kind}_grad"]
    else:
        wanted = ["input", "input_grad", "output", "output_grad"]
        owns = bool(_module(structure, path).parameters)
        if owns or any(e.site.kind in _OF_PARAMETERS for e in entries):
            wanted += _OF_PARAMETERS
    present = {e.site.kind for e in entries}
    recorded = sorted({str(e.site.kind) for e in structure.entries if e.site.kind in TITLES})
    missing = []
    for kind in wanted:
        if kind not in present:
            log = ", ".join(repr(k) for k in dict.fromkeys((*recorded, kind)))
            how = (
                "shared parameters: recorded at another module of this run"
                if kind in recorded and kind in _OF_PARAMETERS
                else "recorded at other modules of this run"
                if kind in recorded
                else f"sonde.watch(model, log={{{log}}})"
            )
            missing.append(MissingKind(kind, TITLES[kind], how))
    return tuple(missing)


def _metrics(subject: OpenedRun, path: str) -> tuple[str, ...]:
    rows = subject.ask(
        "select distinct name from metrics where module = ? order by name limit 200", [path]
    )
    return tuple(shown(name, MAX_LABEL) for name in rows["name"].to_pylist())


def _module(structure: RunStructure, path: str) -> GraphModule:
    at = structure.tree.index.get(path)
    return structure.tree.branches[at].module if at is not None else GraphModule(path, "")
