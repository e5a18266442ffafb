"""A box without a value says why: no parameters, shared ones, frozen ones, or not recorded."""

from itertools import pairwise

import numpy as np
import pytest
from told import asked

from sonde.graph.model import node_id
from sonde.kernels.reference import sketch
from sonde.record import (
    CallPort,
    GraphEdge,
    GraphModule,
    GraphNode,
    GraphPart,
    Site,
    SiteInfo,
    SketchBatch,
)
from sonde.sketch import concatenate
from sonde.store import Writer, open_run
from sonde.views.runs.opened_run import OpenedRun

PORT = (CallPort("0", "float32", (4,)),)
MODULES = {"": 0, "embed": 16, "act": 0, "frozen": 16, "head": 16}
"""Parameters by module. `head` is tied to `embed`: its weight is recorded there."""


def opened(path, sites, config=None):
    nodes = [
        GraphNode(node_id(p, 0), p, 0, "module", "" if not p else ".", PORT, PORT, 1)
        for p in MODULES
    ]
    chain = [p for p in MODULES if p]
    edges = [GraphEdge(a, b, 1) for a, b in pairwise(chain)]
    modules = [GraphModule(p, "Linear" if n else "ReLU", "", n) for p, n in MODULES.items()]
    with Writer(path, compact=False, config=config or {}) as writer:
        writer.sites([SiteInfo(i, s, "float32", (4,), "Linear") for i, s in enumerate(sites)])
        writer.graph(GraphPart(0, modules, nodes, edges, 1))
        rows = concatenate([sketch(np.ones(4)).columns() for _ in sites])
        writer.sketches(SketchBatch(0, "train", np.arange(len(sites), dtype=np.int32), rows))
    return OpenedRun(open_run(path, frame="arrow"), "id")


def reasons(subject, kind):
    return {node.id: node.why for node in asked(subject, "tint", kind=kind).nodes}


def weights(kind, *paths):
    return [Site(path, kind, 0, "weight") for path in paths]


def test_shared_frozen_and_missing_parameters_are_told_apart(tmp_path):
    sites = weights("param", "embed", "frozen") + weights("param_grad", "embed")
    subject = opened(tmp_path / "run", sites)
    assert reasons(subject, "param_grad") == {
        "embed": "",
        "act": "no parameters",
        "frozen": "frozen or unused",
        "head": "shared: see the other owner",
    }
    assert reasons(subject, "param")["head"] == "shared: see the other owner"


def test_without_weights_shared_and_frozen_cannot_be_told_apart(tmp_path):
    subject = opened(tmp_path / "run", weights("param_grad", "embed"))
    assert reasons(subject, "param_grad")["frozen"] == "shared or frozen"


@pytest.mark.parametrize("chosen", [{"include": "embed"}, {"exclude": "head"}])
def test_what_the_user_left_out_was_not_recorded(tmp_path, chosen):
    sites = weights("param", "embed") + weights("param_grad", "embed")
    subject = opened(tmp_path / "run", sites, {"watch": chosen})
    assert reasons(subject, "param_grad")["head"] == "not recorded"


def test_other_kinds_and_kinds_that_nothing_has_were_not_recorded(tmp_path):
    subject = opened(tmp_path / "run", [Site("embed", "output"), *weights("param", "embed")])
    assert reasons(subject, "output")["head"] == "not recorded"
    assert reasons(subject, "update")["head"] == "not recorded"
    assert reasons(subject, "update")["act"] == "no parameters"
